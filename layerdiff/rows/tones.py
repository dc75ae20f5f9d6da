"""What a piece of text is (`Tone`), and the glyph and word of every verdict.

Tones have meanings and no colours: each face has its own palette. Colour is never the only carrier:
every verdict has a glyph and a word of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import numpy as np

from layerdiff.judge.tables import Verdict
from layerdiff.rows.cells import cell_width, shorten


class Tone(Enum):
    """The meaning of a piece of text."""

    PLAIN = auto()
    DIM = auto()
    """Secondary: labels, units, what was folded."""
    FAINT = auto()
    """Rules, guides and other ink that carries no text."""
    STRONG = auto()
    TITLE = auto()
    ACCENT = auto()
    """Keys, and what can be clicked."""
    REFERENCE = auto()
    TARGET = auto()
    SAME = auto()
    """Identical."""
    WITHIN = auto()
    """Differs, within what arithmetic allows."""
    INHERITED = auto()
    NOTICE = auto()
    """Worth a look and no fault: precision, flip, nondeterminism."""
    FAULT = auto()
    BROKEN = auto()
    UNKNOWN = auto()
    """Not comparable, or not judged yet."""
    RANK_0 = auto()
    """What rank 0 holds, and likewise for the others: beyond 7 they begin again, so a digit always stands beside."""
    RANK_1 = auto()
    RANK_2 = auto()
    RANK_3 = auto()
    RANK_4 = auto()
    RANK_5 = auto()
    RANK_6 = auto()
    RANK_7 = auto()


RANKS: Final = tuple(tone for tone in Tone if tone.name.startswith("RANK_"))


def rank_tone(rank: int) -> Tone:
    """The tone of a rank."""
    return RANKS[rank % len(RANKS)]


class Segment(NamedTuple):
    """A run of text in one tone. The text is already safe for a terminal (rows.cells.visible)."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a screen."""

    segments: tuple[Segment, ...] = ()

    @property
    def plain(self) -> str:
        """The text alone."""
        return "".join(segment.text for segment in self.segments)

    @property
    def width(self) -> int:
        """Terminal cells that it takes."""
        return sum(cell_width(segment.text) for segment in self.segments)

    def clipped(self, cells: int) -> Line:
        """The line in at most `cells` cells, with an ellipsis where something is left out."""
        if self.width <= cells:
            return self
        kept: list[Segment] = []
        for segment in self.segments:
            room = cells - sum(cell_width(text) for text, _ in kept)
            if cell_width(segment.text) >= room:
                kept.append(Segment(shorten(segment.text + " " * room, room), segment.tone))
                break
            kept.append(segment)
        return Line(tuple(kept))


def line(*segments: Segment | tuple[str, Tone] | str) -> Line:
    """A Line of segments, `(text, tone)` pairs, or plain strings; empty ones are left out."""
    made = (Segment(s) if isinstance(s, str) else Segment(*s) for s in segments)
    return Line(tuple(segment for segment in made if segment.text))


class Mark(NamedTuple):
    """How a verdict is shown."""

    glyph: str
    word: str
    tone: Tone


MARKS: Final[dict[Verdict, Mark]] = {
    Verdict.IDENTICAL: Mark("=", "identical", Tone.SAME),
    Verdict.INHERITED: Mark("↓", "inherited", Tone.INHERITED),
    Verdict.ORDER_EXACT: Mark("≡", "order-exact", Tone.WITHIN),
    Verdict.ORDER_CONSISTENT: Mark("≈", "order-consistent", Tone.WITHIN),
    Verdict.RECONVERGES: Mark("◇", "reconverges", Tone.NOTICE),
    Verdict.FLIP: Mark("⇅", "flip", Tone.NOTICE),
    Verdict.NONDETERMINISTIC: Mark("~", "nondeterministic", Tone.NOTICE),
    Verdict.PRECISION: Mark("◆", "precision", Tone.NOTICE),
    Verdict.UNEXPLAINED: Mark("?", "unexplained", Tone.FAULT),
    Verdict.DEFECT: Mark("✗", "defect", Tone.FAULT),
    Verdict.BROKEN: Mark("!", "broken", Tone.BROKEN),
    Verdict.NOT_COMPARABLE: Mark("∅", "not-comparable", Tone.UNKNOWN),
    Verdict.PENDING: Mark("·", "pending", Tone.UNKNOWN),
}
_BY_CODE: Final = {int(verdict): mark for verdict, mark in MARKS.items()}
_STRANGE: Final = Mark("∅", "unknown", Tone.UNKNOWN)


def mark(verdict: int | np.integer) -> Mark:
    """The glyph, word and tone of a verdict; a code that this version does not know is `unknown`."""
    return _BY_CODE.get(int(verdict), _STRANGE)
