"""Rows of a vocabulary that fill it up in both runs, with other numbers: 97 ids and 128 rows, of which nothing depends on the last 31.

They are no weights of the model where what both runs recorded says so: no id names them, all that is handed on of their logits is cut
off or hidden from there on, and nothing else that is made afterwards is another. In every other case they are weights like others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import FITS
from layerdiff.align.placements import relative_error
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.placed import Part
from layerdiff.judge.tables import Texts
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.enclosing import outermost
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.refilled import Filling, Refilled
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
Columns = Mapping[str, NDArray[Any]]
_LOWEST: Final = -3.3e38
"""Logits from here down say "not at all", as the lowest numbers of float32 and bfloat16 do."""
_LOWEST_FLOAT16: Final = -65504.0
_APART: Final = 4.0
"""Unit roundoffs that what is made of the same may lie apart: three layers make 1.6 of bf16, and 2 of fp32."""
SIDES: Final = ("reference", "target")


@dataclass(frozen=True)
class Unused:
    """Rows that nothing depends on.

    Attributes:
        names: of the weights that have other numbers there.
        size: rows that there are.
        count: rows that count.
    """

    names: tuple[str, ...]
    size: int
    count: int


@dataclass(frozen=True)
class _Vocabulary:
    """What has one number of rows, by pairs: each weight once, the ids that name rows, and the logits that are made of them."""

    size: int
    weights: tuple[int, ...]
    ids: tuple[int, ...]
    logits: tuple[int, ...]


@dataclass(frozen=True)
class _End:
    """What the target has at the end of a value, and whether that is another thing."""

    filling: Filling
    differs: bool


def without_unused(
    pairs: Columns, sites: Columns, texts: Texts, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]] | None = None
) -> tuple[Both[tuple[TraceFile, ...]], tuple[Unused, ...]]:
    """The files with the target's unused rows in the reference's place, and which these are. `parts_of`: by pair, of ranks.

    A reference of many ranks is taken as it is.
    """
    if len(files.reference) > 1:
        return files, ()
    looking = _Looking(pairs, sites, texts, files, parts_of)
    found: list[Unused] = []
    fillings: dict[int, Filling] = {}
    for vocabulary in looking.vocabularies():
        try:
            unused = looking.unused(vocabulary)
        except TraceError:  # a value was not kept
            continue
        if unused is not None:
            found.append(unused[0])
            fillings |= unused[1]
    return (Both((Refilled(files.reference[0], fillings),), files.target), tuple(found)) if found else (files, ())


class _Looking:
    def __init__(
        self,
        pairs: Columns,
        sites: Columns,
        texts: Texts,
        files: Both[tuple[TraceFile, ...]],
        parts_of: Both[list[tuple[Part, ...]]] | None,
    ) -> None:
        self._pairs, self._sites, self._texts, self._files, self._parts_of = pairs, sites, texts, files, parts_of
        self._row, self._value = np.asarray(pairs["site"]), np.asarray(pairs["reference_value"])
        module = np.asarray(sites["kind"])[self._row] == CallKind.MODULE
        self._role = np.where(module, np.asarray(pairs["role"]).astype(np.int64), -1)
        dtypes = np.asarray(pairs["reference_dtype"])
        integers = [text for text in np.unique(dtypes).tolist() if (kind := dtype_named(texts[text] or "")) and kind.kind == "integer"]
        self._integers = np.isin(dtypes, integers)
        self._in_root = np.asarray(sites["parent"])[self._row] < 0

    def vocabularies(self) -> Iterator[_Vocabulary]:
        """Those of which one weight is looked up, all others make logits, and one has other bits."""
        weights, ids = self._role == Role.WEIGHT, (self._role == Role.INPUT) & self._integers
        shapes = np.asarray(self._pairs["reference_shape"])
        rows = {text: next(iter(json.loads(self._texts[text] or "[]")), 0) for text in np.unique(shapes[weights]).tolist()}
        for size in sorted({rows[text] for text in shapes[weights & np.isin(self._row, self._row[ids])].tolist()} - {0, 1}):
            every = np.flatnonzero(weights & np.isin(shapes, [text for text, count in rows.items() if count == size]))
            distinct = {int(self._value[pair]): pair for pair in reversed(every.tolist())}
            names = ids & np.isin(self._row, self._row[every])
            looked_up = np.isin(self._row[every], self._row[names])
            if len(set(self._value[every[looked_up]].tolist())) > 1 or all(self._same_bits(pair) for pair in distinct.values()):
                continue
            scoring = np.unique(self._row[every[~looked_up]])
            made = np.flatnonzero((self._role == Role.OUTPUT) & np.isin(self._row, scoring)).tolist()
            logits = [pair for pair in made if self._shape(pair)[-1:] == (size,)]
            if scoring.size and set(self._row[logits].tolist()) == set(scoring.tolist()):
                yield _Vocabulary(size, tuple(sorted(distinct.values())), tuple(np.flatnonzero(names).tolist()), tuple(logits))

    def unused(self, vocabulary: _Vocabulary) -> tuple[Unused, dict[int, Filling]] | None:
        """The rows that nothing depends on, and what the target has there. Raises TraceError where a value was not kept."""
        size, copies, shown = vocabulary.size, set(vocabulary.logits), 0
        others: set[int] = set()
        for logits in vocabulary.logits:
            least = size
            for pair in self._made_from(logits):
                places = self._places(logits, pair, size)
                if places == size and self._in_root[pair]:
                    return None
                if places is None:
                    others.add(pair)
                elif places == size:
                    copies.add(pair)  # what is around cuts them
                else:
                    least, shown = min(least, places), max(shown, places)
            if least == size:
                return None
        if not self._are_unused(vocabulary, shown, others):
            return None
        weights = {pair: end for pair in vocabulary.weights if (end := self._end(pair, 0, size, shown)) is not None}
        names = tuple(self._name(pair) for pair, end in weights.items() if end.differs)
        if not names:
            return None
        ends = weights | {pair: end for pair in copies if (end := self._end(pair, -1, size, shown)) is not None}
        return Unused(names, size, shown), {int(self._value[pair]): end.filling for pair, end in ends.items()}

    def _made_from(self, logits: int) -> list[int]:
        """The pairs of these logits, and of all that modules handed on later in the same step; what the root did first."""
        later = (self._role == Role.OUTPUT) & (self._value >= self._value[logits]) & (self._root == self._root[logits])
        return sorted(np.flatnonzero(later).tolist(), key=lambda pair: not self._in_root[pair])

    @cached_property
    def _root(self) -> NDArray[np.intp]:
        """By pair the row of the root."""
        return np.asarray(outermost(self._sites["parent"])[self._row])

    def _places(self, logits: int, pair: int, size: int) -> int | None:
        """How many of the first places of logits a value has, bit for bit; None where it is another thing."""
        made, handed = self._shape(logits), self._shape(pair)
        if handed[:-1] != made[:-1] or not 1 < handed[-1] <= size or self._integers[pair]:
            return None
        if handed[-1] == size and not self._may_hide(pair) and (self._in_root[pair] or self._value[pair] == self._value[logits]):
            return size
        count = 0
        for side in SIDES:
            whole, own = self._read(side, logits, -1, size), self._read(side, pair, -1, handed[-1])
            here = _shown(own)
            if here < 1 or not _same(whole[..., :here], own[..., :here], self._unit(side, pair) - self._unit(side, logits)):
                return None
            count = max(count, here)
        return count

    def _are_unused(self, vocabulary: _Vocabulary, count: int, others: Collection[int]) -> bool:
        """Whether no whole number names a row from `count` on, and all that is made later, but for logits, is alike in both runs."""
        for pair in vocabulary.ids:
            if any(np.any((ids < 0) | (ids >= count)) for ids in self._each(pair)):
                return False
        outside = np.flatnonzero(self._in_root & self._integers & np.isin(self._role, (Role.INPUT, Role.OUTPUT))).tolist()
        if any(self._name_rows(pair, count, vocabulary.size) for pair in outside):
            return False
        return all(self._is_alike(pair, count, vocabulary.size) for pair in others)

    def _name_rows(self, pair: int, count: int, size: int) -> bool:
        return any(bool(np.any((ids >= count) & (ids < size))) for ids in self._each(pair))

    def _is_alike(self, pair: int, count: int, size: int) -> bool:
        """Of whole numbers that they name no such row is enough: rounding decides which one is the largest."""
        if self._integers[pair]:
            return not self._name_rows(pair, count, size)
        if self._same_bits(pair):
            return True
        ours, theirs = (list(self._each(pair, side)) for side in SIDES)
        allowed = _APART * max(self._unit(side, pair) for side in SIDES)
        return all(one.shape == ours[0].shape and relative_error(ours[0], one) <= allowed for one in theirs)

    def _end(self, pair: int, dim: int, size: int, count: int) -> _End | None:
        """What the target has at the end of a value; None where it cannot stand in the reference's place."""
        (file, value), *_ = self._parts("reference", pair)
        dtype, at = file.dtype(value), dim % len(file.shape(value))
        if dtype is None or not dtype.encodes:
            return None
        ours, theirs = (self._read(side, pair, dim, size) for side in SIDES)
        if ours.shape != theirs.shape or (dim == 0 and relative_error(ours[:count], theirs[:count]) >= FITS):
            return None
        ends = [side[(slice(None),) * at + (slice(count, None),)] for side in (ours, theirs)]
        units = [self._unit(side, pair) for side in SIDES]
        differs = not _same(ends[0], ends[1], 0.0 if units[0] == units[1] else sum(units))
        return _End(Filling(at, dtype.encode(ends[1])), differs)

    # values of both sides

    def _parts(self, side: str, pair: int) -> list[tuple[TraceFile, int]]:
        """In the order of the ranks."""
        files: tuple[TraceFile, ...] = getattr(self._files, side)
        if self._parts_of is None:
            return [(files[int(self._sites[f"{side}_file"][self._row[pair]])], int(self._pairs[f"{side}_value"][pair]))]
        return [(files[file], value) for file, value in getattr(self._parts_of, side)[pair]]

    def _each(self, pair: int, *sides: str) -> Iterator[Array]:
        """What each process of these sides, of both if none is given, has of a value."""
        return (file.read(value) for side in sides or SIDES for file, value in _distinct(self._parts(side, pair)))

    def _read(self, side: str, pair: int, dim: int, size: int) -> Array:
        """A value that has so many places of a dimension, on each process or one after the other. Raises TraceError where it has not."""
        every = self._parts(side, pair)
        distinct = _distinct(every)
        for parts in (every, distinct):
            shapes = [file.shape(value) for file, value in parts]
            at = dim % max(1, len(shapes[0])) if shapes else 0
            if len({(len(shape), shape[:at], shape[at + 1 :]) for shape in shapes}) != 1:
                continue
            if all(shape[at] == size for shape in shapes):
                first, *others = (file.read(value) for file, value in distinct)
                if all(np.array_equal(first, other) for other in others):
                    return first
            elif sum(shape[at] for shape in shapes) == size:
                return np.concatenate([file.read(value) for file, value in parts], axis=at)
        raise TraceError(f"no value with {size} places")

    def _shape(self, pair: int) -> tuple[int, ...]:
        file, value = self._parts("reference", pair)[0]
        return file.shape(value)

    def _unit(self, side: str, pair: int) -> float:
        dtypes = [file.dtype(value) for file, value in self._parts(side, pair)]
        return max((dtype.unit_roundoff or 0.0 for dtype in dtypes if dtype is not None), default=0.0)

    def _same_bits(self, pair: int) -> bool:
        ours, theirs = ({(file.fingerprint(value), file.dtype_name(value)) for file, value in self._parts(side, pair)} for side in SIDES)
        return len(ours) == 1 and ours == theirs and all(bits is not None for bits, _ in ours)

    def _may_hide(self, pair: int) -> bool:
        """Whether logits that say "not at all" may be among these, by their statistics."""
        known = [file.statistics(value) for side in SIDES for file, value in self._parts(side, pair)]
        return any(one is None or one.neginf > 0 or one.minimum <= _LOWEST_FLOAT16 for one in known)

    def _name(self, pair: int) -> str:
        site = self._texts[int(self._sites["site"][self._row[pair]])] or ""
        return f"{site}.{self._texts[int(self._pairs['position'][pair])] or ''}".lstrip(".")


def _distinct(parts: list[tuple[TraceFile, int]]) -> list[tuple[TraceFile, int]]:
    """Each once, where bits are known."""
    prints = [file.fingerprint(value) for file, value in parts]
    return [one for i, one in enumerate(parts) if prints[i] is None or prints[i] not in prints[:i]]


def _same(one: Array, other: Array, roundoff: float) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.all((one == other) | (np.abs(one - other) <= max(roundoff, 0.0) * np.maximum(np.abs(one), np.abs(other)))))


def _shown(logits: Array) -> int:
    """The places of the last dimension up to the last that is not hidden."""
    with np.errstate(over="ignore"):
        hidden = (logits <= _LOWEST) | (logits == _LOWEST_FLOAT16)
    there = np.flatnonzero(~hidden.reshape(-1, logits.shape[-1]).all(axis=0))
    return int(there[-1]) + 1 if there.size else 0
