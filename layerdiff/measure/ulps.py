"""Distances in units in the last place, exact across signs and at any width.

The place of a number is how many numbers of its dtype lie between it and zero, with its sign in the
highest bit, as IEEE floats are built. Two of one sign are as far apart as their places differ, two of
opposite signs as their places add up; neither fits a signed integer of the same width, so distances
are unsigned.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.dtypes import Dtype

_FEW_BUCKETS: Final = 5
_TO_BUCKETS: Final = np.float32(2.0**-126)
"""With it the exponent field of a float32 is 1 for 1, k for the numbers from 2**(k-1), and 0 for 0."""
BUCKETS: Final = 65
"""Bucket 0 counts equal numbers, bucket k distances from 2**(k-1) up to 2**k - 1."""


def places(x: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """Places of finite numbers in `dtype`, to which they are rounded first (to nearest, ties to even).

    Args:
        x: float32 or float64.

    Returns:
        uint32, or uint64 for float64: the sign in the highest bit, the distance from zero in the others.
    """
    if dtype.name in ("float64", "complex128"):
        return x.astype(np.float64, copy=False).view(np.uint64)
    if dtype.name in ("float32", "complex64"):
        return x.astype(np.float32, copy=False).view(np.uint32)
    if dtype.name == "float16":
        bits = x.astype(np.float16).view(np.uint16).astype(np.uint32)
        return _signed(bits & 0x7FFF, bits > 0x7FFF)
    if dtype.name == "bfloat16":
        bits = x.astype(np.float32, copy=False).view(np.uint32)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return _signed(((bits & np.uint32(0x7FFFFFFF)) + half) >> np.uint32(16), bits > 0x7FFFFFFF)
    return _by_table(x, dtype)


def _signed(size: NDArray[Any], negative: NDArray[np.bool_]) -> NDArray[Any]:
    found: NDArray[Any] = size.astype(np.uint32) | (negative.astype(np.uint32) << np.uint32(31))
    return found


def _by_table(x: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    values, middles, ties_up = _table(dtype)
    place = np.searchsorted(middles, x.astype(np.float64), side="left")
    tie = (place < middles.size) & (middles[np.minimum(place, middles.size - 1)] == x)
    place = place + (tie & ties_up[np.minimum(place, middles.size - 1)]) - np.searchsorted(values, 0.0)
    return _signed(np.abs(place), np.signbit(x))


@cache
def _table(dtype: Dtype) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """All finite values of an 8-bit float in order, the middle after each but the last, and whether a tie there rounds up."""
    codes = np.arange(256, dtype=np.uint8)
    decoded = dtype.decode(codes).astype(np.float64)
    finite = np.isfinite(decoded)
    values, first = np.unique(decoded[finite], return_index=True)
    even = (codes[finite][first] & 1) == 0
    return values, (values[1:] + values[:-1]) / 2, even[1:]


def distances(reference: NDArray[Any], target: NDArray[Any], out: NDArray[Any] | None = None, *, one_sign: bool = False) -> NDArray[Any]:
    """Distances of two arrays of places; of their type. They lie in `out`, of that type, where given.

    `one_sign` promises that no two places differ in sign, and saves looking for those that do.
    """
    signed = np.dtype(f"i{reference.itemsize}")
    apart = np.subtract(target.view(signed), reference.view(signed), out=None if out is None else out.view(signed))
    found: NDArray[Any] = np.abs(apart, out=apart).view(reference.dtype)
    if not one_sign:
        rows = np.flatnonzero((reference.view(signed) < 0) != (target.view(signed) < 0))
        if rows.size:
            size = np.array((1 << (8 * reference.itemsize - 1)) - 1, reference.dtype)
            found[rows] = (reference[rows] & size) + (target[rows] & size)
    return found


class Histogram:
    """How many distances are in each of the `BUCKETS`, of as many arrays as are added.

    Buckets are counted two by two: half as many steps, and a table of their pairs that is small enough to stay near.
    """

    def __init__(self) -> None:
        self._single = np.zeros(BUCKETS, np.int64)
        self._pairs = np.zeros(BUCKETS << 8, np.int64)  # of the first bucket of a pair + 256 times the second
        self._spare, self._buckets, self._keys = np.zeros(0, np.uint32), np.zeros(0, np.uint8), np.zeros(0, np.intp)

    def add_zeros(self, count: int) -> None:
        """Count `count` distances of zero."""
        self._single[0] += count

    def add(self, distance: NDArray[Any], largest: int) -> None:
        """Count distances (uint32 or uint64), the largest of them `largest`. They are written over."""
        last = largest.bit_length()
        if last <= _FEW_BUCKETS:  # counting each bucket is then quicker than finding that of every distance
            least = [distance.size, *(int(np.count_nonzero(distance >= distance.dtype.type(1 << k))) for k in range(last)), 0]
            self._single[: last + 1] -= np.diff(least)
            return
        size = distance.size
        even = size + size % 2
        if self._spare.size < size or self._spare.dtype != distance.dtype:
            self._spare, self._buckets, self._keys = np.empty(size, distance.dtype), np.empty(even, np.uint8), np.empty(even // 2, np.intp)
        spare, buckets, keys = self._spare[:size], self._buckets[:even], self._keys[: even // 2]
        if largest >= 1 << 24:  # with the second highest bit cleared, no float32 rounds up to the next power of two
            np.right_shift(distance, distance.dtype.type(1), out=spare)
            distance ^= np.bitwise_and(distance, spare, out=spare)
        if last < 8 * distance.itemsize:
            distance = distance.view(f"i{distance.itemsize}")  # which numpy converts twice as fast
        scaled = spare.view(np.float32)[:size]
        scaled[:] = distance
        scaled *= _TO_BUCKETS
        np.right_shift(scaled.view(np.int32), 23, out=buckets[:size], casting="unsafe")
        buckets[size:] = 0
        self._single[0] -= even - size
        keys[:] = buckets.view(np.uint16)
        found = np.bincount(keys, minlength=(last + 1) << 8)
        self._pairs[: found.size] += found

    def counts(self) -> NDArray[np.int64]:
        """Counts of shape (BUCKETS,)."""
        pairs = self._pairs.reshape(BUCKETS, 256)
        found: NDArray[np.int64] = self._single + pairs.sum(axis=1) + pairs.sum(axis=0)[:BUCKETS]
        return found


def histogram(distance: NDArray[Any], largest: int) -> NDArray[np.int64]:
    """How many distances (uint32 or uint64), the largest of them `largest`, are in each of the `BUCKETS`."""
    found = Histogram()
    found.add(distance, largest)
    return found.counts()
