"""The full set of numbers of one pair, for display. It never decides a verdict.

Everything comes from differences: the cosine distance too, since 1 - cos of two nearly equal values
is lost in the rounding of their dot product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.blocks import Blocks, side_by_side
from layerdiff.measure.integers import EXACT_KINDS, INTEGER_BLOCK, distances, exact
from layerdiff.measure.parts import Part, numbers_per_element, parts
from layerdiff.measure.sums import SquareSum, dot
from layerdiff.measure.ulps import BUCKETS, histogram, places
from layerdiff.measure.ulps import distances as ulp_distances
from layerdiff.trace.dtypes import Dtype

FULL_BLOCK: Final = 1 << 15
"""An allocation of this size may be a system call, so the arrays of every block are made once and kept."""
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
    """How many differ by more than atol + rtol * |reference|."""
    rtol: float
    atol: float
    max_rel: float
    """max |target - reference| / |reference|; inf where the reference is zero and the target is not."""
    ulp_dtype: str | None
    """The coarser dtype of the two, in whose units in the last place distances are counted; None for no floats."""
    max_ulps: int
    """-1 without floats."""
    ulp_histogram: tuple[int, ...]
    """How many distances are 0, 1, 2 to 3, 4 to 7, ...: up to the last bucket that is not empty."""


def full(reference: Blocks, target: Blocks, *, rtol: float = 0.0, atol: float = 0.0) -> Full:
    """Measure one pair of values of equal shape and of any dtypes but those without numbers.

    Raises ValueError where the two do not hold equally many elements, or a dtype has no numbers.
    """
    if "bits" in (reference.dtype.kind, target.dtype.kind):
        raise ValueError(f"{reference.dtype.name} against {target.dtype.name}: a type without numbers has only equality")
    sums = _Sums(rtol, atol, _coarser(reference.dtype, target.dtype))
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
    def __init__(self, rtol: float, atol: float, ulp_dtype: Dtype | None) -> None:
        self._rtol, self._atol, self._ulp_dtype = rtol, atol, ulp_dtype
        self._difference, self._reference, self._target = SquareSum(), SquareSum(), SquareSum()
        self._cross = self._product = self._absolute = self._largest = 0.0
        self._max_rel = -math.inf
        self._worst, self._count, self._left_out, self._mismatched, self._max_ulps = -1, 0, 0, 0, -1
        self._histogram = np.zeros(BUCKETS, np.int64)
        self._ones = self._limit = np.ones(0, np.float32)
        self._exceeds = np.zeros(0, bool)
        self._apart, self._buckets = np.zeros((2, 0), np.uint32), np.zeros(0, np.intp)

    def add(self, part: Part) -> None:
        r, t, d = part.reference, part.target, part.difference
        left_out = r.size - part.compared
        self._count += r.size - left_out
        self._left_out += left_out
        self._difference.add(d, part.largest_difference)
        self._reference.add(r, part.largest_reference)
        self._target.add(t, max(part.largest_difference, part.largest_reference))
        self._cross += dot(d, r)
        self._product += dot(t, r)
        size, distance = part.size, part.distance
        self._make_room(r)
        self._absolute += dot(distance, self._ones[: r.size])
        if part.largest_difference > self._largest:
            self._largest, self._worst = part.largest_difference, part.start + int(distance.argmax())
        if part.largest_difference > self._atol:
            limit = np.multiply(size, self._rtol, out=self._limit[: r.size])
            limit += self._atol
            self._mismatched += int(np.count_nonzero(np.greater(distance, limit, out=self._exceeds[: r.size])))
        self._relative(distance, size)
        if self._ulp_dtype is not None:
            self._ulps(part, self._ulp_dtype, left_out)

    def _make_room(self, like: NDArray[Any]) -> None:
        if self._ones.size < like.size or self._ones.dtype != like.dtype:
            self._ones, self._limit, self._exceeds = np.ones_like(like), np.empty_like(like), np.empty(like.size, bool)

    def _relative(self, distance: NDArray[np.float64], size: NDArray[np.float64]) -> None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            largest = float(np.fmax.reduce(np.divide(distance, size, out=size)))  # 0/0 is nan, and never the larger
        if not math.isnan(largest):
            self._max_rel = max(self._max_rel, largest)

    def _ulps(self, part: Part, dtype: Dtype, left_out: int) -> None:
        reference, target = places(part.reference, dtype), places(part.target, dtype)
        if self._apart.shape[1] < reference.size or self._apart.dtype != reference.dtype:
            self._apart, self._buckets = np.empty((2, reference.size), reference.dtype), np.empty(reference.size, np.intp)
        distance = ulp_distances(reference, target, self._apart)
        largest = int(distance.max())
        self._max_ulps = max(self._max_ulps, largest)
        self._histogram += histogram(distance, largest, self._buckets)
        self._histogram[0] -= left_out

    def result(self, width: int) -> Full:
        none = self._count == 0
        last = int(np.flatnonzero(self._histogram)[-1]) + 1 if self._histogram.any() else 0
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
            rtol=self._rtol,
            atol=self._atol,
            max_rel=math.nan if none else max(self._max_rel, 0.0),
            ulp_dtype=None if self._ulp_dtype is None else self._ulp_dtype.name,
            max_ulps=self._max_ulps,
            ulp_histogram=tuple(self._histogram[:last].tolist()),
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
