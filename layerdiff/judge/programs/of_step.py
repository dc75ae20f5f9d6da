"""`Part`: what one step of several may have of a value that the other run makes at once.

Its tokens, those until then, scores of those with these; of steps with other requests than the next ones, of each request by itself, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.along import Layout, Shape

Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """Some of the lines of a value.

    Attributes:
        axis: the dimension along which the lines lie.
        lines: which, in the order of the part; -1 where the value has none, which are 0.
        columns: of the last other dimension those from the first to the second, where not all are of the part.
        turned: whether the step may have its axes in another order: heads first, or keys turned for a product.
    """

    axis: int
    lines: range | NDArray[np.intp]
    columns: tuple[int, int] | None = None
    turned: bool = False

    def size(self, shape: Shape) -> int:
        """How many elements it has of a value of that shape."""
        others = self._others(len(shape))
        sizes = [shape[dim] for dim in others]
        if self.columns is not None:
            sizes[-1] = self.columns[1] - self.columns[0]
        return len(self.lines) * math.prod(sizes)

    def of(self, whole: Array) -> Array:
        """It, of a value; the axes as they are there."""
        if isinstance(self.lines, range):
            part = whole[(slice(None),) * self.axis + (slice(self.lines.start, self.lines.stop),)]
        else:
            part = np.take(whole, self.lines, self.axis, mode="clip")
            part[(slice(None),) * self.axis + (self.lines < 0,)] = 0
        if self.columns is None:
            return part
        return part[(slice(None),) * self._others(whole.ndim)[-1] + (slice(*self.columns),)]

    def orders(self, dims: int) -> Sequence[tuple[int, ...]]:
        """Other orders in which a part of so many dimensions may have its axes."""
        others = self._others(dims)
        found = [(*others[:-1], self.axis, *others[-1:]), (*others, self.axis)] if self.turned else []
        return [order for order in found if order != tuple(range(dims))]

    def _others(self, dims: int) -> tuple[int, ...]:
        return tuple(dim for dim in range(dims) if dim != self.axis)


def parts_of_step(layout: Layout, shape: Shape, step: int) -> Iterator[Part]:
    """What the step of that number may have of a value of that shape."""
    yield from _in_row(layout, shape, step) if layout.order else _in_batch(layout, shape, step)


def without_own(layout: Layout, shape: Shape, step: int) -> Iterator[tuple[slice, ...]]:
    """What a value of that shape of a step has of both runs, where it has tokens of a request that its run took back, or alone has."""
    for begin, first, end, _, own in layout.pieces[step] if layout.order else ():
        count, before = end - first, first - begin
        lines: list[int | None] = [None, *(axis for axis, size in enumerate(shape) if size == count + own)]
        keys: list[int | None] = [None, *(axis for axis, size in enumerate(shape) if size == before + count + own)]
        for line, key in product(lines, keys) if own else ():
            if line != key:
                ends = {line: count, key: before + count}
                yield tuple(slice(ends.get(axis)) for axis in range(len(shape)))


def _in_batch(layout: Layout, shape: Shape, step: int) -> Iterator[Part]:
    count, end = sum(layout.tokens), sum(layout.tokens[: step + 1])
    first = end - layout.tokens[step]
    for axis, size in enumerate(shape):
        times = 1 if size == count else layout.requests if size == count * layout.requests else 0
        if not times:
            continue
        each = np.arange(times * count).reshape(times, count)
        yield Part(axis, each[:, first:end].reshape(-1))
        if axis + 1 < len(shape) and shape[-1] == count:
            yield Part(axis, each[:, first:end].reshape(-1), (0, end))
        yield Part(axis, each[:, :end].reshape(-1))


def _in_row(layout: Layout, shape: Shape, step: int) -> Iterator[Part]:
    """The lines that it has, in its order; of each of its requests by themselves, and all until then."""
    for order, counts in ((layout.order, [requests * count for requests, count in layout.grids]), (layout.order_of_ends, layout.ends)):
        if shape and shape[0] == len(order):
            places = np.full(sum(counts), -1)
            places[list(order)] = np.arange(len(order))
            first = sum(counts[:step])
            yield Part(0, places[first : first + counts[step]])
    for axis in [axis for axis, size in enumerate(shape) if size == len(layout.order)]:
        many = len(shape) > 2
        columns = shape[-1] if axis + 1 < len(shape) else shape[-2] if many else 0
        for begin, first, end, column, _ in layout.pieces[step]:
            yield Part(axis, range(first, end), turned=many)
            if begin < first:
                yield Part(axis, range(begin, end), turned=many)
            if many and columns >= column + end - begin:
                yield Part(axis, range(first, end), (column, column + end - begin), many)
