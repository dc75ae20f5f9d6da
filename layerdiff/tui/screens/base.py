"""What all screens do in the same way: look closer, help, light or dark. `Drilled`: one that was opened from another to look closer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.screen import Screen

from layerdiff.rows.pace import Pace
from layerdiff.rows.tones import Line
from layerdiff.tui.actions import Action
from layerdiff.tui.widgets.cursor import CursorList
from layerdiff.tui.widgets.lines import LinesView

if TYPE_CHECKING:
    from layerdiff.rows.sites.table import Rows
    from layerdiff.rows.traces import Traces


class Head(LinesView):
    """What is looked at."""

    DEFAULT_CSS = "Head { height: 2; }"


class Selected(NamedTuple):
    """What the keys that look closer are about."""

    rows: Rows
    row: int
    traces: Traces


class BaseScreen(Screen[None]):
    """A screen about sites."""

    ACTIONS: ClassVar[Sequence[Action]] = ()
    """Of this screen, for its keys, footer, help and palette."""
    WORDS: ClassVar[Sequence[tuple[str, str]]] = ()
    """Words of this screen and what they mean, for its help."""

    def on_screen_suspend(self) -> None:
        """What was said here is not about the screen that comes."""
        self.app.clear_notifications()

    def selected(self) -> Selected | None:
        """The site under the cursor; None where there is none."""
        return None

    def action_values(self) -> None:
        """The values of the selected site."""
        if (at := self.selected()) is not None:
            from layerdiff.tui.screens.tensor import TensorScreen

            self.app.push_screen(TensorScreen(*at))

    def action_calls(self) -> None:
        """The operator calls around it, or inside."""
        if (at := self.selected()) is not None:
            from layerdiff.tui.screens.operators import open_operators

            open_operators(self, *at)

    def action_ranks(self) -> None:
        """Which rank holds what of it."""
        if (at := self.selected()) is not None:
            from layerdiff.tui.screens.ranks import open_ranks

            open_ranks(self, *at)

    def action_order(self) -> None:
        """How it added up."""
        if (at := self.selected()) is not None:
            from layerdiff.tui.screens.order import open_order

            open_order(self, *at)

    def action_help(self) -> None:
        """Keys and words of this screen."""
        from layerdiff.tui.screens.help import help_of
        from layerdiff.tui.screens.page import Page

        self.app.push_screen(Page("Help", help_of(self.ACTIONS, self.WORDS)))

    def action_dark(self) -> None:
        """Light or dark, on every screen."""
        from layerdiff.tui.palette import DARK, LIGHT

        self.app.theme = LIGHT.name if self.app.theme == DARK.name else DARK.name
        for screen in self.app.screen_stack:
            recolor = getattr(screen, "recolor", None)
            if recolor is not None:
                recolor()

    def recolor(self) -> None:
        """Draw everything in the colours of the present theme."""
        for view in self.query("LinesView, ScrolledLines"):
            view.refresh()
        for one in self.query(CursorList):
            one.repaint()

    def compared_on(self) -> None:
        """The comparison below went on, or was judged again: `Rows` has the new state."""

    def page(self, name: str, lines: Sequence[Line] | Callable[[int], Sequence[Line]]) -> None:
        """A page of text over this screen."""
        from layerdiff.tui.screens.page import Page

        self.app.push_screen(Page(name, lines))


class Left(Exception):
    """The screen was left, and what a thread computes for it is for nobody."""


class Drilled(BaseScreen):
    """Escape goes back to where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.pace = Pace()
        """Of what a thread computes for this screen."""
        self._left = False

    def hear(self, done: int, total: int | None) -> None:
        """How far a thread is, told by itself. Raises Left, which stops it, once the screen was left."""
        if self._left:
            raise Left
        self.pace.to(done, total)

    def on_unmount(self) -> None:
        """Nobody waits any longer."""
        self._left = True

    def action_back(self) -> None:
        """Back to the screen below."""
        self.app.pop_screen()
