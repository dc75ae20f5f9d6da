"""`Equals`: which values of one program the other makes, too.

A value is known by its norm and by a projection that knows positions: without the second, a swapped head is the right one. The same
elements with the axes in another order (heads before tokens) are equal, where the sizes tell the axes apart, and so are the
columns of a fused product, the parts of a batch, and a mask in another form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice, permutations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.constants import is_masked
from layerdiff.judge.programs.running import Ran
from layerdiff.judge.programs.setting import NOTHING
from layerdiff.judge.programs.together import Together

Array = NDArray[Any]
_NOT_FINITE = 7.5
"""Stands for what is not finite: larger than what numbers are on the scale that tells them, and not so large that it outweighs them."""
_MASK = 1e30
"""What is as large is put there to be left out."""
_WAYS = 6
"""Ways to tell axes of one size apart that are tried."""
_REMEMBERED = 1 << 24
"""Random numbers that are remembered, 128 MB; more are drawn again."""
_MOST_OF_STEPS = 1 << 15
"""What a step may have of values, of which it is looked for: beyond that less is told."""
_MOST_PARTS = 64
"""Into so many parts a value is taken apart, at most."""


class _Signature(NamedTuple):
    scale: float
    """A small magnitude of theirs. What follows is of asinh(x / scale): a mask that was added must not outweigh what it was added to."""
    norm: float
    ordered: float
    """A projection of the elements in their row-major order."""
    by_axes: tuple[float, ...]
    """Ones whose weights hang on the index along each axis and on the size of the axis; none where two sizes are equal.

    Where one program has the tokens in a row, axes of one size are told apart by trying: one for each way.
    """


class Equals:
    """The values that a program made.

    `limit` is what equal ones may be apart, relative to their norm; `tokens` are dimensions that the other program has as one;
    `pieces`: calls of the other program that make a value in pieces.
    """

    def __init__(
        self,
        values: Iterable[Array],
        limit: float = NOTHING,
        tokens: tuple[int, ...] = (),
        *,
        either_sign: bool = False,
        pieces: Together | None = None,
    ) -> None:
        self._values, self._limit, self._tokens = [form for value in values for form in _forms(value)], limit, tokens
        self._either_sign, self._pieces = either_sign, pieces
        self._piece_values: dict[int, dict[int, list[Array]]] = {}
        self._known_pieces: dict[tuple[int, int], list[_Signature]] = {}
        self._signed: dict[int, tuple[Array, _Signature]] = {}
        self._known: dict[int, list[_Signature]] = {}
        for made in self._values:
            self._known.setdefault(made.size, []).append(self._signature(made))
        self._columns: dict[tuple[int, int], Array | None] = {}
        self._parts: dict[int, list[_Signature]] = {}

    @classmethod
    def of(cls, ran: Ran, limit: float = NOTHING, tokens: tuple[int, ...] = (), pieces: Together | None = None) -> Equals:
        """Of all results that were kept."""
        return cls((made for results in ran.results.values() for made in results.values()), limit, tokens, pieces=pieces)

    @classmethod
    def around(cls, ran: Ran, limit: float = NOTHING, tokens: tuple[int, ...] = (), pieces: Together | None = None) -> Equals:
        """Of these, of what fused calls make on their way, and of parts that calls were given; with either sign."""
        made = [made for results in ran.results.values() for made in results.values()]
        fused = [made for inside in ran.inside.values() for made in inside]
        read = {id(read): read for read in ran.read.values()}.values()
        return cls([*made, *fused, *read], limit, tokens, either_sign=True, pieces=pieces)

    def has(self, value: Array, call: int = -1) -> bool:
        """Whether a value is one of them; `call`: of the other program, that makes it."""
        known = self._known.get(value.size, ())
        among = any(self._index(self._signature(form), known) is not None for form in _forms(value))
        if among or self._has_columns(value):
            return True
        piece = -1 if self._pieces is None or call < 0 else self._pieces.piece_of(call)
        return any(self._has_parts(form) if piece < 0 else self._has_piece(form, piece) for form in _forms(value))

    def _has_piece(self, value: Array, piece: int) -> bool:
        """Whether a value is what the step of that number may have of one of them."""
        if self._pieces is None or not value.size:
            return False
        if piece not in self._piece_values:
            by_size = self._piece_values[piece] = {}
            every = (part for whole in self._values for part in self._pieces.pieces(whole, piece))
            for one in islice(every, _MOST_OF_STEPS):
                by_size.setdefault(one.size, []).append(one)
        key = piece, value.size
        if key not in self._known_pieces:
            self._known_pieces[key] = [_signature(one, self._tokens) for one in self._piece_values[piece].get(value.size, ())]
        return self._index(_signature(value, self._tokens), self._known_pieces[key]) is not None

    def _index(self, one: _Signature, others: Iterable[_Signature], after: int = -1) -> int | None:
        """Which of the others a value is, the first after one of them."""
        for number, known in enumerate(others):
            limit = self._limit * max(one.norm, known.norm)
            if number <= after or abs(one.norm - known.norm) > limit or abs(one.scale - known.scale) > self._limit * one.scale:
                continue
            for sign in (1.0, -1.0)[: 1 + self._either_sign]:
                projected = (sign * one.ordered - known.ordered, *(sign * mine - way for mine in one.by_axes[:1] for way in known.by_axes))
                if min(map(abs, projected)) <= limit:
                    return number
        return None

    def _has_parts(self, value: Array) -> bool:
        """Whether a value is a part of another (of a batch a request, of all heads one), or is made of others, in their order."""
        if value.size < 2 or not value.ndim:
            return False
        if self._index(self._signature(value), self._parts_of(value.size)) is not None:
            return True
        for count in range(2, min(_MOST_PARTS, value.size - 1) + 1):
            known = self._known.get(value.size // count, []) if value.size % count == 0 else []
            for parts in _in_parts(value, count) if len(known) >= count else ():
                at: int | None = -1
                for part in parts:
                    at = None if at is None else self._index(_signature(part, self._tokens), known, after=at)
                if at is not None:
                    return True
        return False

    def _parts_of(self, size: int) -> list[_Signature]:
        """The parts of that size of all values."""
        if size not in self._parts:
            wholes = [one for one in self._values if one.ndim and size < one.size <= _MOST_PARTS * size and one.size % size == 0]
            self._parts[size] = [
                _signature(part, self._tokens) for one in wholes for parts in _in_parts(one, one.size // size) for part in parts
            ]
        return self._parts[size]

    def holds(self, ran: Ran, own: Equals, beside: Mapping[int, Mapping[str, Array]]) -> Set[int]:
        """The calls of another program, which makes `own`, whose results are all among them, and are not exchanged for one another.

        Zeros and single numbers say nothing. `beside` are the results of the calls aligned with those of `ran`: q in the place of k,
        where k is made too, is a value that both make.
        """
        found = set()
        for call, results in ran.results.items():
            told = {position: made for position, made in results.items() if _tells(made)}
            there = beside.get(call, {})
            if told and all(self._holds(made, own, there.get(position), call) for position, made in told.items()):
                found.add(call)
        return found

    def holds_read(self, ran: Ran, own: Equals, beside: Mapping[tuple[int, str], Array]) -> Set[tuple[int, str]]:
        """Of what calls of another program are given, by call and position, what is among them, likewise: parts of what was made."""
        return {at for at, read in ran.read.items() if _tells(read) and self._holds(read, own, beside.get(at), at[0])}

    def _holds(self, value: Array, own: Equals, there: Array | None, call: int) -> bool:
        if value.size < 2 or not np.any(value) or not self.has(value, call):
            return False
        return there is None or self._is(value, there) or not own.has(there)

    def _is(self, one: Array, other: Array) -> bool:
        return one.size != other.size or Equals([other], self._limit, self._tokens).has(one)

    def first_without(self, ran: Ran, inside: Set[int]) -> tuple[int, str] | None:
        """The first result of another program's calls `inside` that is not among them: call and position."""
        for call, results in ran.results.items():
            for position, made in results.items():
                if call in inside and _tells(made) and not self.has(made, call):
                    return call, position
        return None

    def _signature(self, value: Array) -> _Signature:
        """Kept with the value itself: what another array has at its place in memory afterwards is another one."""
        known = self._signed.get(id(value))
        if known is None or known[0] is not value:
            known = self._signed[id(value)] = value, _signature(value, self._tokens)
        return known[1]

    def _has_columns(self, value: Array) -> bool:
        """Whether a value has the columns of values of other widths: what a fused product makes at once, or one that it is made of.

        A column is all that lies along the other dimensions. Values of the same width do not count: columns in another order
        are another value.
        """
        if value.ndim < 2 or not value.size or value.dtype.kind != "f" or not np.isfinite(value).all():
            return False
        width, rows = value.shape[-1], value.size // value.shape[-1]
        known = self._projected_columns(rows, width)
        if known is None:
            return False
        order = np.argsort(known[0], kind="stable")
        mine = _column_weights(rows) @ value.reshape(rows, width)
        if self._either_sign:
            mine = np.abs(mine)
        at = np.clip(np.searchsorted(known[0, order], mine[0]), 1, max(known.shape[1] - 1, 1))
        below, above = order[at - 1], order[np.minimum(at, known.shape[1] - 1)]
        nearest = np.where(np.abs(known[0, below] - mine[0]) < np.abs(known[0, above] - mine[0]), below, above)
        size = float(np.max(np.abs(value), initial=0.0)) * math.sqrt(rows)  # of which a difference without direction projects so much
        equal = bool(np.all(np.abs(known[:, nearest] - mine) <= self._limit * size))
        return equal and bool(np.all(np.diff(nearest) > 0))  # in the order in which they were made

    def _projected_columns(self, rows: int, width: int) -> Array | None:
        """Two projections of each column of the values of so many rows and of another width. Shape (2, columns).

        By one alone a value of few columns would be some of thousands by chance.
        """
        if (rows, width) not in self._columns:
            found = [
                one.reshape(rows, -1)
                for one in self._values
                if one.dtype.kind == "f" and one.ndim >= 2 and one.size and one.shape[-1] != width and one.size // one.shape[-1] == rows
            ]
            by = _column_weights(rows)
            known: list[Array] = []
            for one in found:
                projected = by @ np.where(np.isfinite(one), one, _NOT_FINITE)
                projected = np.abs(projected) if self._either_sign else projected
                if not any(np.array_equal(projected, other) for other in known):  # once each: or there is no order among them
                    known.append(projected)
            self._columns[rows, width] = np.concatenate(known, axis=1) if known and rows >= 2 else None
        return self._columns[rows, width]


def _tells(made: Array) -> bool:
    """Whether a result says anything: it is not empty, nor memory that nobody has written yet."""
    return bool(made.size) and not (made.dtype.kind == "f" and bool(np.isnan(made).all()))


def _forms(value: Array) -> list[Array]:
    """A value; a mask that is added, as what it hides and as what it lets through."""
    hidden = is_masked(value) if value.dtype.kind == "f" else np.zeros(0, np.bool_)
    if not hidden.any() or np.any(value[~hidden]):
        return [value]
    return [hidden, ~hidden]


def _in_parts(value: Array, count: int) -> Iterator[Array]:
    """So many parts of a value along its first dimension, and along its second, where these have as many."""
    for axis in range(min(2, value.ndim)):
        if value.shape[axis] % count == 0:
            before, after = value.shape[:axis], value.shape[axis + 1 :]
            yield np.moveaxis(value.reshape(*before, count, value.shape[axis] // count, *after), axis, 0)


def _signature(x: Array, tokens: tuple[int, ...]) -> _Signature:
    if x.dtype.kind == "c":
        x = np.stack([x.real, x.imag], axis=-1)
    finite = np.isfinite(x) & ~is_masked(x) if x.dtype.kind == "f" else np.isfinite(x)
    scale = _scale(x) if x.dtype.kind == "f" else 1.0
    whole = np.where(finite, np.arcsinh(np.where(finite, x, 0.0) / scale), _NOT_FINITE)
    flat = whole.reshape(-1)
    together = math.prod(tokens)
    sizes = [part for size in x.shape for part in (tokens if tokens and size == together else (size,)) if part != 1]
    by_axes: tuple[float, ...] = ()
    if len(sizes) > 1 and (tokens or len(set(sizes)) == len(sizes)):
        by_axes = tuple(_projected(whole.reshape(sizes), sizes, way) for way in islice(_ways(sizes), _WAYS))
    return _Signature(scale, float(np.sqrt(np.dot(flat, flat))), float(np.dot(flat, _weights(flat.size))), by_axes)


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


def _column_weights(rows: int) -> NDArray[np.float64]:
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
