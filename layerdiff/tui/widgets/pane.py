"""`Pane`: a part of the tensor screen with a cursor of its own. The screen hands it the keys; the mouse it takes itself."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message

from layerdiff.rows.tensor.examined import Examined
from layerdiff.rows.tones import Line
from layerdiff.tui.widgets.lines import LinesView


class Pane(LinesView):
    """Shows a part of what was measured."""

    raised = False

    @dataclass
    class Moved(Message):
        """The cursor of a pane moved, by the mouse or else."""

        pane: Pane
        chosen: bool = False
        """Clicked twice."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.examined: Examined | None = None

    def examine(self, examined: Examined | None) -> None:
        """Show what is known by now; None for nothing."""
        fresh = examined is None or self.examined is None or self.examined.tensor is not examined.tensor
        self.examined = examined
        if fresh:
            self.begin()
        self.refresh()

    def begin(self) -> None:
        """Another pair of values: the cursor goes to the beginning."""

    def move(self, down: int, right: int) -> None:
        """The cursor by steps."""

    def page(self, down: int) -> None:
        """The cursor by a page."""
        self.move(down * max(1, self.size.height - 2), 0)

    def end(self, *, last: bool) -> None:
        """The cursor to the first or the last place."""

    @property
    def element(self) -> int | None:
        """The flat index of the element under the cursor."""
        return None

    def status(self, width: int) -> list[Line] | None:
        """Two lines on what is under the cursor; None for the element's own."""
        return None

    def choose(self, x: int, y: int) -> None:
        """Put the cursor where the mouse clicked, in cells of this pane."""

    def on_click(self, event: events.Click) -> None:
        """Choose; twice opens."""
        self.choose(event.x, event.y)
        self.post_message(self.Moved(self, chosen=event.chain == 2))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Three steps down."""
        self.move(3, 0)
        self.post_message(self.Moved(self))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Three steps up."""
        self.move(-3, 0)
        self.post_message(self.Moved(self))
