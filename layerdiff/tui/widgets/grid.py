"""`GridPane`: the values themselves. Only what is on view is read, when it is drawn."""

from __future__ import annotations

from typing import Final

from rich.segment import Segment
from textual.strip import Strip

from layerdiff.errors import TraceError
from layerdiff.rows.cells import visible
from layerdiff.rows.tensor.grid import Grid, Shown
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.palette import strip_of, tone_style
from layerdiff.tui.widgets.pane import Pane

_KEPT_ROWS: Final = 1000


class GridPane(Pane):
    """A cursor over elements, and a window that follows it."""

    row = column = 0
    _top = _left = 0
    grid: Grid | None = None
    shown = Shown.ALL
    _view: tuple[object, list[Line]] | None = None
    _read: tuple[tuple[object, ...], dict[tuple[int, int | None], list[Line]]] | None = None

    def begin(self) -> None:
        """The first element."""
        self.row = self.column = self._top = self._left = 0
        self._read = None
        self.grid = None if self.examined is None else Grid(self.examined.tensor)
        if self.grid is not None:
            self.grid.shown = self.shown

    def show_next(self) -> str:
        """Show another of reference, target, difference; what it is now, in words."""
        kinds = list(Shown)
        self.shown = kinds[(kinds.index(self.shown) + 1) % len(kinds)]
        if self.grid is not None:
            self.grid.shown = self.shown
            self._into_view()
        self.refresh()
        return self.shown.value

    def select(self, flat: int) -> None:
        """The cursor on an element."""
        if self.grid is not None and self.grid.tensor.count:
            flat = min(max(0, flat), self.grid.tensor.count - 1)
            self.row, self.column = divmod(flat, self.grid.tensor.columns)
            self._into_view()

    def _into_view(self) -> None:
        if self.grid is None:
            return
        rows = max(1, (self.size.height - 1) // self.grid.lines_a_row)
        columns = self.grid.columns_in(self.size.width)
        self._top = min(max(self._top, self.row - rows + 1), self.row)
        self._left = min(max(self._left, self.column - columns + 1), self.column)
        self.refresh()

    def on_resize(self) -> None:
        """Keep the cursor on view."""
        self._into_view()

    def move(self, down: int, right: int) -> None:
        """By elements."""
        if self.grid is None or not self.grid.tensor.count:
            return
        tensor = self.grid.tensor
        self.row = min(max(0, self.row + down), tensor.rows - 1)
        length = min(tensor.columns, tensor.count - self.row * tensor.columns)
        self.column = min(max(0, self.column + right), length - 1)
        self._into_view()

    def page(self, down: int) -> None:
        """By the rows on view."""
        if self.grid is not None:
            self.move(down * max(1, (self.size.height - 1) // self.grid.lines_a_row), 0)

    def end(self, *, last: bool) -> None:
        """The first or the last row."""
        if self.grid is not None:
            self.move(self.grid.tensor.rows if last else -self.grid.tensor.rows, 0)

    def choose(self, x: int, y: int) -> None:
        """The clicked element."""
        if self.grid is not None and y >= 1:
            from layerdiff.rows.tensor.grid import CELL

            self.row = self._top + (y - 1) // self.grid.lines_a_row
            self.column = self._left + max(0, x - self.grid.margin) // CELL
            self.move(0, 0)

    @property
    def element(self) -> int | None:
        """The one under the cursor."""
        if self.grid is None or not self.grid.tensor.count:
            return None
        return self.row * self.grid.tensor.columns + self.column

    def _lines(self, width: int) -> list[Line]:
        """Everything on view."""
        grid = self.grid
        if grid is None:
            return []
        if not grid.tensor.count:
            return [line(("  no element", Tone.DIM))]
        state = (grid, self._left, width, grid.shown)
        if self._read is None or self._read[0] != state:
            self._read = state, {}
        whole = (self._top, self.row, self.column, self.size.height)
        if self._view is None or self._view[0] != (state, whole):
            self._view = (state, whole), self._window(grid, width)
        return self._view[1]

    def _window(self, grid: Grid, width: int) -> list[Line]:
        assert self._read is not None
        lines, known = [grid.heading(self._left, width)], self._read[1]
        try:
            for row in range(self._top, grid.tensor.rows):
                if len(lines) > self.size.height:
                    break
                column = self.column if row == self.row else None
                if (row, column) not in known:
                    known[row, column] = grid.row_lines(row, self._left, width, column)
                lines += known[row, column]
        except (TraceError, OSError) as error:
            lines.append(line(("✗ ", Tone.FAULT), visible(str(error))))
        if len(known) > _KEPT_ROWS:
            known.clear()
        return lines

    def render_line(self, y: int) -> Strip:
        """One line of the window; the cursor's row on a ground of its own."""
        palette, width = self.palette, self.size.width
        lines = self._lines(width)
        shown = lines[y] if y < len(lines) else Line()
        ground = self.ground
        if self.grid is not None and self.grid.tensor.count and y >= 1 and (y - 1) // self.grid.lines_a_row + self._top == self.row:
            ground = palette.cursor if self.has_class("-active") else palette.cursor_idle
        return strip_of(shown.clipped(width), palette, ground, width, before=Segment("", tone_style(palette, Tone.DIM, ground)))
