"""`Rule`: the line between table and detail. It says what the table hides; while comparing, how far that is."""

from __future__ import annotations

from collections.abc import Sequence

from layerdiff.rows.cells import cell_width, shorten
from layerdiff.rows.figures import size
from layerdiff.rows.pace import Pace
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.widgets.lines import LinesView


class Rule(LinesView):
    """One line."""

    DEFAULT_CSS = "Rule { height: 1; }"
    raised = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = ""
        self._pace: Pace | None = None

    def say(self, text: str) -> None:
        """What is hidden."""
        if text != self._text:
            self._text = text
            self.refresh()

    def progress(self, done: int, total: int) -> None:
        """How many bytes of how many were compared."""
        self._pace = self._pace or Pace(size)
        self._pace.to(done, total)
        self.refresh()

    def finish(self) -> None:
        """No more progress."""
        self._pace = None
        self.refresh()

    def lines_at(self, width: int) -> Sequence[Line]:
        """What is hidden, or how far comparing is."""
        if self._pace is not None:
            return [self._pace.line(width)]
        text = shorten(self._text, max(0, width - 6))
        rest = "─" * max(0, width - 4 - cell_width(text))
        return [line(("── ", Tone.FAINT), (text, Tone.DIM), (f" {rest}" if text else rest, Tone.FAINT))]
