"""`Placed`: how one value of many ranks makes up a logical tensor, and how far each part is from the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import PAD, Placement
from layerdiff.align.runs import runs_of, text_of
from layerdiff.judge.pairs.measuring import NUMBERS, Numbers
from layerdiff.judge.tables import Source
from layerdiff.measure.blocks import ArrayBlocks, Blocks
from layerdiff.measure.screening import screen
from layerdiff.measure.sums import SquareSum
from layerdiff.trace.dtypes import Dtype, dtype_named
from layerdiff.trace.reader import TraceFile

Array = NDArray[Any]
T = TypeVar("T")
_AT_ONCE: Final = 1 << 18
"""Elements of a part that are measured at once."""
Part = tuple[int, int]
"""File of a rank, and value."""


@dataclass(frozen=True)
class Placed:
    """How one value of many ranks was placed, and how far each rank's part is from its part of the reference.

    Attributes:
        placement: as inferred.
        errors: relative L2 error of each part; of partial values NaN.
        equal: whether the parts that hold the same places have the same bits; None where none do.
        shape: of the logical tensor, where the reference is made up of parts too, and `ours` how, of the files `our_files`; and where it
            is the reference that is filled up in a dimension (align/filling.py); else None.
    """

    placement: Placement
    files: tuple[int, ...]
    errors: tuple[float, ...]
    equal: bool | None
    shape: tuple[int, ...] | None = None
    ours: Placement | None = None
    our_files: tuple[int, ...] = ()

    def standing(self, parts: Sequence[T]) -> Sequence[T]:
        """The parts that make up the logical tensor: of ranks that hold the same places the furthest off, which hides behind none."""
        if self.placement.kind == "unknown" or self.placement.adds_up or self.placement.numbers or len(self.errors) != len(parts):
            return parts
        worst: dict[tuple[bytes, ...], int] = {}
        places = [self.placement.places_of_rank(rank) for rank in range(len(parts))]
        for rank, held in enumerate(places):
            if self._off(rank) > self._off(worst.setdefault(held, rank)):
                worst[held] = rank
        if self.placement.kind == "replicated":
            return [parts[worst[places[0]]]]
        return [parts[worst[held]] for held in places]

    def _off(self, rank: int) -> float:
        return -1.0 if self.errors[rank] != self.errors[rank] else self.errors[rank]

    @cached_property
    def holds(self) -> tuple[str | None, ...]:
        """For each part the places that it holds, as align.runs has them; None where it holds all, or they are too many runs."""
        return tuple(text_of(runs_of(at)) for at in self.placement.positions) or (None,) * len(self.files)


@dataclass(frozen=True)
class Kept:
    """A recorded value in memory: its bits, and as numbers."""

    dtype: Dtype
    bits: Array

    @cached_property
    def numbers(self) -> Array:
        """As `TraceFile.read`; a view of the bits where they are numbers themselves."""
        return self.dtype.decode(self.bits)


def kept(file: TraceFile, value: int) -> Kept:
    """Raises TraceError where its bytes were not kept."""
    bits = file.raw(value)
    dtype = file.dtype(value)
    assert dtype is not None
    return Kept(dtype, bits)


def joined(placement: Placement, shape: tuple[int, ...], parts: Sequence[Kept]) -> Kept:
    """The logical tensor bit for bit; in float32 for a sum of parts, and where the parts have several dtypes."""
    if placement.adds_up or len({part.dtype.name for part in parts}) > 1:
        wide = dtype_named("float32")
        assert wide is not None
        return Kept(wide, placement.joined([part.numbers.astype(np.float32) for part in parts], shape).astype(np.float32))
    return Kept(parts[0].dtype, np.ascontiguousarray(placement.joined([part.bits for part in parts], shape)))


def screened(whole: Kept, parts: Sequence[Kept], placed: Placed) -> tuple[Numbers, Placed]:
    """The logical tensor of the target's parts measured against the reference's, and each part by itself."""
    placement = placed.placement
    if placement.kind == "unknown":
        return put_apart(placement), placed
    stored = ArrayBlocks(whole.dtype, whole.bits)
    if same_bits(placement, whole, parts):
        return all_equal(stored, placed)
    errors = tuple(_error(placement, whole.numbers, part.numbers, rank) for rank, part in enumerate(parts))
    placed = replace(placed, errors=errors, equal=_agree(placement, errors, parts))
    logical = joined(placement, whole.bits.shape, placed.standing(parts))
    screening = vars(screen(stored, ArrayBlocks(logical.dtype, logical.bits)))
    if not screening["equal"] and screening["mismatched"] < 0 and screening["rel_l2"] != screening["rel_l2"]:
        return Numbers({"source": int(Source.NOTHING)}, "cannot be compared by number"), placed
    return Numbers({"source": int(Source.BYTES), **{name: screening[name] for name in NUMBERS}}), placed


def all_equal(whole: Blocks, placed: Placed) -> tuple[Numbers, Placed]:
    """Every part has the bits of its part of the whole."""
    errors = (0.0,) * len(placed.files)
    screening = vars(screen(whole, whole, same=True))
    numbers = Numbers({"source": int(Source.BYTES), **{name: screening[name] for name in NUMBERS}})
    return numbers, replace(placed, errors=errors, equal=_agree(placed.placement, errors))


def put_apart(placement: Placement) -> Numbers:
    """Of parts that are not put together: nobody knows how far the value is off."""
    return Numbers({"source": int(Source.NOTHING), "rel_l2": np.inf}, f"not put together: {placement.name}")


def same_bits(placement: Placement, whole: Kept, parts: Sequence[Kept]) -> bool:
    """Whether every part has the bits of its part of the whole, and together they have all of it: then nothing is put together."""
    if placement.kind not in ("sharded", "replicated") or placement.numbers or any(part.dtype != whole.dtype for part in parts):
        return False
    if placement.is_filled or not placement.covers(whole.bits.shape):
        return False
    return all(np.array_equal(placement.part(whole.bits, rank), part.bits) for rank, part in enumerate(parts))


def differing_sizes(whole: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Sizes, whole and of each part, of the first dimension in which they differ; empty where there is none."""
    for dim, size in enumerate(whole):
        if all(len(part) == len(whole) for part in parts) and any(part[dim] != size for part in parts):
            return (size, *(part[dim] for part in parts))
    return ()


def _error(placement: Placement, whole: Array, part: Array, rank: int) -> float:
    """Relative L2 error of a rank's part; of whole numbers the share that differs; NaN where its part is not known by itself."""
    if placement.adds_up:
        return float("nan")
    own, part = (_held(placement, rank, x) for x in (placement.part(whole, rank), part))
    if np.array_equal(own, part):
        return 0.0
    if own.dtype.kind not in "fc" or part.dtype.kind not in "fc":
        return float(np.mean(own != part)) if own.size else 0.0
    off, size = SquareSum(), SquareSum()
    for one, other in zip(_flat(own), _flat(part), strict=True):
        with np.errstate(all="ignore"):
            difference = np.abs(other - one)
            good = np.isfinite(difference)
            if not good.all():
                difference, one = difference[good], one[good]
        off.add(difference, float(difference.max(initial=0.0)))
        size.add(np.abs(one), float(np.abs(one).max(initial=0.0)))
    return off.relative_to(size)


def _held(placement: Placement, rank: int, part: Array) -> Array:
    """A rank's part without padding."""
    if placement.kind != "sharded" or not np.any(placement.positions[rank] == PAD):
        return part
    return np.compress(placement.positions[rank] != PAD, part, axis=placement.dim_of_parts)


def _flat(x: Array) -> Iterator[Array]:
    flat = x.reshape(-1)
    for begin in range(0, flat.size, _AT_ONCE):
        yield flat[begin : begin + _AT_ONCE]


def _agree(placement: Placement, errors: Sequence[float], parts: Sequence[Kept] = ()) -> bool | None:
    """Whether ranks that hold the same places hold the same numbers; parts without an error are the reference's own."""

    def same(one: int, other: int) -> bool:
        if errors[one] == errors[other] == 0.0:
            return True
        numbers = _held(placement, one, parts[one].numbers), _held(placement, other, parts[other].numbers)
        return bool(np.array_equal(*numbers, equal_nan=numbers[0].dtype.kind == "f"))

    if placement.kind == "unknown" or placement.adds_up:
        return None
    held: dict[tuple[bytes, ...], int] = {}
    agree: bool | None = None
    for rank in range(len(errors)):
        other = held.setdefault(placement.places_of_rank(rank), rank)
        if other != rank:
            agree = same(other, rank) if agree is None else agree and same(other, rank)
    return agree
