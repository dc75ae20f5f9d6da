"""`CursorList`: lines of which one is selected, by keys. Only lines on view are drawn; their strips are kept until anything changes."""

from __future__ import annotations

from textual.binding import Binding
from textual.cache import LRUCache
from textual.scroll_view import ScrollView
from textual.strip import Strip


class CursorList(ScrollView, can_focus=True):
    """What moves the cursor of a list."""

    DEFAULT_CSS = """
    CursorList { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; overflow-y: auto; background: $background; }
    """
    BINDINGS = [  # noqa: RUF012  # textual's way
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "to(0)", show=False),
        Binding("end,G", "to(-1)", show=False),
    ]

    def __init__(self, *, id: str | None = None, strips: int) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self._strips: LRUCache[tuple[int, bool], Strip] = LRUCache(strips)

    @property
    def count(self) -> int:
        """How many lines there are."""
        raise NotImplementedError

    def select(self, index: int) -> None:
        """Put the cursor on a line."""
        raise NotImplementedError

    def lay_out(self) -> None:
        """Make room for all lines at the present width."""
        raise NotImplementedError

    def repaint(self) -> None:
        """Draw every line anew: other colours, another width."""
        self._strips.clear()
        self.refresh()

    def on_resize(self) -> None:
        """Share the new width among the columns."""
        self.lay_out()
        self.repaint()

    def action_move(self, by: int) -> None:
        """One line up or down."""
        self.select(self.cursor + by)

    def action_page(self, by: int) -> None:
        """One page up or down."""
        self.select(self.cursor + by * max(1, self.size.height - 1))

    def action_to(self, index: int) -> None:
        """The first line, or (-1) the last."""
        self.select(index if index >= 0 else self.count - 1)
