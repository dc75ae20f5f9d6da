"""Difference by depth: what the curve above the tree draws.

Sites of one step stand in the order in which their outputs were made, so an enclosing call stands where
it ends. A bucket (one column of the drawing) holds the worst of its sites. `allowed` is on the same axis
whatever the rule: the difference at which a site would be exactly at its allowance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.names import Names
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.sites.tree import Ints


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """One step of a comparison in `len(difference)` buckets."""

    step: int
    difference: NDArray[np.float64]
    """Largest relative L2 difference; 0 where all bits are the same, nan where nothing is known or no site falls."""
    broken: NDArray[np.bool_]
    """A site has elements that are not finite on one side only."""
    allowed: NDArray[np.float64]
    """What is allowed on the same axis; nan where unknown everywhere."""
    origin: NDArray[np.bool_]
    inherited: NDArray[np.bool_]
    """The largest difference came in: the site that has it is right."""
    pending: NDArray[np.bool_]
    """A site of the bucket is not compared yet."""
    rows: Ints
    """For each bucket the row to go to: its origin, else its largest difference; -1 where no site falls."""
    low: int
    high: int
    """The axis, as powers of ten."""
    ticks: tuple[tuple[int, str], ...]
    """(bucket, label) where numbered blocks begin."""
    _ends: Ints
    _tree_end: Ints
    _place_of: Ints

    def bucket(self, row: int) -> int:
        """The bucket of a row of this step."""
        end = self._tree_end[self._place_of[row]] - 1
        return int(np.searchsorted(self._ends, end)) * len(self.difference) // max(1, len(self._ends))

    def reach(self, first: int, last: int) -> tuple[int, int]:
        """The buckets of everything inside the sites of two rows and between them, both ends included."""
        start = int(np.searchsorted(self._ends, self._place_of[first]))
        return start * len(self.difference) // max(1, len(self._ends)), self.bucket(last)

    def heights(self, values: NDArray[np.float64], full: int) -> NDArray[np.int64]:
        """Where differences stand on an axis of `full` steps: at least 1 for any, 0 for none or unknown."""
        known = values > 0
        share = (np.log10(np.where(known, values, 1.0)) - self.low) / (self.high - self.low)
        out: NDArray[np.int64] = np.where(known, np.clip(np.rint(share * full), 1, full), 0).astype(np.int64)
        return out


def curve(rows: Rows, *, step: int, buckets: int) -> Curve:
    """The curve of one step in `buckets` columns. Costs a few passes over the sites of the step."""
    tree, seen, sites = rows.tree, rows.seen, rows.comparison.sites
    places = np.flatnonzero(tree.by_place(np.asarray(sites["step"])) == step)
    ends = tree.end[places] - 1
    bucket = np.searchsorted(places, ends) * buckets // max(1, len(places))

    raw = seen.difference[places]
    broken_here = np.isinf(raw)
    known = np.where(np.isfinite(raw), raw, -1.0)
    difference = np.full(buckets, -1.0)
    np.maximum.at(difference, bucket, known)
    broken = np.zeros(buckets, np.bool_)
    broken[bucket[broken_here]] = True

    with np.errstate(divide="ignore", invalid="ignore"):
        level = raw / seen.ratio[places]
    level = np.where(np.isfinite(level) & (level > 0), level, -1.0)
    allowed = np.full(buckets, -1.0)
    np.maximum.at(allowed, bucket, level)

    is_origin = seen.origins_upto[places + 1] > seen.origins_upto[places]
    origin = np.zeros(buckets, np.bool_)
    origin[bucket[is_origin]] = True
    pending = np.zeros(buckets, np.bool_)
    pending[bucket[seen.own[places] == 101]] = True

    target = np.full(buckets, -1, np.int64)
    weight = np.where(is_origin, np.inf, np.where(broken_here, 1e300, known))
    order = np.argsort(weight, kind="stable")
    target[bucket[order]] = tree.row[places[order]]

    inherited = np.zeros(buckets, np.bool_)
    largest = np.argsort(known, kind="stable")
    inherited[bucket[largest]] = (sites["verdict"][tree.row[places]] == Verdict.INHERITED)[largest]

    difference = np.where(difference < 0, np.nan, difference)
    if buckets > len(places) > 0:
        at = _reaching(target)
        target, difference, inherited = target[at], difference[at], inherited[at]
    low, high = _axis(difference, allowed)
    return Curve(
        step=step, difference=difference, broken=broken, allowed=_filled(allowed), origin=origin, inherited=inherited, pending=pending,
        rows=target, low=low, high=high, ticks=_ticks(rows.names, rows, places, buckets),
        _ends=places, _tree_end=tree.end, _place_of=tree.place_of,
    )  # fmt: skip


def _reaching(target: Ints) -> Ints:
    """Where there are more buckets than sites: each site reaches to the next one, the first one back to the axis."""
    filled = np.flatnonzero(target >= 0)
    return filled[np.maximum(np.searchsorted(filled, np.arange(len(target)), side="right") - 1, 0)]


def _filled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gaps take the value before them, at the beginning the one after."""
    known = np.flatnonzero(values > 0)
    if not known.size:
        return np.full(len(values), np.nan)
    nearest = np.maximum(np.searchsorted(known, np.arange(len(values)), side="right") - 1, 0)
    out: NDArray[np.float64] = values[known[nearest]]
    return out


def _axis(difference: NDArray[np.float64], allowed: NDArray[np.float64]) -> tuple[int, int]:
    """Whole powers of ten around everything drawn, at least three apart."""
    drawn = np.concatenate([difference[difference > 0], allowed[allowed > 0]])
    if not drawn.size:
        return -7, 0
    low = int(np.floor(np.log10(drawn.min()) - 0.3))
    high = int(np.ceil(np.log10(drawn.max()) + 0.05))
    low = max(low, high - 16)
    return min(low, high - 3), high


def _ticks(names: Names, rows: Rows, places: Ints, buckets: int) -> tuple[tuple[int, str], ...]:
    """Labels of the largest numbered family of blocks (`0`, `1`, ... of `layers.N`), as many as fit."""
    if not len(places):
        return ()
    sizes = np.bincount(rows.tree.parent[places] + 1)  # one further, since -1 is the top
    best: list[tuple[int, str]] = []
    for above in (np.argsort(-sizes, kind="stable")[: min(4, np.count_nonzero(sizes))] - 1).tolist():
        family = rows.tree.children(above)
        family = family[rows.tree.end[family] > family + 1]
        if not 3 <= len(family) <= 2000:
            continue
        last = [names.site(int(p)).rsplit(".", 1)[-1] for p in family]
        if sum(name.isdigit() for name in last) == len(last) and len(last) > len(best):
            start = np.searchsorted(places, family)
            best = [(int(s) * buckets // len(places), name) for s, name in zip(start, last, strict=True) if s < len(places)]
    return tuple(best)
