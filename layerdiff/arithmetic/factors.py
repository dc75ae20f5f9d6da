"""One factor for all elements: the exact test for a wrong scale.

Every element, with its rounding interval, leaves an interval of factors that would make it; a fault of scale leaves one
that all share. A regression only estimates the factor, and a bf16 result then fails by its own error.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import interval
from layerdiff.arithmetic.residual import FEW_TERMS, Residual

_SIGMAS: Final = 8.0
_FEW: Final = 20


def common_factor(residual: Residual, part: NDArray[np.float64], rest: NDArray[np.float64]) -> tuple[float, float, int] | None:
    """The factors f for which rest + f * part rounds to every recorded element, within 8 sigma; None where there are none.

    Returns:
        lowest, highest, and how many elements decide. A factor that the elements fix no better than its distance from 1 is none.
    """
    live = residual.live & (part != 0) & np.isfinite(part)
    count = int(live.sum())
    if count < _FEW:
        return None
    size, recorded = part[live], residual.recorded[live]
    low, high = interval(recorded, residual.format)
    slack = residual.bound[live] if residual.terms < FEW_TERMS else _SIGMAS * residual.sigma[live]
    base = np.broadcast_to(rest, part.shape)[live]
    ends = np.sort(np.stack([(low - slack - base) / size, (high + slack - base) / size]), axis=0)
    lowest, highest = float(np.max(ends[0])), float(np.min(ends[1]))
    if not lowest <= highest or lowest <= 1.0 <= highest or highest - lowest > abs(0.5 * (lowest + highest) - 1.0):
        return None
    others = residual.live & (part == 0)
    if np.any(others) and not _unmoved(residual, np.broadcast_to(rest, part.shape), others):
        return None
    return lowest, highest, count


def _unmoved(residual: Residual, rest: NDArray[np.float64], where: NDArray[np.bool_]) -> bool:
    """Whether elements that no factor reaches are what they should be."""
    low, high = interval(residual.recorded[where], residual.format)
    slack = np.maximum(residual.bound[where], 0.0)
    return bool(np.all((rest[where] >= low - slack) & (rest[where] <= high + slack)))
