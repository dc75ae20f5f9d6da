"""The full set of numbers of one pair, for display. It never decides a verdict.

Everything comes from differences: the cosine distance too, since 1 - cos of two nearly equal values
is lost in the rounding of their dot product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.blocks import Blocks, side_by_side
from layerdiff.measure.integers import EXACT_KINDS, INTEGER_BLOCK, distances, exact
from layerdiff.measure.parts import Part, numbers_per_element, parts, quiet
from layerdiff.measure.sums import SquareSum, dot
from layerdiff.measure.ulps import Histogram, places
from layerdiff.measure.ulps import distances as ulp_distances
from layerdiff.trace.dtypes import Dtype

FULL_BLOCK: Final = 1 << 16
"""Small enough to stay near the core, and large enough for some thirty calls into numpy to cost little.

An allocation of this size may be a system call, so the arrays of every block are made once and kept."""
_CLOSE: Final = 0.1
"""Where |d|^2 is under this times |r|^2, the cosine distance comes from d."""


@dataclass(frozen=True)
class Full:
    """Numbers over elements finite on both sides; nan where there is none, or where a type has no such number."""

    count: int
    """Elements compared (real numbers, of which a complex element is two)."""
    left_out: int
    """Elements not compared: a side is not finite, or a mask forbids them on both sides."""
    max_abs: float
    mean_abs: float
    rms: float
    """Of target - reference."""
    rel_l2: float
    cosine_distance: float
    """1 - cos of the angle between the two as vectors, from 0 to 2."""
    worst: int
    """Flat row-major index of `max_abs`, -1 for no difference."""
    mismatched: int
    """How many differ."""
    max_rel: float
    """max |target - reference| / |reference|; inf where the reference is zero and the target is not."""
    ulp_dtype: str | None
    """The coarser dtype of the two, in whose units in the last place distances are counted; None for no floats."""
    max_ulps: int
    """-1 without floats."""
    ulp_histogram: tuple[int, ...]
    """How many distances are 0, 1, 2 to 3, 4 to 7, ...: up to the last bucket that is not empty."""


@quiet
def full(reference: Blocks, target: Blocks) -> Full:
    """Measure one pair of values of equal shape and of any dtypes but those without numbers.

    Raises ValueError where the two do not hold equally many elements, or a dtype has no numbers.
    """
    if "bits" in (reference.dtype.kind, target.dtype.kind):
        raise ValueError(f"{reference.dtype.name} against {target.dtype.name}: a type without numbers has only equality")
    sums = _Sums(_coarser(reference.dtype, target.dtype))
    if reference.dtype.kind in EXACT_KINDS and target.dtype.kind in EXACT_KINDS:
        for start, ours, theirs in side_by_side(reference, target, INTEGER_BLOCK):
            sums.add(_exact_part(start, exact(ours, reference.dtype), exact(theirs, target.dtype)))
    else:
        for part in parts(reference, target, FULL_BLOCK):
            sums.add(part)
    return sums.result(numbers_per_element(reference, target))


def _coarser(reference: Dtype, target: Dtype) -> Dtype | None:
    """The side with the larger roundoff; None where neither is a float."""
    known = [dtype for dtype in (reference, target) if dtype.unit_roundoff is not None]
    return max(known, key=lambda dtype: dtype.unit_roundoff or 0.0, default=None)


def _exact_part(start: int, reference: NDArray[np.int64], target: NDArray[np.int64]) -> Part:
    """Integers as a part: the distance is exact, the sides are rounded once to float64."""
    apart, r, t = distances(reference, target), reference.astype(np.float64), target.astype(np.float64)
    size = np.abs(r)
    return Part(start, r, t, np.where(t < r, -apart, apart), apart, size, float(apart.max()), float(size.max()))


class _Sums:
    """What has been summed so far. A part's own arrays are the room to work in: they are written over."""

    def __init__(self, ulp_dtype: Dtype | None) -> None:
        self._ulp_dtype = ulp_dtype
        self._difference, self._reference, self._target = SquareSum(), SquareSum(), SquareSum()
        self._cross = self._product = self._absolute = self._largest = 0.0
        self._max_rel = -math.inf
        self._worst, self._count, self._left_out, self._mismatched, self._max_ulps = -1, 0, 0, 0, -1
        self._histogram = Histogram()
        self._ones, self._differs = np.ones(0, np.float32), np.zeros(0, bool)

    def add(self, part: Part) -> None:
        compared = part.compared
        left_out = part.reference.size - compared
        self._count += compared
        self._left_out += left_out
        self._angle(part)
        if part.largest_difference == 0.0:
            if self._ulp_dtype is not None:
                self._max_ulps = max(self._max_ulps, 0)
                self._histogram.add_zeros(compared)
            return
        if self._ones.size < part.reference.size or self._ones.dtype != part.reference.dtype:
            self._ones, self._differs = np.ones_like(part.reference), np.empty(part.reference.size, bool)
        self._absolute += dot(part.distance, self._ones[: part.reference.size])
        if part.largest_difference > self._largest:
            self._largest, self._worst = part.largest_difference, part.start + int(part.distance.argmax())
        self._mismatched += int(np.count_nonzero(np.greater(part.distance, 0.0, out=self._differs[: part.distance.size])))
        largest_ratio = self._ratio(part)
        if self._ulp_dtype is not None:
            self._ulps(part, self._ulp_dtype, one_sign=largest_ratio < 1.0)
            self._histogram.add_zeros(-left_out)

    def _angle(self, part: Part) -> None:
        """Squares and products. Of close sides those of the target follow from the others, without loss."""
        r, t, d = part.reference, part.target, part.difference
        squares_r = self._reference.add(r, part.largest_reference)
        squares_d = self._difference.add(d, part.largest_difference)
        cross = dot(d, r) if squares_d else 0.0
        self._cross += cross
        if squares_d < _CLOSE * squares_r < math.inf:
            self._target.add_sum(squares_r + 2 * cross + squares_d)
            self._product += squares_r + cross
        else:
            self._target.add(t, max(part.largest_difference, part.largest_reference))
            self._product += dot(t, r)

    def _ratio(self, part: Part) -> float:
        """The largest |difference| / |reference| of a part; nan where a 0/0 is among them."""
        ratio = np.divide(part.distance, part.size, out=part.size)
        largest = found = float(np.maximum.reduce(ratio))
        if math.isnan(found):
            largest = float(np.fmax.reduce(ratio))
        if not math.isnan(largest):
            self._max_rel = max(self._max_rel, largest)
        return found

    def _ulps(self, part: Part, dtype: Dtype, *, one_sign: bool) -> None:
        """Sides of which one is no further from the other than that is from zero have `one_sign`."""
        reference, target = places(part.reference, dtype), places(part.target, dtype)
        room = part.difference.view(reference.dtype)[: reference.size]
        distance = ulp_distances(reference, target, room, one_sign=one_sign)
        largest = int(np.maximum.reduce(distance))
        self._max_ulps = max(self._max_ulps, largest)
        self._histogram.add(distance, largest)

    def result(self, width: int) -> Full:
        none = self._count == 0
        histogram = self._histogram.counts()
        last = int(np.flatnonzero(histogram)[-1]) + 1 if histogram.any() else 0
        return Full(
            count=self._count,
            left_out=self._left_out,
            max_abs=math.nan if none else self._largest,
            mean_abs=math.nan if none else self._absolute / self._count,
            rms=math.nan if none else self._difference.root(self._count),
            rel_l2=math.nan if none else self._difference.relative_to(self._reference),
            cosine_distance=self._cosine_distance(),
            worst=self._worst // width,
            mismatched=self._mismatched,
            max_rel=math.nan if none else max(self._max_rel, 0.0),
            ulp_dtype=None if self._ulp_dtype is None else self._ulp_dtype.name,
            max_ulps=self._max_ulps,
            ulp_histogram=tuple(histogram[:last].tolist()),
        )

    def _cosine_distance(self) -> float:
        """1 - cos; of values that are close, (|d|^2 - (|t| - |r|)^2) / (2 |r| |t|), where |t| - |r| = (|d|^2 + 2 d.r) / (|t| + |r|)."""
        if self._difference.exponent or self._reference.exponent or self._target.exponent:
            return math.nan
        difference = self._difference.total
        r, t = math.sqrt(self._reference.total), math.sqrt(self._target.total)
        if r == 0.0 or t == 0.0:
            return math.nan
        if difference < _CLOSE * r * r:
            longer = (difference + 2 * self._cross) / (r + t)
            distance = (difference - longer**2) / (2 * r * t)
        else:
            distance = 1.0 - self._product / (r * t)
        return min(max(distance, 0.0), 2.0)
