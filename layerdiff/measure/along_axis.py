"""Where in a tensor the difference sits: norms along one axis, and the worst elements one by one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.blocks import Blocks, side_by_side
from layerdiff.measure.integers import EXACT_KINDS, distances, exact
from layerdiff.measure.parts import numbers_per_element, parts, quiet

_BLOCK: Final = 1 << 15
Number = bool | int | float | complex


@dataclass(frozen=True)
class Profile:
    """L2 norms over all other axes, for each index of one axis or for buckets of neighbouring indices.

    All arrays have one entry a bucket; bucket i holds indices i * width to (i + 1) * width - 1, and
    shows the largest of them. Elements that are not finite, or forbidden by a mask on both sides, are
    in no norm.
    """

    axis: int
    size: int
    """Length of the axis."""
    width: int
    """Indices a bucket."""
    difference: NDArray[np.float64]
    reference: NDArray[np.float64]
    differ: NDArray[np.int64]
    """Elements whose class (finite, nan, inf, -inf) differs, most at one index of the bucket."""


@dataclass(frozen=True)
class Element:
    """One element of a pair."""

    index: int
    """Flat, row-major."""
    reference: Number
    target: Number
    difference: float
    """|target - reference|; inf where the class (finite, nan, inf, -inf) differs."""
    reference_bits: int
    target_bits: int


@quiet
def along(reference: Blocks, target: Blocks, shape: Sequence[int], axis: int, *, most: int = 1024) -> Profile:
    """Norms along `axis` of two values of `shape`, pooled by the largest into at most `most` buckets.

    Squares are float64: a float64 value beyond 1e150 shows as inf.

    Raises ValueError for an axis that the shape lacks, for a shape of another size than the values,
    and for types without numbers.
    """
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"a value of {len(shape)} dimensions has no axis {axis}")
    if math.prod(shape) != reference.count:
        raise ValueError(f"the shape {list(shape)} has {math.prod(shape)} elements and the value {reference.count}")
    _refuse_bits(reference, target)
    axis %= len(shape)
    size, inner = shape[axis], math.prod(shape[axis + 1 :]) * numbers_per_element(reference, target)
    sums, differ = np.zeros((2, size)), np.zeros(size, np.int64)
    for part in parts(reference, target, _BLOCK):
        for row, x in enumerate((part.difference, part.reference)):
            wide = x.astype(np.float64)
            _add(sums[row], wide * wide, part.start, inner)
        if part.differ is not None:
            _add(differ, part.differ.astype(np.int64), part.start, inner)
    width = max(1, -(-size // most))
    norms = np.sqrt(sums)
    return Profile(axis, size, width, _pooled(norms[0], width), _pooled(norms[1], width), _pooled(differ, width))


def _add(total: NDArray[Any], x: NDArray[Any], start: int, inner: int) -> None:
    """Add a run of elements, the first of them number `start`, to the indices of an axis of steps of `inner` elements."""
    size = total.size
    row = size * inner
    whole_from = min(-start % row, x.size)
    whole_to = whole_from + (x.size - whole_from) // row * row
    if whole_to > whole_from:
        total += x[whole_from:whole_to].reshape(-1, size, inner).sum(axis=(0, 2))
    for low, high in ((0, whole_from), (whole_to, x.size)):
        if high > low:  # part of one row: indices grow, and none comes twice
            first = (start + low) % row // inner
            cuts = np.arange(first + 1, -(-((start + low) % row + high - low) // inner)) * inner - (start + low) % row
            total[first : first + cuts.size + 1] += np.add.reduceat(x[low:high], np.concatenate([[0], cuts]).astype(np.intp))


def _pooled(x: NDArray[Any], width: int) -> NDArray[Any]:
    return np.maximum.reduceat(x, np.arange(0, x.size, width)) if x.size else x


@quiet
def worst(reference: Blocks, target: Blocks, n: int) -> list[Element]:
    """The `n` elements that differ most, the worst first; fewer where fewer differ. Those of another class come before all others.

    Complex elements are ordered by the larger difference of their two parts. Raises ValueError for
    types without numbers.
    """
    _refuse_bits(reference, target)
    best: list[tuple[float, int]] = []  # a heap: the least of the worst first
    for start, apart in _magnitudes(reference, target):
        least = best[0][0] if len(best) >= n > 0 else 0.0
        if n <= 0 or not apart.max() > least:
            continue
        rows = np.flatnonzero(apart > least)
        if rows.size > n:
            rows = np.sort(rows[np.lexsort((rows, -apart[rows]))[:n]])
        for row in rows.tolist():
            (heapq.heappushpop if len(best) >= n else heapq.heappush)(best, (float(apart[row]), -(start + row)))
    found = sorted(((distance, -index) for distance, index in best), key=lambda pair: (-pair[0], pair[1]))
    bits = _bits_at(reference, target, [index for _, index in found])
    return [
        Element(index, _number(reference, ours), _number(target, theirs), distance, _whole(ours), _whole(theirs))
        for distance, index in found
        for ours, theirs in (bits[index],)
    ]


def _refuse_bits(reference: Blocks, target: Blocks) -> None:
    if "bits" in (reference.dtype.kind, target.dtype.kind):
        raise ValueError(f"{reference.dtype.name} against {target.dtype.name}: a type without numbers has no differences")


def _magnitudes(reference: Blocks, target: Blocks) -> Iterator[tuple[int, NDArray[Any]]]:
    """(first element, |target - reference| an element), inf where the class differs."""
    if reference.dtype.kind in EXACT_KINDS and target.dtype.kind in EXACT_KINDS:
        for start, ours, theirs in side_by_side(reference, target, _BLOCK):
            yield start, distances(exact(ours, reference.dtype), exact(theirs, target.dtype))
        return
    width = numbers_per_element(reference, target)
    for part in parts(reference, target, _BLOCK):
        apart = part.distance
        if part.differ is not None:
            apart[part.differ] = np.inf
        yield part.start // width, apart if width == 1 else apart.reshape(-1, 2).max(axis=1)


def _bits_at(reference: Blocks, target: Blocks, wanted: list[int]) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
    """Bits of single elements, arrays of shape (1,)."""
    order, found, position = sorted(wanted), {}, 0
    for start, ours, theirs in side_by_side(reference, target, _BLOCK):
        while position < len(order) and order[position] < start + ours.size:
            row = order[position] - start
            found[order[position]] = ours[row : row + 1].copy(), theirs[row : row + 1].copy()
            position += 1
        if position == len(order):
            break
    return found


def _number(side: Blocks, bits: NDArray[Any]) -> Number:
    number: Number = bool(bits[0]) if side.dtype.kind == "boolean" else side.dtype.decode(bits)[0].item()
    return number


def _whole(bits: NDArray[Any]) -> int:
    return int.from_bytes(bits.tobytes(), "little")
