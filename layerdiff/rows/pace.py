"""A bar with rate and time left, one line, in any width."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from layerdiff.rows.cells import cell_width
from layerdiff.rows.figures import count, span
from layerdiff.rows.tones import Line, Tone, line

_SOON_S: Final = 0.2
"""Before that nobody knows a rate."""
_LEAST_LEFT_S: Final = 0.5
"""Less than that is no time left to speak of, and what takes longer than it was to says nothing more of it."""
_MOVING: Final = 6
"""Cells of what moves where no total is known."""
_CELLS_A_SECOND: Final = 8
_END: Final = "  esc stops "


class Pace:
    """How far something is, and how fast it goes; of a total that nobody knows there is neither share nor time left."""

    def __init__(self, said: Callable[[float], str] = lambda number: count(round(number))) -> None:
        """`said`: an amount in words."""
        self._said = said
        self._began: tuple[float, int] | None = None
        self._done, self._told = 0, 0.0
        self._total: int | None = None

    def to(self, done: int, total: int | None) -> None:
        """It is `done` of `total` now."""
        now = monotonic()
        if self._began is None or done < self._done:
            self._began = (now, done)
        self._done, self._total, self._told = done, total, now

    def line(self, width: int) -> Line:
        """`━━━━━╸────   43%  412 MB of 1.2 GB  310 MB/s  3 s left  esc stops`."""
        now = monotonic()
        began, before = self._began or (now, 0)
        words = self._words(now, began, before)
        room = max(0, width - cell_width(words) - len(_END) - 6)
        if self._began is not None and not self._total:
            at = int((now - began) * _CELLS_A_SECOND) % max(1, room - _MOVING + 1)
            bar = [("─" * at, Tone.FAINT), ("━" * min(room, _MOVING), Tone.ACCENT), ("─" * max(0, room - at - _MOVING), Tone.FAINT)]
        else:
            filled = int(room * min(1.0, self._done / self._total)) if self._total else 0
            text = "━" * filled + ("╸" if filled < room else "")
            bar = [(text, Tone.ACCENT), ("─" * (room - len(text)), Tone.FAINT)]
        return line(("   ", Tone.FAINT), *bar, f"  {words}", (_END, Tone.DIM))

    def _words(self, now: float, began: float, before: int) -> str:
        if self._began is None:
            return ""
        elapsed, until = now - began, self._told - began
        rate = (self._done - before) / until if until > _SOON_S else 0.0
        speed = f"  {self._said(rate)}/s" if rate > 0 else ""
        if not self._total:
            return f"{self._said(self._done)} so far{speed}  for {span(elapsed)}" if elapsed > _SOON_S else ""
        words = f"{min(1.0, self._done / self._total):4.0%}  {self._said(self._done)} of {self._said(self._total)}{speed}"
        left = max(0, self._total - self._done) / rate - (now - self._told) if rate > 0 else 0.0
        return f"{words}  {span(left)} left" if left >= _LEAST_LEFT_S else words
