"""`Drilled`: a screen opened from another one to look closer. What all of them do in the same way: back, help, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.screen import Screen

from layerdiff.rows.tones import Line
from layerdiff.tui.actions import Action
from layerdiff.tui.widgets.lines import LinesView


class Head(LinesView):
    """What is looked at."""

    DEFAULT_CSS = "Head { height: 2; }"


class Drilled(Screen[None]):
    """Escape goes back to where it was opened."""

    ACTIONS: ClassVar[Sequence[Action]] = ()
    """Of this screen, for its keys, footer, help and palette."""
    WORDS: ClassVar[Sequence[tuple[str, str]]] = ()
    """Words of this screen and what they mean, for its help."""

    def action_back(self) -> None:
        """Back to the screen below."""
        self.app.pop_screen()

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
        for view in self.query(LinesView):
            view.refresh()

    def page(self, name: str, lines: Sequence[Line]) -> None:
        """A page of text over this screen."""
        from layerdiff.tui.screens.page import Page

        self.app.push_screen(Page(name, lines))
