"""Sums of squares and products that neither overflow nor underflow.

A float32 dot product a block is the fast way and is right for the numbers that models make. Where
its result shows that squares may have left the range of float32, the block is summed in float64, and
scaled by a power of two where float64 is too narrow as well. Overflow is therefore part of the way:
callers silence numpy's warnings around their loops, since doing so a block at a time takes as long as a sum.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LARGEST_EXPONENT: Final = 1023
# A square below the smallest normal number loses at most that number; so long as a sum over n elements
# is n times these, all that was lost is under 1e-8 of it.
_SAFE: Final = {4: 1e-30, 8: 1e-299}


def dot(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Sum of a*b, in float64 where float32 would overflow; for sums whose smallest parts do not matter."""
    found = float(np.dot(a, b))
    if not math.isfinite(found) and a.dtype.itemsize == 4:
        found = float(np.dot(a.astype(np.float64), b.astype(np.float64)))
    return found


class SquareSum:
    """A running sum of squares, `total * 4**exponent`."""

    def __init__(self) -> None:
        self.total = 0.0
        self.exponent = 0

    def add(self, x: NDArray[Any], largest: float) -> float:
        """Add the squares of a float32 or float64 array; no magnitude in it is above `largest`.

        Answers their sum, inf where it had to be scaled.
        """
        if largest == 0.0 or x.size == 0:
            return 0.0
        found = float(np.dot(x, x))
        exponent = 0
        if not self._safe(found, x):
            x = x.astype(np.float64)
            found = float(np.dot(x, x)) if 1e-140 < largest < 1e140 else math.inf
            if not math.isfinite(found):
                largest = float(np.abs(x).max())
                if math.isinf(largest):
                    self.total = math.inf
                    return math.inf
                exponent = math.frexp(largest)[1]
                half = exponent // 2  # two steps: 2**-exponent itself may not be a number
                scaled = np.ldexp(np.ldexp(x, -half), half - exponent)
                found = float(np.dot(scaled, scaled))
        self.add_sum(found, exponent)
        return math.inf if exponent else found

    @staticmethod
    def _safe(found: float, x: NDArray[Any]) -> bool:
        return math.isfinite(found) and found >= x.size * _SAFE[x.dtype.itemsize]

    def add_sum(self, found: float, exponent: int = 0) -> None:
        """Add a sum of squares, `found * 4**exponent`."""
        if found == 0.0:
            return
        if self.total == 0.0 or exponent > self.exponent:
            self.total, self.exponent = math.ldexp(self.total, 2 * max(self.exponent - exponent, -_LARGEST_EXPONENT)), exponent
            self.total += found
        else:
            self.total += math.ldexp(found, 2 * max(exponent - self.exponent, -_LARGEST_EXPONENT))

    def root(self, count: int = 1) -> float:
        """Square root of the sum over `count`; 0 for nothing, inf where that is no float64."""
        return _scaled(math.sqrt(self.total / count), self.exponent) if count else 0.0

    def relative_to(self, other: SquareSum) -> float:
        """sqrt(self / other): 0 where both are 0, inf where only the other is."""
        if self.total == 0.0:
            return 0.0
        if other.total == 0.0:
            return math.inf
        return _scaled(math.sqrt(self.total) / math.sqrt(other.total), self.exponent - other.exponent)


def _scaled(x: float, exponent: int) -> float:
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        return math.inf
