"""`SiteTable`: the tree of sites, drawn a line at a time.

Only lines on view are ever worded. The cursor belongs to a site (a row of the comparison) and not to a line, so it survives
folding, sorting, searching and another judgement.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.palette import palette_of, strip_of, tone_style
from layerdiff.tui.widgets.cursor import CursorList

_GUTTER = 2
"""Cells before a line: the mark of the cursor."""
_SCROLLBAR = 1
"""Kept free whether it shows or not, so that columns stay where they are."""


class SiteTable(CursorList):
    """A cursor over `Rows`."""

    @dataclass
    class Moved(Message):
        """The cursor stands on another line, or its line changed."""

        index: int

    @dataclass
    class Opened(Message):
        """A line was clicked twice."""

        index: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, strips=600)
        self.rows: Rows | None = None
        self.nothing = line(("nothing to list", Tone.DIM))
        """What stands in an empty table."""

    def show(self, rows: Rows, cursor: int) -> None:
        """Draw `rows` anew with the cursor on a line; also after any change of them."""
        self.rows = rows
        self.changed(cursor)

    def changed(self, cursor: int) -> None:
        """The lines changed: draw them anew, the cursor on a line."""
        self._strips.clear()
        if self.rows is None:
            return
        self.cursor = min(max(0, cursor), max(0, len(self.rows) - 1))
        self.lay_out()
        self.refresh()
        self.post_message(self.Moved(self.cursor))

    @property
    def count(self) -> int:
        """How many lines there are."""
        return 0 if self.rows is None else len(self.rows)

    def lay_out(self) -> None:
        """Nothing is laid out, and so nothing drawn, before the first size is known: lines are drawn once."""
        if self.rows is not None and self.size.width:
            self.rows.width = max(10, self.size.width - _GUTTER - _SCROLLBAR)
            self.virtual_size = Size(self.size.width, len(self.rows))
            self._into_view()

    def _into_view(self) -> None:
        height = max(1, self.size.height)
        top = int(self.scroll_offset.y)
        margin = min(3, (height - 1) // 3)
        if self.cursor < top + margin:
            self.scroll_to(y=max(0, self.cursor - margin), animate=False, immediate=True, force=True)
        elif self.cursor > top + height - 1 - margin:
            self.scroll_to(y=self.cursor - height + 1 + margin, animate=False, immediate=True, force=True)

    def select(self, index: int) -> None:
        """Put the cursor on a line."""
        if self.rows is None or not len(self.rows):
            return
        index = min(max(0, index), len(self.rows) - 1)
        before, self.cursor = self.cursor, index
        self._into_view()
        if before != index:
            for changed in (before, index):
                self.refresh_line(changed)
            self.post_message(self.Moved(index))

    def on_click(self, event: events.Click) -> None:
        """Select; fold or unfold on the arrow; open on the second click."""
        if self.rows is None:
            return
        index = event.y + int(self.scroll_offset.y)
        if not 0 <= index < len(self.rows):
            return
        arrow = self.rows.arrow_cell(index)
        self.select(index)
        if arrow is not None and arrow <= event.x - _GUTTER <= arrow + 1:
            self.changed(self.rows.toggle(index))
        elif event.chain == 2:
            self.post_message(self.Opened(index))

    def on_focus(self) -> None:
        """The cursor brightens."""
        self.repaint()

    def on_blur(self) -> None:
        """The cursor dims."""
        self.repaint()

    def render_line(self, y: int) -> Strip:
        """The line at `y` of the screen."""
        palette, width = palette_of(self.app), self.size.width
        index = y + int(self.scroll_offset.y)
        if self.rows is None or index >= len(self.rows):
            text = self.nothing if index == 0 else Line()
            before = Segment(" " * _GUTTER, tone_style(palette, Tone.PLAIN, palette.ground))
            return strip_of(text, palette, palette.ground, width, before=before)
        here = index == self.cursor
        strip = self._strips.get((index, here))
        if strip is None:
            ground = palette.ground if not here else palette.cursor if self.has_focus else palette.cursor_idle
            before = Segment("▌ " if here else "  ", tone_style(palette, Tone.ACCENT, ground))
            strip = strip_of(self.rows.line(index), palette, ground, width, before=before)
            self._strips[(index, here)] = strip
        return strip
