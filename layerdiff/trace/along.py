"""How the values of several steps are one: `Along`, and the ways that their shapes allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Along:
    """How values lie one after the other.

    Attributes:
        axis: the dimension.
        times: requests that lie one after the other along it, each with its own tokens: [2 * 5, 64] and [2 * 7, 64].
        keys: where the last dimension is of all tokens so far, how many each value has of it; the others are filled up to the longest.
    """

    axis: int
    times: int = 1
    keys: tuple[int, ...] = ()

    def whole(self, parts: Sequence[Array], fill: Any = 0) -> Array:
        """Several values as one; `fill`: what stands where one has no key."""
        if self.keys:
            most = max(self.keys)
            parts = [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])], constant_values=fill) for x in parts]
        made = np.concatenate([self._apart(x) for x in parts], self.axis + 1)
        return np.ascontiguousarray(made.reshape(*made.shape[: self.axis], -1, *made.shape[self.axis + 2 :]))

    def parts(self, whole: Array, sizes: Sequence[int]) -> list[Array]:
        """One value as several that are so long."""
        ends = np.cumsum([size // self.times for size in sizes])[:-1]
        split = np.split(self._apart(whole), ends, self.axis + 1)
        found = [x.reshape(*x.shape[: self.axis], size, *x.shape[self.axis + 2 :]) for x, size in zip(split, sizes, strict=True)]
        return [x[..., :count] for x, count in zip(found, self.keys, strict=True)] if self.keys else found

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """That of the whole."""
        found = list(shapes[-1])
        found[self.axis] = sum(shape[self.axis] for shape in shapes)
        return tuple(found)

    def _apart(self, x: Array) -> Array:
        return x.reshape(*x.shape[: self.axis], self.times, x.shape[self.axis] // self.times, *x.shape[self.axis + 1 :])


@dataclass(frozen=True)
class Way:
    """One of the ways.

    Attributes:
        shape: of the whole.
        along: None where one value stands for all.
        grown: whether each has what those before have, and more.
    """

    shape: Shape
    along: Along | None = None
    grown: bool = False


def ways(shapes: Sequence[Shape], tokens: Sequence[int], requests: int) -> Iterator[Way]:
    """How values of these shapes, one of each step, may be one; likely ones first. `tokens`: of each request, that each step has."""
    if len({len(shape) for shape in shapes}) != 1 or not shapes[0]:
        return
    so_far, dims, both = np.cumsum(tokens).tolist(), range(len(shapes[0])), list(zip(shapes, tokens, strict=True))
    tried = [(1, 1)] if all(shape[:2] == (requests, count) for shape, count in both) else []
    tried += [(0, requests)] if all(shape[0] == requests * count for shape, count in both) else []
    tried += [(2, 1)] if all(shape[0] == requests and shape[2:3] == (count,) for shape, count in both) else []
    tried += [(axis, 1) for axis in dims if all(shape[axis] == count for shape, count in both)]
    for axis, times in dict.fromkeys(tried):
        others = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
        along = Along(axis, times)
        if len(others) > 1 and axis + 1 < len(shapes[0]) and len({shape[:-1] for shape in others}) == 1:
            along = Along(axis, times, tuple(shape[-1] for shape in shapes))
        if len(others) == 1 or (along.keys and _grows(along.keys, so_far)):
            yield Way(along.shape(shapes), along)
    for axis in dims:
        if len({shape[:axis] + shape[axis + 1 :] for shape in shapes}) == 1 and _grows([shape[axis] for shape in shapes], so_far):
            yield Way(shapes[-1], grown=True)
    if len(set(shapes)) == 1:
        yield Way(shapes[-1])


def _grows(sizes: Sequence[int], so_far: Sequence[int]) -> bool:
    """Whether sizes are those of all tokens until then, and of as many before."""
    before = {size - count for size, count in zip(sizes, so_far, strict=True)}
    return len(before) == 1 and min(before) >= 0
