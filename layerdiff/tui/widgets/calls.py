"""`CallList`: the calls inside one module call, with a cursor. Only lines on view are worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual import events
from textual.binding import Binding
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from layerdiff.rows.calls.listing import CallColumns, call_columns, call_line
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Tone, line
from layerdiff.tui.palette import palette_of, strip_of, tone_style


class CallList(ScrollView, can_focus=True):
    """A list of rows of the comparison."""

    DEFAULT_CSS = "CallList { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; overflow-y: auto; background: $background; }"
    BINDINGS = [  # noqa: RUF012  # textual's way
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "to(0)", show=False),
        Binding("end,G", "to(-1)", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The cursor stands on another call."""

        row: int

    @dataclass
    class Opened(Message):
        """A call was clicked twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = 0
        self._rows: Rows | None = None
        self._calls: Sequence[int] = ()
        self._columns: tuple[int, CallColumns] | None = None
        self._strips: LRUCache[tuple[int, bool], Strip] = LRUCache(300)

    def show(self, rows: Rows, calls: Sequence[int], cursor: int) -> None:
        """List calls, the cursor on one of them."""
        self._rows, self._calls, self._columns = rows, calls, None
        self.cursor = min(max(0, cursor), max(0, len(calls) - 1))
        self._lay_out()
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

    def repaint(self) -> None:
        """Draw every line anew."""
        self._strips.clear()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Another width."""
        self._lay_out()
        self.repaint()

    def _lay_out(self) -> None:
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

    def action_move(self, by: int) -> None:
        """One line up or down."""
        self.select(self.cursor + by)

    def action_page(self, by: int) -> None:
        """One page up or down."""
        self.select(self.cursor + by * max(1, self.size.height - 1))

    def action_to(self, index: int) -> None:
        """The first line, or (-1) the last."""
        self.select(index if index >= 0 else len(self._calls) - 1)

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
