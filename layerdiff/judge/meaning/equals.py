"""`Equals`: which values of one program the other makes, too.

The same elements with the axes in another order (heads before tokens) are equal, where the sizes tell the axes apart, and so are the
columns of a fused product, the parts of a batch, and a mask in another form (`Signatures`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.meaning.signatures import NOT_FINITE, Known, Signature, Signatures, column_weights
from layerdiff.judge.programs.running import Ran
from layerdiff.judge.programs.setting import NOTHING
from layerdiff.judge.programs.together import Together

Array = NDArray[Any]
_MOST_PARTS = 64
"""Into so many parts a value is taken apart, at most."""


class Equals:
    """The values that a program made.

    `limit` is what equal ones may be apart, relative to their norm; `pieces`: calls of the other program that make a value in pieces;
    `signatures`: those of values that are looked for elsewhere, too.
    """

    def __init__(
        self,
        values: Iterable[Array],
        limit: float = NOTHING,
        *,
        either_sign: bool = False,
        pieces: Together | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self._limit, self._either_sign, self._pieces = limit, either_sign, pieces
        self._signatures = Signatures() if signatures is None else signatures
        once = {id(value): value for value in values}.values()  # calls that are one in pieces made one and the same
        made = [form for value in once for form in self._signatures.forms(value)]
        self._values, by_size = [form for form, _ in made], dict[int, list[Signature]]()
        for form, signature in made:
            by_size.setdefault(form.size, []).append(signature)
        self._nothing = self._known_by([])
        self._known = {size: self._known_by(signatures) for size, signatures in by_size.items()}
        self._columns: dict[tuple[int, int], Array | None] = {}
        self._parts: dict[int, Known] = {}
        self._of_steps: dict[tuple[int, int], Known] = {}
        self._asked: dict[tuple[int, int], tuple[Array, bool]] = {}

    @classmethod
    def of(cls, ran: Ran, limit: float = NOTHING, *, pieces: Together | None = None, signatures: Signatures | None = None) -> Equals:
        """Of all results that were kept."""
        made = (made for results in ran.results.values() for made in results.values())
        return cls(made, limit, pieces=pieces, signatures=signatures)

    @classmethod
    def around(cls, ran: Ran, limit: float = NOTHING, *, pieces: Together | None = None, signatures: Signatures | None = None) -> Equals:
        """Of these, of what fused calls make on their way, and of parts that calls were given; with either sign."""
        made = [made for results in ran.results.values() for made in results.values()]
        fused = [made for inside in ran.inside.values() for made in inside]
        return cls([*made, *fused, *ran.read.values()], limit, either_sign=True, pieces=pieces, signatures=signatures)

    def _known_by(self, signatures: Sequence[Signature]) -> Known:
        return Known(signatures, self._limit, either_sign=self._either_sign)

    def has(self, value: Array, call: int = -1) -> bool:
        """Whether a value is one of them; `call`: of the other program, that makes it."""
        piece = -1 if self._pieces is None or call < 0 else self._pieces.piece_of(call)
        known = self._asked.get((id(value), piece))
        if known is None or known[0] is not value:
            known = self._asked[id(value), piece] = value, self._has(value, piece)
        return known[1]

    def _has(self, value: Array, piece: int) -> bool:
        forms = self._signatures.forms(value)
        known = self._known.get(value.size, self._nothing)
        if any(known.index(signature) is not None for _, signature in forms) or self._has_columns(value):
            return True
        if piece < 0 or self._pieces is None:
            return any(self._has_parts(form, signature) for form, signature in forms)
        if not value.size or self._pieces.is_alone(piece):
            return value.size > 0
        counted = [own for part in self._pieces.without_own(value, piece) for own in self._signatures.forms(part)]
        return any(
            self._known.get(form.size, self._nothing).index(signature) is not None
            or self._of_step(piece, form.size).index(signature) is not None
            for form, signature in (*forms, *counted)
        )

    def _of_step(self, piece: int, size: int) -> Known:
        """What the step of that number may have of them, of that size."""
        if (piece, size) not in self._of_steps:
            parts = self._pieces.parts if self._pieces is not None else lambda *_: ()
            found = ((whole, part) for whole in self._values for part in parts(whole.shape, piece, size))
            signatures = [self._signatures.of(part.of(whole), part.orders(whole.ndim)) for whole, part in found]
            self._of_steps[piece, size] = self._known_by(signatures)
        return self._of_steps[piece, size]

    def _has_parts(self, value: Array, signature: Signature) -> bool:
        """Whether a value is a part of another (of a batch a request, of all heads one), or is made of others, in their order."""
        if value.size < 2 or not value.ndim:
            return False
        if self._parts_of(value.size).index(signature) is not None:
            return True
        for count in range(2, min(_MOST_PARTS, value.size - 1) + 1):
            known = self._known.get(value.size // count, self._nothing) if value.size % count == 0 else self._nothing
            for parts in _in_parts(value, count) if len(known) >= count else ():
                at: int | None = -1
                for part in parts:
                    at = None if at is None else known.index(self._signatures.of(part), after=at)
                if at is not None:
                    return True
        return False

    def _parts_of(self, size: int) -> Known:
        """The parts of that size of all values."""
        if size not in self._parts:
            wholes = [one for one in self._values if one.ndim and size < one.size <= _MOST_PARTS * size and one.size % size == 0]
            every = (part for one in wholes for parts in _in_parts(one, one.size // size) for part in parts)
            self._parts[size] = self._known_by([self._signatures.of(part) for part in every])
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
        return one.size != other.size or Equals([other], self._limit, signatures=self._signatures).has(one)

    def first_without(self, ran: Ran, inside: Set[int]) -> tuple[int, str] | None:
        """The first result of another program's calls `inside` that is not among them: call and position."""
        for call, results in ran.results.items():
            for position, made in results.items():
                if call in inside and _tells(made) and not self.has(made, call):
                    return call, position
        return None

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
        mine = column_weights(rows) @ value.reshape(rows, width)
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
            by = column_weights(rows)
            known: list[Array] = []
            for one in found:
                projected = by @ np.where(np.isfinite(one), one, NOT_FINITE)
                projected = np.abs(projected) if self._either_sign else projected
                if not any(np.array_equal(projected, other) for other in known):  # once each: or there is no order among them
                    known.append(projected)
            self._columns[rows, width] = np.concatenate(known, axis=1) if known and rows >= 2 else None
        return self._columns[rows, width]


def _tells(made: Array) -> bool:
    """Whether a result says anything: it is not empty, nor memory that nobody has written yet."""
    return bool(made.size) and not (made.dtype.kind == "f" and bool(np.isnan(made).all()))


def _in_parts(value: Array, count: int) -> Iterator[Array]:
    """So many parts of a value along its first dimension, and along its second, where these have as many."""
    for axis in range(min(2, value.ndim)):
        if value.shape[axis] % count == 0:
            before, after = value.shape[:axis], value.shape[axis + 1 :]
            yield np.moveaxis(value.reshape(*before, count, value.shape[axis] // count, *after), axis, 0)
