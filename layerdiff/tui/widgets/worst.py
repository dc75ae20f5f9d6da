"""`WorstPane`: the elements that differ most, with their bits."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip

from layerdiff.rows.tensor.elements import WorstColumns, worst_columns, worst_heading, worst_line
from layerdiff.rows.tones import Tone, line
from layerdiff.tui.palette import strip_of, tone_style
from layerdiff.tui.widgets.pane import Pane


class WorstPane(Pane):
    """A list with a cursor."""

    cursor = 0
    _top = 0
    _widths: tuple[object, WorstColumns] | None = None

    def begin(self) -> None:
        """The worst of all."""
        self.cursor = self._top = 0

    def _columns(self) -> WorstColumns:
        assert self.examined is not None and self.examined.worst is not None
        state = (id(self.examined.worst), self.size.width)
        if self._widths is None or self._widths[0] != state:
            self._widths = state, worst_columns(self.examined.tensor, self.examined.worst, self.size.width - 3)
        return self._widths[1]

    @property
    def _count(self) -> int:
        return 0 if self.examined is None or self.examined.worst is None else len(self.examined.worst)

    def select(self, index: int) -> None:
        """The cursor on an element of the list."""
        self.cursor = min(max(0, index), max(0, self._count - 1))
        room = max(1, self.size.height - 1)
        self._top = min(max(self._top, self.cursor - room + 1), self.cursor)
        self.refresh()

    def move(self, down: int, right: int) -> None:
        """Along the list."""
        self.select(self.cursor + down)

    def end(self, *, last: bool) -> None:
        """The worst, or the least bad listed."""
        self.select(self._count - 1 if last else 0)

    def choose(self, x: int, y: int) -> None:
        """The clicked line."""
        if y > 0:
            self.select(self._top + y - 1)

    @property
    def element(self) -> int | None:
        """The selected one."""
        if self.examined is None or not self.examined.worst:
            return None
        return self.examined.worst[min(self.cursor, self._count - 1)].index

    def render_line(self, y: int) -> Strip:
        """The heading, or an element."""
        palette, width, examined = self.palette, self.size.width, self.examined
        index = self._top + y - 1
        ground = self.ground
        if examined is None or not examined.worst:
            waiting = examined is not None and examined.worst is None
            text = "" if examined is None else "looking for the worst elements" if waiting else "no element differs"
            shown = line((text if y == 0 else "", Tone.DIM))
        elif y == 0:
            shown = worst_heading(self._columns())
        elif index < self._count:
            here = index == self.cursor
            ground = (palette.cursor if self.has_class("-active") else palette.cursor_idle) if here else ground
            before = Segment("▌ " if here else "  ", tone_style(palette, Tone.ACCENT, ground))
            made = worst_line(examined.tensor, examined.worst[index], index + 1, self._columns())
            return strip_of(made.clipped(width - 2), palette, ground, width, before=before)
        else:
            shown = line()
        before = Segment("  ", tone_style(palette, Tone.DIM, ground))
        return strip_of(shown.clipped(max(0, width - 2)), palette, ground, width, before=before)
