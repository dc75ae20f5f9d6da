"""`Tabs`: the names of the panes, which of them has the keys, and how far measuring is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from textual import events
from textual.message import Message

from layerdiff.rows.cells import cell_width
from layerdiff.rows.figures import span
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.widgets.lines import LinesView

_NAMES: Final = ("numbers", "picture", "worst", "profile", "grid")
_SOON_S: Final = 0.5
"""Before that nothing is said of the time left."""
_LONG: Final = {"worst": "worst elements", "profile": "along each axis", "grid": "values"}


class Tabs(LinesView):
    """One line."""

    DEFAULT_CSS = "Tabs { height: 1; }"
    raised = False
    active = "worst"
    _passes: tuple[int, int] | None = None
    _began = 0.0

    @dataclass
    class Chosen(Message):
        """A name was clicked."""

        name: str

    def measuring(self, passes: tuple[int, int] | None) -> None:
        """Passes made and to make; None where nothing is being measured."""
        if passes is not None and (self._passes is None or passes[0] == 0):
            self._began = monotonic()
        self._passes = passes
        self.refresh()

    def _labels(self, width: int) -> list[tuple[str, str]]:
        long = [(name, f"{i} {_LONG.get(name, name)}") for i, name in enumerate(_NAMES, 1)]
        fits = sum(len(label) + 4 for _, label in long) + 24 <= width
        return long if fits else [(name, f"{i} {name}") for i, name in enumerate(_NAMES, 1)]

    def lines_at(self, width: int) -> Sequence[Line]:
        """Names, then a rule, then the progress."""
        segments: list[tuple[str, Tone]] = [("──", Tone.FAINT)]
        for name, label in self._labels(width):
            here = name == self.active
            left, right = ("▐", "▌") if here else (" ", " ")
            segments += [(left, Tone.ACCENT), (label, Tone.ACCENT if here else Tone.DIM), (right, Tone.ACCENT), ("─", Tone.FAINT)]
        end = ""
        if self._passes is not None:
            done, total = self._passes
            bar = "━" * (10 * done // total)
            elapsed = monotonic() - self._began
            left = f"{span(elapsed / done * (total - done))} left, " if done and elapsed > _SOON_S else ""
            end = f" {bar}{'─' * (10 - len(bar))} pass {done} of {total}, {left}esc stops "
        used = sum(cell_width(text) for text, _ in segments)
        return [line(*segments, ("─" * max(0, width - used - cell_width(end)), Tone.FAINT), (end, Tone.ACCENT))]

    def on_click(self, event: events.Click) -> None:
        """Choose the name under the pointer."""
        at = 2
        for name, label in self._labels(self.size.width):
            if at <= event.x < at + len(label) + 2:
                self.post_message(self.Chosen(name))
            at += len(label) + 3
