"""A judgement seen through the tree: the worst verdict of every subtree, its origins, and each site's numbers.

One pass over the columns for each judgement; nothing here depends on what is unfolded. A parent shows the
worst of its calls and is no origin itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import Columns, Source, Verdict, is_fit
from layerdiff.rows.sites.tree import Ints, Tree
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import Role


@dataclass(frozen=True, eq=False, repr=False)
class Judged:
    """Columns over places (shape (n,)) of one comparison."""

    own: NDArray[np.uint8]
    """Verdict of the call itself."""
    worst: NDArray[np.uint8]
    """Verdict of the call and all calls inside it, rolled up."""
    origins_upto: Ints
    """Shape (n + 1,): how many origins lie at places before this one."""
    incomparable_upto: Ints
    """Shape (n + 1,): how many calls before this place are not comparable."""
    ratio: NDArray[np.float64]
    """measured / allowed of the call itself; nan if unknown or the figure of a fit, inf where nothing was allowed."""
    difference: NDArray[np.float64]
    """Largest relative L2 difference of its outputs; 0 for the same bits, nan if unknown, inf where only one side is finite."""
    estimated: NDArray[np.bool_]
    """`difference` is from recorded statistics."""
    origin_at: dict[int, Origin]
    """By place, in execution order; the worst one where a call has several."""
    statement: NDArray[np.int32]
    """Index into the texts, -1 for none."""
    codes: tuple[int, ...]
    """Verdicts that occur in `worst`."""

    def origins_inside(self, place: int, end: int) -> int:
        """Origins in the places `place..end`, one past the last."""
        return int(self.origins_upto[end] - self.origins_upto[place])

    def incomparable_inside(self, place: int, end: int) -> int:
        """Calls that are not comparable in the places `place..end`, one past the last."""
        return int(self.incomparable_upto[end] - self.incomparable_upto[place])

    def tally(self, place: int, end: int) -> list[tuple[Verdict, int]]:
        """How many calls in a range of places have which verdict, the worst first."""
        counts = np.bincount(self.own[place:end], minlength=256)
        return [(verdict, int(counts[verdict])) for verdict in sorted(Verdict, reverse=True) if counts[verdict]]

    def worst_ratio(self, place: int, end: int) -> float | None:
        """The largest measured / allowed in a range of places; None if nothing is known."""
        part = self.ratio[place:end]
        known = part[~np.isnan(part)]
        return float(known.max()) if known.size else None


def _rolled(own: NDArray[np.uint8], tree: Tree) -> NDArray[np.uint8]:
    """The maximum over each subtree; what is only counted beside (100 and above) never wins over a verdict."""
    worst: NDArray[np.uint8] = own.copy()
    inner = np.flatnonzero(tree.end > np.arange(len(tree)) + 1)
    ends = tree.end[inner]
    running = np.zeros(len(own) + 1, np.int64)
    codes = np.flatnonzero(np.bincount(own, minlength=256))
    for code in [*codes[codes >= Verdict.NOT_COMPARABLE][::-1], *codes[codes < Verdict.NOT_COMPARABLE]]:
        np.cumsum(own == code, out=running[1:])
        worst[inner[running[ends] > running[inner]]] = code
    return worst


def _differences(sites: Columns, pairs: Columns, count: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Per row of the table of sites: the largest difference of its outputs, and whether it is an estimate."""
    difference = np.full(count, np.nan)
    estimated = np.zeros(count, np.bool_)
    site = np.asarray(pairs["site"])
    if site.size:
        outputs = np.flatnonzero((np.asarray(pairs["role"]) == Role.OUTPUT) & (site >= 0) & (site < count))
        source = np.asarray(pairs["source"])[outputs]
        value = np.asarray(pairs["rel_l2"])[outputs].astype(np.float64, copy=False)
        statistic = source == Source.STATISTICS
        value[statistic] = np.asarray(pairs["statistic"])[outputs][statistic]
        value[np.asarray(pairs["equal"])[outputs] == 1] = 0.0
        value[np.asarray(pairs["nonfinite_differ"])[outputs] > 0] = np.inf
        value[np.isin(source, (Source.NOTHING, Source.PENDING))] = np.nan
        known = ~np.isnan(value)
        site = site[outputs]
        if not known.all():
            site, value, statistic = site[known], value[known], statistic[known]
        if site.size and np.all(site[1:] > site[:-1]):
            difference[site], estimated[site] = value, statistic
        else:
            floor = np.full(count, -1.0)
            np.maximum.at(floor, site, value)
            difference = np.where(floor < 0, np.nan, floor)
            estimated[site[statistic]] = True
    identical = np.asarray(sites["verdict"]) == Verdict.IDENTICAL
    difference[identical & np.isnan(difference)] = 0.0
    return difference, estimated


def _ratios(comparison: Comparison) -> NDArray[np.float64]:
    sites = comparison.sites
    measured, allowed, rules = np.asarray(sites["measured"]), np.asarray(sites["allowed"]), np.asarray(sites["rule"])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = measured.astype(np.float64) / allowed.astype(np.float64)
    ratio[(measured == 0) & (allowed >= 0)] = 0.0
    used = np.flatnonzero(np.bincount(rules[rules >= 0], minlength=1)).tolist()
    fits = [rule for rule in used if is_fit(comparison.texts[rule])]
    if fits:
        ratio[np.isin(rules, fits) & (ratio <= 1)] = np.nan
    out: NDArray[np.float64] = ratio
    return out


def judged(comparison: Comparison, tree: Tree) -> Judged:
    """What one comparison says, over the places of its tree."""
    sites, n = comparison.sites, len(tree)
    own = tree.by_place(np.asarray(sites["verdict"], np.uint8))
    worst = _rolled(own, tree)
    difference, estimated = _differences(sites, comparison.pairs, n)

    origin_at: dict[int, Origin] = {}
    for origin in comparison.origins:
        if 0 <= origin.row < n:
            place = int(tree.place_of[origin.row])
            if place not in origin_at or origin_at[place].verdict < origin.verdict:
                origin_at[place] = origin
    origin_at = dict(sorted(origin_at.items()))
    upto = np.zeros(n + 1, np.int64)
    upto[np.fromiter(origin_at, np.int64, len(origin_at)) + 1] = 1
    np.cumsum(upto, out=upto)

    incomparable = np.zeros(n + 1, np.int64)
    np.cumsum(own == Verdict.NOT_COMPARABLE, out=incomparable[1:])

    return Judged(
        own=own,
        worst=worst,
        origins_upto=upto,
        incomparable_upto=incomparable,
        ratio=tree.by_place(_ratios(comparison)),
        difference=tree.by_place(difference),
        estimated=tree.by_place(estimated),
        origin_at=origin_at,
        statement=tree.by_place(np.asarray(sites["statement"], np.int32)),
        codes=tuple(int(code) for code in np.flatnonzero(np.bincount(worst, minlength=256))),
    )
