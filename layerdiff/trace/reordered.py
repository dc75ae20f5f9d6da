"""`Reordered`: a trace file with the requests of its batches in another order.

A server may sort its requests. With the same order in both runs they are compared and judged as any other, all that is read of them:
what modules hand on, what their operators are given, masks and caches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.altered import Altered
from layerdiff.trace.enclosing import outermost
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Storage, ValueKind

Array = NDArray[Any]


@dataclass(frozen=True)
class Requests:
    """The requests of a step.

    Attributes:
        tokens: of each.
        lengths: that dimensions beside heads may have: of the tokens, and of those before.
        order: at place i of the batch stands what was at `order[i]`.
        told: whether all that the run was given in this step says so.
    """

    tokens: int
    lengths: frozenset[int]
    order: NDArray[np.intp]
    told: bool = True

    def are_tokens(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of this shape can hardly be anything but something of each token."""
        count = self.order.size
        return len(shape) > 1 and (shape[:2] == (count, self.tokens) or shape[0] == count * self.tokens)

    def are_requests(self, shape: tuple[int, ...]) -> bool:
        """The same of requests: in what has no more dimensions there may be as many of something else."""
        return self.are_tokens(shape) or (len(shape) > 1 and shape[0] == self.order.size)

    def axis(self, shape: tuple[int, ...]) -> int | None:
        """The dimension of a value along which its requests lie, alone, with their tokens, or with heads; None where none is."""
        count = self.order.size
        if shape[:1] in ((count,), (count * self.tokens,)):
            return 0
        if self.tokens > 1 and shape[:2] == (self.tokens, count):
            return 1
        with_heads = len(shape) > 2 and shape[0] > 0 and shape[0] % count == 0 and not self.lengths.isdisjoint(shape[1:])
        return 0 if with_heads else None

    def sorted(self, x: Array) -> Array:
        """A value in the other order; as it is where it has no requests."""
        axis, count = self.axis(x.shape), self.order.size
        if axis is None:
            return x
        apart = x.reshape(*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return np.take(apart, self.order, axis).reshape(x.shape)


class Reordered(Altered):
    """A trace file whose values are in another order, but for weights."""

    def __init__(self, file: TraceFile, requests: Mapping[int, Requests], as_they_are: Collection[int]) -> None:
        """`requests`: by root call. `as_they_are`: values that have no requests although their shapes would allow them."""
        super().__init__(file)
        self._as_they_are, self._requests, self._of_value = as_they_are, requests, _roots(file)

    def _change(self, value: int) -> Callable[[Array], Array] | None:
        requests = self._requests.get(int(self._of_value[value]))
        is_weight = int(self.values.kind[value]) in (ValueKind.PARAMETER, ValueKind.BUFFER)
        sorts = requests is not None and not is_weight and requests.axis(self.shape(value)) is not None
        return requests.sorted if requests is not None and sorts and value not in self._as_they_are else None

    def _is_seen_of(self, value: int) -> bool:
        """One request of a batch has no requests itself."""
        base = int(self.values.base[value])
        is_view = int(self.values.storage[value]) == Storage.VIEW and int(self.values.storage[base]) in (Storage.DATASET, Storage.SLAB)
        return is_view and value not in self._as_they_are and self._change(base) is not None


def _roots(file: TraceFile) -> NDArray[np.int64]:
    """By value the root call in which it was first seen, or before which it was made; the last one of what was made after all."""
    top, parents = outermost(file.calls.parent), np.asarray(file.calls.parent)
    roots = np.flatnonzero((parents < 0) & (np.asarray(file.calls.kind) == CallKind.MODULE))
    first = np.full(len(file.values), len(top) - 1, np.int64)
    np.minimum.at(first, np.asarray(file.edges.value), np.asarray(file.edges.call))
    return roots[np.minimum(np.searchsorted(roots, top[first]), len(roots) - 1)]
