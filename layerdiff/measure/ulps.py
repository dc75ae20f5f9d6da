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

_FEW_BUCKETS: Final = 6
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
    with np.errstate(over="ignore"):
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
    return _signed(np.abs(place), place < 0)


@cache
def _table(dtype: Dtype) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """All finite values of an 8-bit float in order, the middle after each but the last, and whether a tie there rounds up."""
    codes = np.arange(256, dtype=np.uint8)
    decoded = dtype.decode(codes).astype(np.float64)
    finite = np.isfinite(decoded)
    values, first = np.unique(decoded[finite], return_index=True)
    even = (codes[finite][first] & 1) == 0
    return values, (values[1:] + values[:-1]) / 2, even[1:]


def distances(reference: NDArray[Any], target: NDArray[Any], buffers: NDArray[Any] | None = None) -> NDArray[Any]:
    """Distances of two arrays of places; of their type. The answer lies in `buffers`, of shape (2, n or more), where given."""
    if buffers is None:
        buffers = np.empty((2, reference.size), reference.dtype)
    found, other = buffers[0, : reference.size], buffers[1, : reference.size]
    np.maximum(reference, target, out=found)
    np.subtract(found, np.minimum(reference, target, out=other), out=found)
    sign = np.array(1 << (8 * reference.itemsize - 1), reference.dtype)
    opposite = np.bitwise_xor(reference, target, out=other)
    if opposite.size and opposite.max() >= sign:
        rows = np.flatnonzero(opposite >= sign)
        found[rows] = (reference[rows] & ~sign) + (target[rows] & ~sign)
    return found


def histogram(distance: NDArray[Any], largest: int, buffer: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
    """How many distances (uint32 or uint64), the largest of them `largest`, are in each of the `BUCKETS`.

    `buffer`, of n elements or more, saves an allocation a call.
    """
    found = np.zeros(BUCKETS, np.int64)
    last = largest.bit_length()
    if last <= _FEW_BUCKETS:  # counting each bucket is then quicker than sorting every distance into one
        least = [distance.size, *(int(np.count_nonzero(distance >= distance.dtype.type(1 << k))) for k in range(last)), 0]
        found[: last + 1] = -np.diff(least)
        return found
    if largest >= 1 << 24:  # with the second highest bit cleared, no float32 rounds up to the next power of two
        distance = distance & ~(distance >> distance.dtype.type(1))
    exponent = np.empty(distance.size, np.intp) if buffer is None else buffer[: distance.size]
    np.right_shift(distance.astype(np.float32).view(np.int32), 23, out=exponent)
    counts = np.bincount(exponent, minlength=127 + BUCKETS)
    found[0] = counts[0]
    found[1:] = counts[127 : 126 + BUCKETS]
    return found
