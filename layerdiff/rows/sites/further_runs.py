"""What a second run of the target, and a baseline, say in a line each; and the calls at which the target is worst beside the baseline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from layerdiff.judge.baseline import ratios, worst_output
from layerdiff.judge.tables import Again, Verdict
from layerdiff.rows.figures import amount, count, ratio
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind


class Beside(NamedTuple):
    """One call of the target beside the baseline's."""

    site: str
    step: int
    target: float
    baseline: float
    ratio: float


def second_run(comparison: Comparison) -> str | None:
    """`12 of 340 calls differ from the first run, 2 of them nondeterministic`; None without a second run."""
    if comparison.again is None:
        return None
    codes = comparison.sites["again"]
    compared, differ = int(np.sum(codes > Again.UNKNOWN)), int(np.sum(codes >= Again.DIFFERS))
    if not differ:
        return f"all {amount(compared, 'call')} have the same bits as in the first run"
    noisy = int(np.sum(comparison.sites["verdict"] == Verdict.NONDETERMINISTIC))
    return f"{count(differ)} of {amount(compared, 'call')} differ from the first run, {count(noisy)} of them nondeterministic"


def against_baseline(comparison: Comparison) -> str | None:
    """How far the target is from the reference, in differences of the baseline: median, results of the run, largest; None without one."""
    if comparison.baseline is None:
        return None
    found = ratios(comparison.sites, comparison.pairs)
    known = np.flatnonzero(~np.isnan(found))
    if not known.size:
        return "no call has a difference of both to hold against each other"
    said = f"the target is {ratio(float(np.median(found[known])))} as far from the reference (median of {amount(int(known.size), 'call')})"
    roots = known[(comparison.sites["parent"][known] < 0) & (comparison.sites["kind"][known] == CallKind.MODULE)]
    if roots.size:
        said += f", {ratio(float(np.max(found[roots])))} in what the model returns"
    worst = worst_beside(comparison, 1)[0]
    return f"{said}, at most {ratio(worst.ratio)} at {worst.site or 'the root'}"


def worst_beside(comparison: Comparison, most: int) -> list[Beside]:
    """The calls with the largest ratios, at most so many, largest first; equals in the order of the run."""
    sites = comparison.sites
    found, target = ratios(sites, comparison.pairs), worst_output(sites, comparison.pairs)
    known = np.flatnonzero(~np.isnan(found))
    rows = known[np.argsort(-found[known], kind="stable")][:most].tolist()
    return [
        Beside(
            comparison.texts[int(sites["site"][row])] or "",
            int(sites["step"][row]),
            float(target[row]),
            float(sites["baseline_rel_l2"][row]),
            float(found[row]),
        )
        for row in rows
    ]
