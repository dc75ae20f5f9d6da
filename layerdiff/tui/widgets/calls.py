"""`CallList`: the calls inside one module call, with a cursor. Only lines on view are worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from layerdiff.rows.calls.listing import CallColumns, call_columns, call_line
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Tone, line
from layerdiff.tui.palette import palette_of, strip_of, tone_style
from layerdiff.tui.widgets.cursor import CursorList


class CallList(CursorList):
    """A list of rows of the comparison."""

    @dataclass
    class Moved(Message):
        """The cursor stands on another call."""

        row: int

    @dataclass
    class Opened(Message):
        """A call was clicked twice."""

    def __init__(self) -> None:
        super().__init__(strips=300)
        self._rows: Rows | None = None
        self._calls: Sequence[int] = ()
        self._columns: tuple[int, CallColumns] | None = None

    def show(self, rows: Rows, calls: Sequence[int], cursor: int) -> None:
        """List calls, the cursor on one of them."""
        self._rows, self._calls, self._columns = rows, calls, None
        self.cursor = min(max(0, cursor), max(0, len(calls) - 1))
        self.lay_out()
        self.repaint()

    def columns(self) -> CallColumns:
        """The columns at the present width; found once for each."""
        width = max(20, self.size.width - 3)
        if self._columns is None or self._columns[0] != width:
            assert self._rows is not None
            self._columns = width, call_columns(self._rows, self._calls, width)
        return self._columns[1]

    @property
    def row(self) -> int | None:
        """The row under the cursor."""
        return self._calls[self.cursor] if self._calls else None

    @property
    def count(self) -> int:
        """How many calls there are."""
        return len(self._calls)

    def lay_out(self) -> None:
        """Another width."""
        if self.size.width:
            self.virtual_size = Size(self.size.width, len(self._calls))
            self._into_view()

    def _into_view(self) -> None:
        height, top = max(1, self.size.height), int(self.scroll_offset.y)
        wanted = min(max(top, self.cursor - height + 1), self.cursor)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, immediate=True, force=True)

    def select(self, index: int) -> None:
        """Put the cursor on a line."""
        if not self._calls:
            return
        before, self.cursor = self.cursor, min(max(0, index), len(self._calls) - 1)
        self._into_view()
        if before != self.cursor:
            self.refresh()
            self.post_message(self.Moved(self._calls[self.cursor]))

    def on_click(self, event: events.Click) -> None:
        """Select; twice opens."""
        self.select(event.y + int(self.scroll_offset.y))
        if event.chain == 2:
            self.post_message(self.Opened())

    def render_line(self, y: int) -> Strip:
        """One call."""
        palette, width, index = palette_of(self.app), self.size.width, y + int(self.scroll_offset.y)
        if self._rows is None or index >= len(self._calls):
            return strip_of(line(), palette, palette.ground, width)
        here = index == self.cursor
        strip = self._strips.get((index, here))
        if strip is None:
            ground = palette.cursor if here else palette.ground
            before = Segment("▌ " if here else "  ", tone_style(palette, Tone.ACCENT, ground))
            made = call_line(self._rows, self._calls[index], self.columns())
            strip = self._strips[(index, here)] = strip_of(made, palette, ground, width, before=before)
        return strip
