"""`Summing`: what a call adds up for each of its results, handed out for the results that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Product(NamedTuple):
    """The matrix product inside a call: the result is scale * left @ right + start; None where what is added is not known apart.

    left [..., M, K] and right [..., K, N]; start is broadcastable to the result.
    """

    left: NDArray[Any]
    right: NDArray[Any]
    scale: float = 1.0
    start: NDArray[Any] | None = None

    def stacked(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Both matrices as stacks, [B, M, K] and [B, K, N]: leading dimensions become rows where the right one has none of its own."""
        left, right = self.left, self.right
        if right.ndim == 2:
            return left.reshape(1, -1, left.shape[-1]), right[None]
        lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (np.broadcast_to(x, lead + x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (left, right))
        return left, right


class Taken(NamedTuple):
    """The terms of m sums: left * right, or left alone where right is None; `start` is added to the whole, None for nothing.

    left and right [m, K], start [m], float64 and exact.
    """

    left: Array
    right: Array | None
    start: Array | None


@dataclass(frozen=True)
class Summing:
    """The sums of a call: result = (scale * sum of K terms) / divisor + start.

    Attributes:
        terms: K.
        count: how many results there are.
        take: the terms of the results with these flat indices.
        scale, divisor: numbers that the finished sum is multiplied and divided by; 1 for none.
        has_start: whether `take` gives a start (a bias, what is added to).
        arrangements: other sequences of the terms that orders are tried on, by name: each all of 0 .. K - 1.
    """

    terms: int
    count: int
    take: Callable[[NDArray[np.intp]], Taken]
    scale: float = 1.0
    divisor: float = 1.0
    has_start: bool = False
    arrangements: tuple[tuple[str, NDArray[np.intp]], ...] = ()


def of_product(product: Product, shape: tuple[int, ...]) -> Summing | None:
    """The sums of a product whose result has `shape`; None where that is none of a product."""
    start = product.start
    left, right = np.asarray(product.left, np.float64), np.asarray(product.right, np.float64)
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    whole = (*lead, left.shape[-2], right.shape[-1])
    count = int(np.prod(whole))
    if int(np.prod(shape)) != count:
        return None
    columns = np.swapaxes(right, -1, -2)
    lefts = np.broadcast_to(left, lead + left.shape[-2:])
    rights = np.broadcast_to(columns, lead + columns.shape[-2:])
    added = None if start is None else np.broadcast_to(np.asarray(start, np.float64), shape)

    def take(flat: NDArray[np.intp]) -> Taken:
        *at, row, column = np.unravel_index(flat, whole)
        begin = None if added is None else added[np.unravel_index(flat, shape)]
        return Taken(lefts[tuple(at) + (row,)], rights[tuple(at) + (column,)], begin)  # noqa: RUF005

    return Summing(left.shape[-1], count, take, product.scale, has_start=start is not None)


def of_terms(terms: NDArray[Any], axes: tuple[int, ...], divisor: float = 1.0) -> Summing:
    """The sums of `terms` over `axes`, whose terms are in the order in which they lie in memory."""
    kept = [axis for axis in range(terms.ndim) if axis not in axes]
    moved = np.transpose(terms, [*kept, *axes])
    count = int(np.prod([terms.shape[axis] for axis in kept], dtype=np.int64))
    rows = moved.reshape(count, -1)
    return Summing(rows.shape[1], count, lambda flat: Taken(np.asarray(rows[flat], np.float64), None, None), divisor=divisor)
