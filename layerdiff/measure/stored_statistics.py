"""Two values of which a side kept no bytes: what their recorded statistics can and cannot say.

Every number here is a lower bound. Statistics that agree prove nothing: only equal fingerprints of
one dtype say that the bits are equal.
"""

from __future__ import annotations

import math
from typing import TypedDict

from layerdiff.measure.masks import lowest_is_forbidden
from layerdiff.sides import Both
from layerdiff.trace.schema import Statistics

Fingerprint = tuple[int, int]


class StatisticsNumbers(TypedDict):
    """Columns of a pair of which only statistics are compared."""

    equal: int
    """1: equal fingerprints and dtypes. 0 says that the bits differ only where both fingerprints are known."""
    statistic: float
    """The values are at least this different, relative to the reference's rms (rms, mean) or largest magnitude (minimum, maximum)."""
    rms_reference: float
    max_reference: float
    nonfinite_reference: int
    nonfinite_target: int
    nonfinite_differ: int
    """At least this many elements are of another class (finite, nan, inf, -inf)."""


def compare_statistics(
    reference: Statistics, target: Statistics, *, fingerprints: Both[Fingerprint | None], dtypes: Both[str]
) -> StatisticsNumbers:
    """Compare the statistics of two values of equal shape; each field of the answer is a column of the pair.

    The difference of two rms, or of two means, over the reference's rms is at most the relative L2
    difference; that of two minima or maxima over the largest magnitude at most the largest
    difference over it. Statistics cover finite elements, so with other elements on the two sides they
    are no strict bound. A mask that is -inf on one side and the lowest number on the other is
    compared by its maximum alone.
    """
    equal = None not in (fingerprints.reference, fingerprints.target) and fingerprints.reference == fingerprints.target
    equal = equal and dtypes.reference == dtypes.target
    largest = _largest(reference)
    masked = _masks_written_differently(reference, target, dtypes)
    statistic = 0.0
    if not equal:
        bounds = [_apart(reference.maximum, target.maximum, largest)]
        if not masked:
            bounds.append(_apart(reference.minimum, target.minimum, largest))
            bounds += [_apart(ours, theirs, reference.rms) for ours, theirs in ((reference.rms, target.rms), (reference.mean, target.mean))]
        statistic = max(bounds)
    return {
        "equal": int(equal),
        "statistic": statistic,
        "rms_reference": reference.rms,
        "max_reference": largest,
        "nonfinite_reference": _nonfinite(reference),
        "nonfinite_target": _nonfinite(target),
        "nonfinite_differ": 0 if equal else _of_another_class(reference, target, ignore_neginf=masked),
    }


def _apart(reference: float, target: float, scale: float) -> float:
    """|target - reference| / scale; 0 where a side has no finite element, which the counts of classes show."""
    if math.isnan(reference) or math.isnan(target) or reference == target:
        return 0.0
    return abs(target - reference) / scale if scale > 0 else math.inf


def _largest(statistics: Statistics) -> float:
    return max(abs(statistics.minimum), abs(statistics.maximum))


def _nonfinite(statistics: Statistics) -> int:
    return statistics.nan + statistics.posinf + statistics.neginf


def _of_another_class(reference: Statistics, target: Statistics, *, ignore_neginf: bool) -> int:
    """Half the distance of the two counts of classes, the finite included: the fewest elements that must have changed."""
    neginf = 0 if ignore_neginf else target.neginf - reference.neginf
    changes = [target.nan - reference.nan, target.posinf - reference.posinf, neginf]
    return (sum(map(abs, changes)) + abs(sum(changes))) // 2


def _masks_written_differently(reference: Statistics, target: Statistics, dtypes: Both[str]) -> bool:
    """Whether one side holds -inf where the other holds the lowest number of its dtype."""
    lowest = Both(lowest_is_forbidden(reference.minimum, dtypes.reference), lowest_is_forbidden(target.minimum, dtypes.target))
    if reference.neginf and lowest.target and not lowest.reference:
        return True
    if target.neginf and lowest.reference and not lowest.target:
        return True
    return lowest.reference and lowest.target and dtypes.reference != dtypes.target
