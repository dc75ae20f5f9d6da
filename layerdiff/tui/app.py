"""`LayerdiffApp`: wires the layers screen, the themes and the command palette. It holds no state of its own.

Whoever runs it reads `comparison` afterwards, for the exit code.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from functools import partial

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from layerdiff.saved.comparison import Comparison
from layerdiff.tui.actions import LAYERS_ACTIONS
from layerdiff.tui.impatient import Impatient
from layerdiff.tui.messages import Progress, Rejudge
from layerdiff.tui.palette import DARK, LIGHT, theme_of
from layerdiff.tui.screens.layers import LayersScreen


class LayerdiffApp(App[None]):
    """The terminal for one comparison, made already or on its way."""

    TITLE = "layerdiff"
    BINDINGS = [  # noqa: RUF012  # textual's way
        Binding("q", "quit", "Leave", show=False),
        Binding("ctrl+c", "quit", "Leave", show=False, priority=True),  # else textual advises another key than ours
    ]
    CSS = """
    ToastRack { margin: 0; }
    Toast { background: $panel; width: auto; max-width: 100%; margin: 0; padding: 0 1; }
    """
    """What is said for a moment takes the line of the keys, and hides nothing else where it fits there."""

    def __init__(self, source: Comparison | Iterable[Progress], *, rejudge: Rejudge | None = None, dark: bool = True) -> None:
        """`source` is a comparison, or the states of a running one; `rejudge(comparison, profile)` judges again."""
        super().__init__()
        self._first = LayersScreen(source, rejudge=rejudge)
        self._dark = dark

    @property
    def comparison(self) -> Comparison | None:
        """What is shown, or was last; None if nothing came."""
        return self._first.comparison

    @property
    def complete(self) -> bool:
        """Whether what is shown is the whole comparison, and not what was known when somebody stopped it."""
        return self._first.complete

    def on_load(self) -> None:
        """Before any worker runs: leaving must not wait for one."""
        asyncio.get_running_loop().set_default_executor(Impatient(thread_name_prefix="layerdiff"))

    def on_mount(self) -> None:
        """Own themes, before anything is drawn."""
        for palette in (DARK, LIGHT):
            self.register_theme(theme_of(palette))
        self.theme = DARK.name if self._dark else LIGHT.name

    def on_ready(self) -> None:
        """After the first paint: whoever switched the collector off for a quick start gets it back, without what start-up left."""
        gc.freeze()
        gc.enable()

    async def action_quit(self) -> None:
        """Leave; the return code is 2 where comparing ended in an error."""
        self.exit(return_code=2 if self._first.failed else 0)

    def get_default_screen(self) -> Screen[None]:
        """The layers screen."""
        return self._first

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every action of the screen, with its key."""
        for action in getattr(screen, "ACTIONS", LAYERS_ACTIONS):
            yield SystemCommand(f"{action.long}", f"key {action.key}", partial(screen.run_action, action.name))
        yield SystemCommand("Leave layerdiff", "key q", self.action_quit)
