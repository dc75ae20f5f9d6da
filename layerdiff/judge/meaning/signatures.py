"""`Signature`: a few numbers that tell a value from others, and `Known`: which of many a value is, by these.

A value is known by its norm and by a projection that knows positions: without the second, a swapped head is the right one. Of values
whose axes have other sizes a projection does not hang on the order of the axes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.constants import is_masked
from layerdiff.judge.programs.setting import NOTHING

Array = NDArray[Any]
NOT_FINITE = 7.5
"""Stands for what is not finite: larger than what numbers are on the scale that tells them, and not so large that it outweighs them."""
_MASK = 1e30
"""What is as large is put there to be left out."""
_WAYS = 6
"""Ways to tell axes of one size apart that are tried."""
_REMEMBERED = 1 << 24
"""Random numbers that are remembered, 128 MB; more are drawn again."""


class Signature(NamedTuple):
    """The numbers."""

    scale: float
    """A small magnitude of theirs. What follows is of asinh(x / scale): a mask that was added must not outweigh what it was added to."""
    norm: float
    ordered: tuple[float, ...]
    """A projection of the elements in their row-major order; of what a step may have, in each order of its axes."""
    by_axes: tuple[float, ...]
    """Ones whose weights hang on the index along each axis and on the size of the axis; none where two sizes are equal.

    Where one program has the tokens in a row, axes of one size are told apart by trying: one for each way.
    """


class Signatures:
    """Those of values, each made once. `tokens` are dimensions that one of the programs has as one."""

    def __init__(self, tokens: tuple[int, ...] = ()) -> None:
        self._tokens = tokens
        self._made: dict[int, tuple[Array, list[tuple[Array, Signature]]]] = {}

    def forms(self, value: Array) -> list[tuple[Array, Signature]]:
        """A value, or the two that a mask is which is added: what it hides, and what it lets through."""
        known = self._made.get(id(value))
        if known is None:  # kept with the value itself: another array may come to lie at its place
            known = self._made[id(value)] = value, [(form, self.of(form)) for form in _forms(value)]
        return known[1]

    def of(self, x: Array, orders: Sequence[Sequence[int]] = ()) -> Signature:
        """The signature of what is no such mask. `orders`: other ones in which its axes may lie."""
        return _signature(x, self._tokens, orders)


class Known:
    """Values in an order. `limit` is what equal ones may be apart, relative to their norm."""

    def __init__(self, signatures: Sequence[Signature], limit: float, *, either_sign: bool) -> None:
        self._limit, self._signs = limit, (1.0, -1.0)[: 1 + either_sign]
        by_norm = sorted(enumerate(signatures), key=lambda pair: pair[1].norm)
        self._numbers, self._signatures = [number for number, _ in by_norm], [one for _, one in by_norm]
        self._norms = [one.norm for one in self._signatures]

    def __len__(self) -> int:
        return len(self._norms)

    def index(self, one: Signature, after: int = -1) -> int | None:
        """Which of them a value is, the first after one of them."""
        first = bisect_left(self._norms, one.norm * (1.0 - self._limit))
        found = None
        for i in range(first, bisect_right(self._norms, one.norm / (1.0 - self._limit))):
            number = self._numbers[i]
            if after < number and (found is None or number < found) and self._is(one, self._signatures[i]):
                found = number
        return found

    def _is(self, one: Signature, known: Signature) -> bool:
        if abs(one.scale - known.scale) > self._limit * one.scale:
            return False
        limit = self._limit * max(one.norm, known.norm)
        both = ((one.ordered[:1], known.ordered), (one.by_axes[:1], known.by_axes))
        return any(abs(sign * mine - way) <= limit for sign in self._signs for of_one, ways in both for mine in of_one for way in ways)


def _forms(value: Array) -> list[Array]:
    """A value; a mask that is added, as what it hides and as what it lets through."""
    hidden = is_masked(value) if value.dtype.kind == "f" else np.zeros(0, np.bool_)
    if not hidden.any() or np.any(value[~hidden]):
        return [value]
    return [hidden, ~hidden]


def _signature(x: Array, tokens: tuple[int, ...], orders: Sequence[Sequence[int]] = ()) -> Signature:
    """`orders`: other ones in which its axes may lie."""
    if x.dtype.kind == "c":
        x, orders = np.stack([x.real, x.imag], axis=-1), [(*order, x.ndim) for order in orders]
    finite = np.isfinite(x) & ~is_masked(x) if x.dtype.kind == "f" else np.isfinite(x)
    scale = _scale(x) if x.dtype.kind == "f" else 1.0
    whole = np.where(finite, np.arcsinh(np.where(finite, x, 0.0) / scale), NOT_FINITE)
    flat = whole.reshape(-1)
    together = math.prod(tokens)
    sizes = [part for size in x.shape for part in (tokens if tokens and size == together else (size,)) if part != 1]
    by_axes: tuple[float, ...] = ()
    if len(sizes) > 1 and (tokens or len(set(sizes)) == len(sizes)):
        by_axes = tuple(_projected(whole.reshape(sizes), sizes, way) for way in islice(_ways(sizes), _WAYS))
    ordered = [float(np.dot(one, _weights(flat.size))) for one in (flat, *(whole.transpose(axes).reshape(-1) for axes in orders))]
    return Signature(scale, float(np.sqrt(np.dot(flat, flat))), tuple(ordered), by_axes)


def _scale(x: Array) -> float:
    """The magnitude that a twentieth of the elements is below, or 1e-9 of the median where that is more; of those that are no mask."""
    size = np.abs(x)
    size = size[(size > 0) & (size < _MASK)]
    if not size.size:
        return 1.0
    low, middle = size.size // 20, size.size // 2
    sorted_there = np.partition(size, (low, middle))
    return float(max(sorted_there[low], NOTHING * sorted_there[middle]))


def _ways(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """For each axis which one of those of its size it is: in their order first, then in every other."""
    axes = {size: [axis for axis, one in enumerate(sizes) if one == size] for size in dict.fromkeys(sizes)}
    for orders in product(*(islice(permutations(range(len(group))), _WAYS) for group in axes.values())):
        way = [0] * len(sizes)
        for group, order in zip(axes.values(), orders, strict=True):
            for axis, number in zip(group, order, strict=True):
                way[axis] = number
        yield tuple(way)


def _projected(left: Array, sizes: Sequence[int], way: Sequence[int]) -> float:
    for size, number in zip(reversed(sizes), reversed(way), strict=True):
        left = left @ _weights(size, number)
    return float(left)


def column_weights(rows: int) -> NDArray[np.float64]:
    """Two weights of each of so many rows. Shape (2, rows)."""
    return np.stack([_weights(rows, seed) for seed in (0, 1)])


_known_weights: dict[tuple[int, int], NDArray[np.float64]] = {}


def _weights(count: int, seed: int = 0) -> NDArray[np.float64]:
    found = _known_weights.get((count, seed))
    if found is None:
        found = np.random.default_rng(seed).standard_normal(count)
        if sum(map(len, _known_weights.values())) + count > _REMEMBERED:
            _known_weights.clear()
        if count <= _REMEMBERED:
            _known_weights[count, seed] = found
    return found
