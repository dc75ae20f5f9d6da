"""Places of a batch as a row: an engine has the requests of a batch end to end, without the padding that a model needs to have them as
rows, and makes logits of the last token of each alone. A program that has the tokens before the requests has them as a row, too: of the
first token of each request, then of the second of each.

Which tokens the row has is told by the root's own inputs, an `attention_mask` and ids that are the same, or by shapes; which one of each
request, by what is nearest (judge/pairs/packing.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.forms import Shape, without_ones

Array = NDArray[Any]
_NEAR: Final = 0.5
"""Of a line's size: what is further off is another thing."""
_AS_NEAR: Final = 1.5
_CLEARLY: Final = 3.0
"""How many times further than the nearest place the others must be."""
_ULPS: Final = 1e-5
"""Of a line's size: what as much apart are the same tokens, computed in another batch."""
_MOST_TRIES: Final = 10_000
"""Of orders of requests: requests that begin alike have to be tried."""


@dataclass(frozen=True)
class Packing:
    """Places of a batch, and the row in which the other run has them."""

    padded: str
    """The side that has the batch: `reference` or `target`."""
    batch: Shape
    """(requests, positions)."""
    places: NDArray[np.intp]
    """Shape (tokens,): the place in the batch, in row-major order, of each token that both have."""
    lines: NDArray[np.intp] | None = None
    """Shape (tokens,): the line of the row of each; None where they are all of it, in order."""
    length: int = 0
    """How many lines the row has, where it has others too."""
    row: Shape = ()
    """The two dimensions in which the row lies, (positions, requests), where it lies in two."""

    def same(self, reference: Shape, target: Shape) -> bool:
        """Whether values of these shapes are the batch and the row of one thing."""
        batch, row = (reference, target) if self.padded == "reference" else (target, reference)
        lead = self._lead(batch)
        forms = ((self.count,), self.row) if self.row else ((self.count,),)
        return lead > 0 and any(without_ones((*form, *batch[lead:])) == without_ones(row) for form in forms)

    def is_batch(self, shape: Shape) -> bool:
        """Whether a value of this shape has requests and positions first."""
        return shape[:2] == self.batch

    @property
    def count(self) -> int:
        """How many lines the row has."""
        return self.places.size if self.lines is None else self.length

    def of_batch(self, x: Array) -> Array:
        """What a value of the batch has of both: shape (tokens, ...)."""
        lead = self._lead(x.shape)
        return np.asarray(x.reshape(-1, *x.shape[lead:])[self.places])

    def rest(self, batch: Shape) -> Shape:
        """The dimensions of a value of the batch besides those of requests and positions."""
        return batch[self._lead(batch) :]

    def of_row(self, x: Array, rest: Shape) -> Array:
        """What a value of the row has of both; `rest`: its other dimensions."""
        lines = x.reshape(self.count, *rest)
        return lines if self.lines is None else np.asarray(lines[self.lines])

    def in_batch(self, row: Array, own: Array) -> Array:
        """A value of the row in the form of the batch, with the batch's `own` where the row has no token."""
        filled = np.array(own).reshape(-1, *own.shape[self._lead(own.shape) :])
        filled[self.places] = self.of_row(row, filled.shape[1:])
        return filled.reshape(own.shape)

    def in_row(self, batch: Array, own: Callable[[], Array]) -> Array:
        """A value of the batch in the form of the row, with the row's `own` where the batch has no token."""
        found = self.of_batch(batch)
        if self.lines is None:
            return found
        filled = np.array(own()).reshape(self.count, *found.shape[1:])
        filled[self.lines] = found
        return filled

    def tokens_only(self, x: Array, side: str) -> Array:
        """A value of either side that has requests and positions first, or heads between or beside them, as a row; any other as it is."""
        if side != self.padded:
            if self.row:
                tokens = _tokens_first(x, self.row)
                return x if tokens is None else self.of_row(tokens.reshape(self.count, *tokens.shape[2:]), tokens.shape[2:])
            lead = 0 if self.lines is None else self._lead_of_row(x.shape)
            return self.of_row(x, x.shape[lead:]) if lead else x
        if self._lead(x.shape):
            return self.of_batch(x)
        if self.row:
            tokens = _tokens_first(x, self.batch)
            return x if tokens is None else self.of_batch(tokens)
        if x.ndim > 2 and (x.shape[0], x.shape[2]) == self.batch:
            return self.of_batch(np.moveaxis(x, 2, 1))
        return x

    def as_row(self, shape: Shape, side: str) -> Shape:
        """The shape that a value of either side has as a row of what both have; that of any other as it is."""
        if side != self.padded:
            if self.row and shape[:2] == self.row:
                return (self.places.size, *shape[2:])
            lead = self._lead_of_row(shape)
            return (self.places.size, *shape[lead:]) if lead else shape
        lead = self._lead(shape)
        return (self.places.size, *shape[lead:]) if lead else shape

    def _lead_of_row(self, shape: Shape) -> int:
        """The same of the row, which may be a batch of one."""
        return 1 if shape[:1] == (self.count,) else 2 if shape[:2] == (1, self.count) else 0

    def _lead(self, shape: Shape) -> int:
        """How many leading dimensions of a shape are the batch; 0 where none are."""
        if shape[:2] == self.batch:
            return 2
        return 1 if shape[:1] == (math.prod(self.batch),) else 0


def _tokens_first(x: Array, lead: Shape) -> Array | None:
    """A value with the dimensions of its tokens, `lead`, first, where heads may lie between them or be merged with one; None of others."""
    for (one, other), turned in ((lead, False), (lead[::-1], True)):
        found = _with_lead(x, one, other)
        if found is not None:
            return np.swapaxes(found, 0, 1) if turned else found
    return None


def _with_lead(x: Array, one: int, other: int) -> Array | None:
    if x.ndim < 2:
        return None
    first, second, rest = x.shape[0], x.shape[1], x.shape[2:]
    if (first, second) == (one, other):
        return x
    if rest and (first, rest[0]) == (one, other):
        return np.moveaxis(x, 2, 1)
    if second == other and first % one == 0:
        return np.moveaxis(x.reshape(one, first // one, other, *rest), 1, 2)
    if first == one and second % other == 0:
        return x.reshape(one, other, second // other, *rest)
    return None


def packed(ids: Array, counts: NDArray[np.bool_], row: Array) -> NDArray[np.intp] | None:
    """Where in a batch each token of a row lies, whichever request comes first.

    None where the row is not made of the batch's tokens, or is the batch.

    `ids` and `counts`, shape (requests, positions): the batch's tokens, and which of them count. `row`, shape (tokens,).
    """
    if row.ndim != 1 or row.size != np.count_nonzero(counts) or row.size < 2:
        return None
    places = [np.flatnonzero(own) + number * ids.shape[1] for number, own in enumerate(counts)]
    order = _in_order([ids.reshape(-1)[own] for own in places], row)
    found = None if order is None else np.concatenate([places[number] for number in order])
    return None if found is None or np.array_equal(found, np.arange(ids.size)) else found


def nearest_places(batch: Array, row: Array, likely: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    """At which place of a batch lies what is nearest to each line of a row; None where no place is clearly the nearest to one.

    `batch`, shape (places, width); `row`, shape (lines, width). Of places that are as near, as requests that begin alike have them, a
    `likely` one is taken, and none twice.
    """
    found: list[int] = []
    for line in row:
        apart, size = np.sqrt(np.mean(np.square(batch - line), axis=1)), float(np.sqrt(np.mean(np.square(line))))
        if not np.isfinite(apart).all() or apart.min() > _NEAR * size:
            return None
        near = np.flatnonzero(apart <= _AS_NEAR * apart.min() + _ULPS * size)
        others = np.delete(apart, near)
        if others.size and others.min() < _CLEARLY * apart.min():
            return None
        free = [place for place in near.tolist() if place not in found] or near.tolist()
        found.append(next((place for place in free if likely[place]), free[0]))
    return np.array(found, np.intp)


def _in_order(requests: Sequence[Array], row: Array) -> list[int] | None:
    """The order in which requests lie in a row: of requests that are alike their own."""
    tries = _MOST_TRIES
    stack: list[tuple[list[int], int]] = [([], 0)]
    while stack and tries:
        tries -= 1
        chosen, begin = stack.pop()
        if len(chosen) == len(requests):
            return chosen
        seen: list[int] = []
        for number, one in enumerate(requests):
            if number in chosen or not np.array_equal(row[begin : begin + one.size], one):
                continue
            if not any(np.array_equal(one, requests[other]) for other in seen):
                seen.append(number)
        stack += [([*chosen, number], begin + requests[number].size) for number in reversed(seen)]
    return None
