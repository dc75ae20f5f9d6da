"""`Rule`: the line between table and detail. It says what the table hides; while comparing, how far that is."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from layerdiff.rows.cells import cell_width, shorten
from layerdiff.rows.figures import size, span
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.widgets.lines import LinesView


class Rule(LinesView):
    """One line."""

    DEFAULT_CSS = "Rule { height: 1; }"
    raised = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = ""
        self._bar: tuple[int, int] | None = None
        self._began: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        """What is hidden."""
        if text != self._text:
            self._text = text
            self.refresh()

    def progress(self, done: int, total: int) -> None:
        """How many bytes of how many were compared."""
        if self._began is None:
            self._began = (monotonic(), done)
        self._bar = (done, total)
        self.refresh()

    def finish(self) -> None:
        """No more progress."""
        self._bar = None
        self.refresh()

    def lines_at(self, width: int) -> Sequence[Line]:
        """What is hidden, or how far comparing is."""
        if self._bar is None:
            text = shorten(self._text, max(0, width - 6))
            rest = "─" * max(0, width - 4 - cell_width(text))
            return [line(("── ", Tone.FAINT), (text, Tone.DIM), (f" {rest}" if text else rest, Tone.FAINT))]
        done, total = self._bar
        share = min(1.0, done / total) if total > 0 else 0.0
        elapsed = monotonic() - self._began[0] if self._began else 0.0
        rate = (done - self._began[1]) / elapsed if self._began and elapsed > 0.2 else 0.0
        words = f"{share:4.0%}  {size(done)} of {size(total)}"
        if rate > 0:
            words += f"  {size(rate)}/s  {span((total - done) / rate)} left"
        end = "  esc stops "
        room = max(0, width - cell_width(words) - len(end) - 6)
        filled = int(room * share)
        bar = "━" * filled + ("╸" if filled < room else "")
        return [line(("   ", Tone.FAINT), (bar, Tone.ACCENT), ("─" * (room - len(bar)), Tone.FAINT), f"  {words}", (end, Tone.DIM))]
