"""A bar with rate and time left, one line, in any width."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from layerdiff.rows.cells import cell_width
from layerdiff.rows.figures import count, span
from layerdiff.rows.tones import Line, Tone, line

_SOON_S = 0.2
"""Before that nobody knows a rate."""
_END = "  esc stops "


class Pace:
    """How far something is, and how fast it goes; of a total that nobody knows yet there is only the bar."""

    def __init__(self, said: Callable[[float], str] = lambda number: count(round(number))) -> None:
        """`said`: an amount in words."""
        self._said = said
        self._began: tuple[float, int] | None = None
        self._done, self._total = 0, 0

    def to(self, done: int, total: int) -> None:
        """It is `done` of `total` now."""
        if self._began is None or done < self._done:
            self._began = (monotonic(), done)
        self._done, self._total = done, total

    def line(self, width: int) -> Line:
        """`━━━━━╸────   43%  412 MB of 1.2 GB  310 MB/s  3 s left  esc stops`."""
        began, before = self._began or (monotonic(), 0)
        share = min(1.0, self._done / self._total) if self._total > 0 else 0.0
        elapsed = monotonic() - began
        rate = (self._done - before) / elapsed if elapsed > _SOON_S else 0.0
        words = f"{share:4.0%}  {self._said(self._done)} of {self._said(self._total)}" if self._total > 0 else ""
        if rate > 0:
            words += f"  {self._said(rate)}/s  {span(max(0, self._total - self._done) / rate)} left"
        room = max(0, width - cell_width(words) - len(_END) - 6)
        filled = int(room * share)
        bar = "━" * filled + ("╸" if filled < room else "")
        return line(("   ", Tone.FAINT), (bar, Tone.ACCENT), ("─" * (room - len(bar)), Tone.FAINT), f"  {words}", (_END, Tone.DIM))
