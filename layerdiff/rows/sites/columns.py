"""The columns of the table of sites, and how they share the width of a screen."""

from __future__ import annotations

from typing import Final, NamedTuple

from layerdiff.judge.tables import Verdict
from layerdiff.rows.cells import fit
from layerdiff.rows.figures import FIGURE_CELLS, RATIO_CELLS
from layerdiff.rows.tones import MARKS, Line, Tone, line

_GAP: Final = 2
_RATIO: Final = "worst ×"
"""A parent shows the worst of all calls inside it, beside its own difference."""
_WIDE: Final = 100
"""From here on verdict and finding have a column each."""


class Columns(NamedTuple):
    """Widths in cells. `verdict` is 0 where verdict and finding share one column, `ratio` where there is no room."""

    width: int
    site: int
    difference: int
    ratio: int
    verdict: int
    finding: int


def columns(width: int, codes: tuple[int, ...] = ()) -> Columns:
    """Share `width` cells; the verdict column is as wide as the longest word among the verdicts `codes` that occur."""
    width = max(width, 16)
    words = [len(MARKS[Verdict(code)].word) for code in codes if code in Verdict._value2member_map_]
    verdict = 2 + max(words, default=9) if width >= _WIDE else 0
    ratio = 0 if width < 64 else RATIO_CELLS if width < _WIDE else RATIO_CELLS + 2
    difference = FIGURE_CELLS if width >= 40 else 0
    fixed = sum(w + _GAP for w in (difference, ratio, verdict) if w)
    rest = width - fixed
    site = max(12, min(rest * 19 // 40, 72)) if width >= 40 else rest * 2 // 3
    return Columns(width, site, difference, ratio, verdict, max(0, rest - site - _GAP))


def heading(widths: Columns, *, listed: str | None = None) -> Line:
    """The line above the table; `listed` names the order of a flat view."""
    gap = " " * _GAP
    cells = [fit("site" if listed is None else f"site, {listed}", widths.site)]
    if widths.difference:
        cells.append(fit("rel L2", widths.difference, align="right"))
    if widths.ratio:
        cells.append(fit(_RATIO, widths.ratio, align="right"))
    if widths.verdict:
        cells += [fit("verdict", widths.verdict), fit("finding", widths.finding)]
    else:
        cells.append(fit("verdict, finding", widths.finding))
    return line((gap.join(cells), Tone.DIM))
