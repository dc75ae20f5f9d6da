"""`Unfinished`: what a comparison in the making cannot say yet, because a later stage may withdraw it: it waits, as pending.

Thresholds convict a call before the calls inside it are measured, and before its program is judged; either may turn out to be the
one to blame. What waits is never a defect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import BY_THRESHOLDS, Columns, Verdict


@dataclass(frozen=True)
class Unfinished:
    """How far a comparison is."""

    measured: bool
    """Whether all values are."""
    waits: NDArray[np.bool_]
    """Rows of sites whose programs are to be judged still."""

    def open_rows(self, sites: Columns) -> NDArray[np.bool_]:
        """Which judged rows have to wait. Shape (sites,)."""
        verdict = np.asarray(sites["verdict"])
        worse = (verdict >= Verdict.RECONVERGES) & (verdict < Verdict.NOT_COMPARABLE) & (np.asarray(sites["exact"]) == BY_THRESHOLDS)
        found: NDArray[np.bool_] = worse & (self.waits | _around(verdict == Verdict.PENDING, np.asarray(sites["parent"])))
        return found


def stopped(sites: Columns) -> Unfinished | None:
    """Of a comparison that was stopped on the way: what waits, waits for good. None where nothing does."""
    waits = np.asarray(sites["verdict"]) == Verdict.PENDING
    return Unfinished(False, waits) if waits.any() else None


def _around(inside: NDArray[np.bool_], parent: NDArray[Any]) -> NDArray[np.bool_]:
    """The rows that enclose one of `inside`, all the way up."""
    found = np.zeros(len(inside), bool)
    above = np.unique(parent[inside])
    while (above := above[above >= 0]).size:
        above = above[~found[above]]
        found[above] = True
        above = np.unique(parent[above])
    return found
