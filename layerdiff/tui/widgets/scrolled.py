"""`ScrolledLines`: lines made for the present width, scrolled by keys and mouse. Only lines on view are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from layerdiff.rows.tones import Line, Segment
from layerdiff.tui.palette import palette_of, strip_of


class ScrolledLines(ScrollView, can_focus=True):
    """A text as long as it needs to be."""

    DEFAULT_CSS = """
    ScrolledLines { height: 1fr; background: $background; scrollbar-size: 1 1; overflow-x: hidden; overflow-y: auto; }
    """
    BINDINGS = [  # noqa: RUF012  # textual's way
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
        Binding("space", "page_down", show=False),
    ]

    MARGIN: ClassVar[int] = 1
    """Cells left of a line."""
    RAISED: ClassVar[bool] = False
    """Whether it lies over a screen."""

    def __init__(self, make: Callable[[int], Sequence[Line]] = lambda width: ()) -> None:
        super().__init__()
        self._make = make
        self.lines: Sequence[Line] = ()
        """At the present width."""

    def show(self, make: Callable[[int], Sequence[Line]], *, from_top: bool = True) -> None:
        """Show what `make(width)` gives, now and at every other width."""
        self._make = make
        self._lay_out()
        if from_top:
            self.scroll_home(animate=False)

    def on_resize(self) -> None:
        """Words for the new width."""
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.size.width
        if width > 0:
            self.lines = self._make(max(1, width - 2 * self.MARGIN))
            self.virtual_size = Size(width, len(self.lines))
            self.refresh()

    def to_part(self, by: int) -> None:
        """To the beginning of the part after what is at the top, or before it."""
        at = int(self.scroll_offset.y)
        parts = [0, *(i for i, made in enumerate(self.lines) if made.plain.startswith(("── ", "▐ ")))]
        found = [i for i in parts if (i > at if by > 0 else i < at)]
        if found:
            self.scroll_to(y=found[0] if by > 0 else found[-1], animate=False)

    def render_line(self, y: int) -> Strip:
        """One line of the text."""
        palette, index = palette_of(self.app), y + int(self.scroll_offset.y)
        shown = self.lines[index] if index < len(self.lines) else Line()
        made = Line((Segment(" " * self.MARGIN), *shown.segments)).clipped(max(1, self.size.width))
        return strip_of(made, palette, palette.raised if self.RAISED else palette.ground, self.size.width)
