"""`SearchBox`: where a search is typed. Sites are listed as it grows; enter keeps the list, escape drops it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input


class SearchBox(Input):
    """One line above the key bar; mounted when it is needed."""

    DEFAULT_CSS = """
    SearchBox, SearchBox:focus {
        dock: bottom; height: 1; border: none; padding: 0 1; margin: 0 0 1 0;
        background: $panel; color: $foreground;
    }
    """
    BINDINGS = [Binding("escape", "drop", show=False), Binding("down", "keep", show=False)]  # noqa: RUF012  # textual's way

    @dataclass
    class Typed(Message):
        """The text changed."""

        query: str

    @dataclass
    class Left(Message):
        """The box is done with; `keep` says whether its list stays."""

        keep: bool

    def __init__(self, query: str, *, hint: str = "search sites: q_proj, model.layers.*.mlp, *norm*") -> None:
        super().__init__(query, placeholder=hint, select_on_focus=False)
        self.cursor_blink = False

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Typed(event.value.strip()))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Left(True))

    def action_keep(self) -> None:
        """Into the list."""
        self.post_message(self.Left(True))

    def action_drop(self) -> None:
        """Forget the search."""
        self.post_message(self.Left(False))
