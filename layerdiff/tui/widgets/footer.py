"""`KeyBar`: the keys that matter most, as many as fit; each can be clicked."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events

from layerdiff.rows.cells import cell_width
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.actions import LAYERS_ACTIONS, Action
from layerdiff.tui.widgets.lines import LinesView


class KeyBar(LinesView):
    """One line at the bottom of the screen."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, actions: Sequence[Action] = LAYERS_ACTIONS, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions = actions
        self._targets: list[tuple[int, int, str]] = []

    def offer(self, actions: Sequence[Action]) -> None:
        """Show other actions: those that do something now."""
        self._actions = actions
        self.refresh()

    def promote(self, name: str, short: str) -> None:
        """Show an action that matters here, and not everywhere, behind the first few."""
        chosen = [action._replace(short=short) for action in self._actions if action.name == name]
        others = [action for action in self._actions if action.name != name]
        shown = [i for i, action in enumerate(others) if action.short]
        at = shown[2] + 1 if len(shown) > 2 else len(others)
        self._actions = [*others[:at], *chosen, *others[at:]]
        self.refresh()

    def lines_at(self, width: int) -> Sequence[Line]:
        """The keys that fit; help and leaving are always there."""
        last = [("?", "help", "screen.help"), ("q", "quit", "app.quit")]
        room = width - sum(cell_width(f" {key} {short} ") for key, short, _ in last) - 1
        hints = []
        for action in self._actions:
            cells = cell_width(f" {action.key} {action.short} ")
            if action.short and action.name != "help" and cells <= room:
                hints.append((action.key, action.short, f"screen.{action.name}"))
                room -= cells
        at, segments, self._targets = 1, [(" ", Tone.DIM)], []
        for key, short, name in [*hints, *last]:
            segments += [(key, Tone.ACCENT), (f" {short}  ", Tone.DIM)]
            end = at + cell_width(f"{key} {short}  ")
            self._targets.append((at, end, name))
            at = end
        return [line(*segments)]

    async def on_click(self, event: events.Click) -> None:
        """Do what the key under the pointer does."""
        for first, end, name in self._targets:
            if first <= event.x < end:
                await self.run_action(name)
