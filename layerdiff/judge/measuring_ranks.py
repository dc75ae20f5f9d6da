"""Numbers for values of many ranks: their placement is inferred, the logical tensor put together and measured, and each part by itself.

All parts of one value are in memory at once; values follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import infer_both
from layerdiff.align.placement import FITS, Placement
from layerdiff.align.placements import by_shapes, infer
from layerdiff.align.runs import runs_of, text_of
from layerdiff.errors import TraceError
from layerdiff.judge.measuring import NUMBERS, Numbers, measure_values
from layerdiff.judge.tables import PLACED, Placing, Source, Texts
from layerdiff.measure.blocks import ArrayBlocks
from layerdiff.measure.screening import screen
from layerdiff.measure.sums import SquareSum
from layerdiff.sides import Both
from layerdiff.trace.dtypes import Dtype, dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]
SURELY: Final = 0.05
"""Relative error up to which parts that were matched one by one are believed of other values too."""
T = TypeVar("T")
_NEARLY: Final = 2.0**-7
"""Of its size, how far mean and root mean square of a weight may move by a rounding to bfloat16."""
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
        shape: of the logical tensor, where the reference is made up of parts too, and `ours` how, of the files `our_files`; else None.
    """

    placement: Placement
    files: tuple[int, ...]
    errors: tuple[float, ...]
    equal: bool | None
    shape: tuple[int, ...] | None = None
    ours: Placement | None = None
    our_files: tuple[int, ...] = ()

    def standing(self, parts: Sequence[T]) -> Sequence[T]:
        """The parts that make up the logical tensor: of a replicated value the one furthest off, so that no rank hides behind another."""
        if self.placement.kind != "replicated" or len(self.errors) != len(parts):
            return parts
        worst = max(range(len(parts)), key=lambda rank: -1.0 if self.errors[rank] != self.errors[rank] else self.errors[rank])
        return [parts[worst]]

    @cached_property
    def holds(self) -> tuple[str | None, ...]:
        """For each part the places that it holds, as align.runs has them; None where it holds all, or they are too many runs."""
        return tuple(text_of(runs_of(at)) for at in self.placement.positions) or (None,) * len(self.files)


def fill_ranks(
    pairs: dict[str, NDArray[Any]],
    sites: dict[str, NDArray[Any]],
    texts: Texts,
    files: Both[tuple[TraceFile, ...]],
    parts_of: Both[list[tuple[Part, ...]]],
    placed: dict[int, Placed],
    stages: Both[list[int]] = Both([], []),
) -> Iterator[int]:
    """Fill the columns of `pairs`, in their order, and `placed` by pair; yields the bytes done, after each pair.

    `stages`: of a pipeline, for each file. Parts that are no part of a value are taken out of `parts_of`.
    """
    same = _same_layout(pairs, files, parts_of)
    known: dict[tuple[int, tuple[Part, ...], tuple[Part, ...]], tuple[Numbers, Placed | None]] = {}
    likely: dict[tuple[int, ...], Placement] = {}
    done = 0
    for pair, site in enumerate(pairs["site"].tolist()):
        value, parts, ours = int(pairs["reference_value"][pair]), parts_of.target[pair], parts_of.reference[pair]
        number = int(sites["reference_file"][site])
        reference, targets = files.reference[number], files.target
        key = (value, ours or ((number, value),), parts)
        found = known.get(key)
        if found is None:
            if len(ours) > 1:
                found = known[key] = _both_together(files, ours, parts, likely, same, stages)
            else:
                found = known[key] = _measured(reference, value, targets, parts, likely, stages.target)
            done += int(reference.values.nbytes[value]) + sum(int(targets[file].values.nbytes[one]) for file, one in parts)
        numbers, where = found
        if where is not None and where.placement.twice and pairs["role"][pair] != Role.WEIGHT:  # experts that are given other tokens
            numbers = _apart(where.placement)
        for name, number in numbers.columns.items():
            pairs[name][pair] = number
        if where is not None:
            placed[pair] = where
            if len(where.files) < len(parts):
                parts_of.target[pair] = tuple(part for part in parts if part[0] in where.files)
            if where.our_files and len(where.our_files) < len(ours):
                parts_of.reference[pair] = tuple(part for part in ours if part[0] in where.our_files)
            if where.placement.kind != "unknown":
                if where.shape is not None:
                    pairs["reference_shape"][pair] = texts.intern(json.dumps(list(where.shape)))
                pairs["target_shape"][pair] = pairs["reference_shape"][pair]
                pairs["count"][pair] = reference.count(value) if where.shape is None else int(np.prod(where.shape))
        if numbers.reason is not None and sites["statement"][site] < 0:
            sites["statement"][site] = texts.intern(f"{texts[int(pairs['position'][pair])]}: {numbers.reason}")
        yield done


def _same_layout(
    pairs: Mapping[str, NDArray[Any]], files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]
) -> bool | None:
    """Whether two runs of many ranks are cut alike: whether each rank holds what the same rank of the other does of cut weights.

    None where no weight tells.
    """
    if len(files.reference) < 2:
        return None
    if len(files.reference) != len(files.target):
        return False
    told = []
    for pair in np.flatnonzero(pairs["role"] == Role.WEIGHT).tolist():
        ours, theirs = parts_of.reference[pair], parts_of.target[pair]
        figures = [
            [(one.mean, one.rms) for file, value in parts if (one := side[file].statistics(value)) is not None]
            for side, parts in zip(files, (ours, theirs), strict=True)
        ]
        if not len(ours) == len(theirs) == len(figures[0]) == len(figures[1]) or len(set(figures[0])) < 2:
            continue
        shapes = [[side[file].shape(value) for file, value in parts] for side, parts in zip(files, (ours, theirs), strict=True)]
        size = max(rms for _, rms in figures[0])
        near = np.allclose(figures[0], figures[1], rtol=0.0, atol=_NEARLY * size) if shapes[0] == shapes[1] else False
        apart = min(abs(a[0] - b[0]) + abs(a[1] - b[1]) for i, a in enumerate(figures[0]) for b in figures[0][:i])
        if not near or apart > _NEARLY * size:
            told.append(bool(near))
    return None if not told else sum(told) * 2 > len(told)


def _measured(
    reference: TraceFile,
    value: int,
    targets: Sequence[TraceFile],
    parts: tuple[Part, ...],
    likely: dict[tuple[int, ...], Placement],
    stages: Sequence[int],
) -> tuple[Numbers, Placed | None]:
    if not parts:
        return Numbers({"source": int(Source.NOTHING)}, "no rank has it"), None
    whole = tuple(part for part in parts if targets[part[0]].shape(part[1]) == reference.shape(value))
    if whole:
        parts = whole  # stages of a pipeline: what the others are given or hand on is no part of it
    files = tuple(file for file, _ in parts)
    first = Both(reference, targets[parts[0][0]]), Both(value, parts[0][1])
    if _alike(targets, parts) and reference.shape(value) == targets[parts[0][0]].shape(parts[0][1]):
        numbers = measure_values(*first)
        error = float(numbers.columns.get("rel_l2", np.nan))
        name = "replicated" if len(parts) > 1 else "on one rank"
        return numbers, Placed(Placement("replicated", name, error=error), files, (error,) * len(files), True if len(files) > 1 else None)
    if not reference.has_bytes(value) or not all(targets[file].has_bytes(one) for file, one in parts):
        shapes = [targets[file].shape(one) for file, one in parts]
        placement = by_shapes(reference.shape(value), shapes)
        why = "bytes of every rank are needed to put it together: record with --keep full, and --weights used for weights"
        return Numbers({"source": int(Source.NOTHING)}, why), None if placement is None else Placed(placement, files, (), None)
    try:
        return _together(reference, value, targets, parts, likely, stages)
    except TraceError as error:
        return Numbers({"source": int(Source.NOTHING)}, str(error)), None


def _alike(targets: Sequence[TraceFile], parts: tuple[Part, ...]) -> bool:
    """Whether all ranks recorded the same bits, by their fingerprints."""
    prints = {(targets[file].fingerprint(one), targets[file].dtype_name(one), targets[file].shape(one)) for file, one in parts}
    return (len(prints) == 1 and next(iter(prints))[0] is not None) or len(parts) == 1


@dataclass(frozen=True)
class _Kept:
    """A recorded value in memory: its bits, and as numbers."""

    dtype: Dtype
    bits: Array

    @cached_property
    def numbers(self) -> Array:
        """As `TraceFile.read`; a view of the bits where they are numbers themselves."""
        return self.dtype.decode(self.bits)


def _kept(file: TraceFile, value: int) -> _Kept:
    """Raises TraceError where its bytes were not kept."""
    bits = file.raw(value)
    dtype = file.dtype(value)
    assert dtype is not None
    return _Kept(dtype, bits)


def _together(
    reference: TraceFile,
    value: int,
    targets: Sequence[TraceFile],
    parts: tuple[Part, ...],
    likely: dict[tuple[int, ...], Placement],
    stages: Sequence[int],
) -> tuple[Numbers, Placed]:
    """`likely`: by sizes of a dimension, whole and parts, the sharding that fitted last; kept up to date."""
    whole, held = _kept(reference, value), [_kept(targets[file], one) for file, one in parts]
    sizes = _sizes(whole.bits.shape, [x.bits.shape for x in held])
    placement = infer(whole.numbers, [x.numbers for x in held], likely.get(sizes))
    chosen = list(range(len(parts)))
    of_stages = {stages[file] for file, _ in parts} if stages else set()
    if placement.kind == "replicated" and len(of_stages) > 1:
        # A call that several stages run by themselves is given what each has: it is the reference's in one of them.
        each = [[i for i, (file, _) in enumerate(parts) if stages[file] == stage] for stage in sorted(of_stages)]
        readings = [infer(whole.numbers, [held[i].numbers for i in own], likely.get(sizes)) for own in each]
        placement, chosen = min(zip(readings, each, strict=True), key=lambda one: one[0].error)
    if placement.kind == "sharded" and placement.fits and not placement.also and (placement.reading or placement.error < SURELY):
        likely[sizes] = placement
    return _screened(whole, [held[i] for i in chosen], Placed(placement, tuple(parts[i][0] for i in chosen), (), None))


def _both_together(
    files: Both[tuple[TraceFile, ...]],
    ours: tuple[Part, ...],
    theirs: tuple[Part, ...],
    likely: dict[tuple[int, ...], Placement],
    same: bool | None,
    stages: Both[list[int]],
) -> tuple[Numbers, Placed | None]:
    """A value that both sides have in parts: the logical tensor as the reference's ranks have it, and as the target's."""
    sides = Both(ours, theirs)
    every = [(side[file], value) for side, parts in zip(files, sides, strict=True) for file, value in parts]
    if not theirs or not all(file.has_bytes(value) for file, value in every):
        why = "bytes of every rank of both sides are needed to put it together: record with --keep full, and --weights used for weights"
        return Numbers({"source": int(Source.NOTHING)}, why), None
    try:
        kept = Both(*([_kept(side[file], value) for file, value in parts] for side, parts in zip(files, sides, strict=True)))
    except TraceError as error:
        return Numbers({"source": int(Source.NOTHING)}, str(error)), None
    best: tuple[Both[list[int]], Placement, Array, Placement] | None = None
    for chosen in _of_one_stage(sides, stages):
        mine, held = ([parts[i] for i in own] for parts, own in zip(kept, chosen, strict=True))
        sizes = _sizes(mine[0].bits.shape, [x.bits.shape for x in held])
        placement, whole, other = infer_both([x.numbers for x in mine], [x.numbers for x in held], likely.get(sizes), same)
        fits = other.kind != "unknown" and other.fits and other.error < FITS
        if best is None or fits:
            best = chosen, placement, whole, other
        if fits:
            break
    assert best is not None
    chosen, placement, whole, other = best
    of = Both(*(tuple(parts[i][0] for i in own) for parts, own in zip(sides, chosen, strict=True)))
    placed = Placed(other, of.target, (), None, whole.shape, placement, of.reference)
    mine, held = ([parts[i] for i in own] for parts, own in zip(kept, chosen, strict=True))
    return _screened(_joined(placement, whole.shape, mine), held, placed)


def _of_one_stage(sides: Both[tuple[Part, ...]], stages: Both[list[int]]) -> Iterator[Both[list[int]]]:
    """Which parts may be one value: all; where both sides are pipelines, those of one stage of each, the last stages first.

    A call that several stages run by themselves is given, and hands on, what each has.
    """
    of = [[own[file] if own else 0 for file, _ in parts] for parts, own in zip(sides, stages, strict=True)]
    if all(len(set(one)) > 1 for one in of):
        for ours in sorted(set(of[0]), reverse=True):
            for theirs in sorted(set(of[1]), reverse=True):
                yield Both([i for i, stage in enumerate(of[0]) if stage == ours], [i for i, stage in enumerate(of[1]) if stage == theirs])
    else:
        yield Both(*(list(range(len(parts))) for parts in sides))


def _joined(placement: Placement, shape: tuple[int, ...], parts: Sequence[_Kept]) -> _Kept:
    """The logical tensor bit for bit; in float32 for a sum of parts, and where the parts have several dtypes."""
    if placement.adds_up or len({part.dtype.name for part in parts}) > 1:
        wide = dtype_named("float32")
        assert wide is not None
        return _Kept(wide, placement.joined([part.numbers.astype(np.float32) for part in parts], shape).astype(np.float32))
    return _Kept(parts[0].dtype, np.ascontiguousarray(placement.joined([part.bits for part in parts], shape)))


def _screened(whole: _Kept, parts: Sequence[_Kept], placed: Placed) -> tuple[Numbers, Placed]:
    """The logical tensor of the target's parts measured against the reference's, and each part by itself."""
    placement = placed.placement
    if placement.kind == "unknown":
        return _apart(placement), placed
    stored = ArrayBlocks(whole.dtype, whole.bits)
    if _same_bits(placement, whole, parts):
        placed = replace(placed, errors=(0.0,) * len(parts))
        placed = replace(placed, equal=_agree(placement, [part.numbers for part in parts], placed.errors))
        screening = vars(screen(stored, stored, same=True))
    else:
        errors = tuple(_error(placement, whole.numbers, part.numbers, rank) for rank, part in enumerate(parts))
        placed = replace(placed, errors=errors, equal=_agree(placement, [part.numbers for part in parts], errors))
        logical = _joined(placement, whole.bits.shape, placed.standing(parts))
        screening = vars(screen(stored, ArrayBlocks(logical.dtype, logical.bits)))
    if not screening["equal"] and screening["mismatched"] < 0 and screening["rel_l2"] != screening["rel_l2"]:
        return Numbers({"source": int(Source.NOTHING)}, "cannot be compared by number"), placed
    return Numbers({"source": int(Source.BYTES), **{name: screening[name] for name in NUMBERS}}), placed


def _apart(placement: Placement) -> Numbers:
    """Of parts that are not put together: nobody knows how far the value is off."""
    return Numbers({"source": int(Source.NOTHING), "rel_l2": np.inf}, f"not put together: {placement.name}")


def _same_bits(placement: Placement, whole: _Kept, parts: Sequence[_Kept]) -> bool:
    """Whether every part has the bits of its part of the whole, and together they have all of it: then nothing is put together."""
    if placement.kind not in ("sharded", "replicated") or placement.missing or any(part.dtype != whole.dtype for part in parts):
        return False
    if placement.kind == "sharded":
        held = np.concatenate(placement.positions)
        if np.any(held < 0) or np.unique(held).size < whole.bits.shape[placement.dim]:
            return False
    return all(np.array_equal(placement.part(whole.bits, rank), part.bits) for rank, part in enumerate(parts))


def _sizes(whole: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Sizes, whole and of each part, of the first dimension in which they differ; empty where there is none."""
    for dim, size in enumerate(whole):
        if all(len(part) == len(whole) for part in parts) and any(part[dim] != size for part in parts):
            return (size, *(part[dim] for part in parts))
    return ()


def _error(placement: Placement, whole: Array, part: Array, rank: int) -> float:
    """Relative L2 error of a rank's part; of whole numbers the share that differs; NaN where its part is not known by itself."""
    if placement.adds_up:
        return float("nan")
    own = placement.part(whole, rank)
    if placement.kind == "sharded" and np.any(placement.positions[rank] < 0):
        held = placement.positions[rank] >= 0
        own, part = np.compress(held, own, axis=placement.dim), np.compress(held, part, axis=placement.dim)
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


def _flat(x: Array) -> Iterator[Array]:
    flat = x.reshape(-1)
    for begin in range(0, flat.size, _AT_ONCE):
        yield flat[begin : begin + _AT_ONCE]


def _agree(placement: Placement, parts: Sequence[Array], errors: Sequence[float]) -> bool | None:
    """Whether ranks that hold the same places hold the same numbers; parts without an error are the reference's own."""
    if placement.kind == "replicated":
        return all(_same(parts, errors, 0, rank) for rank in range(1, len(parts)))
    if placement.kind != "sharded":
        return None
    held: dict[bytes, int] = {}
    agree: bool | None = None
    for rank, at in enumerate(placement.positions):
        other = held.setdefault(at.tobytes(), rank)
        if other != rank:
            same = _same(parts, errors, other, rank)
            agree = same if agree is None else agree and same
    return agree


def _same(parts: Sequence[Array], errors: Sequence[float], one: int, other: int) -> bool:
    if errors[one] == errors[other] == 0.0:
        return True
    return bool(np.array_equal(parts[one], parts[other], equal_nan=parts[one].dtype.kind == "f"))


def placed_columns(placed: Mapping[int, Placed], texts: Texts, ranks: Sequence[int | None]) -> dict[str, NDArray[Any]]:
    """The columns of PLACED."""
    rows = []
    for pair, one in placed.items():
        placement = one.placement
        name, also = texts.intern(placement.name), texts.intern("; ".join(placement.also) or None)
        kind = int(Placing[placement.kind.upper()])
        errors = one.errors or (float("nan"),) * len(one.files)
        agree = 2 if one.equal is None else int(one.equal)
        rows += [
            (pair, file, ranks[file] or 0, name, kind, placement.dim, texts.intern(held), also, error, agree)
            for file, held, error in zip(one.files, one.holds, errors, strict=True)
        ]
    by_column = list(zip(*rows, strict=True)) if rows else [()] * len(PLACED)
    return {name: np.array(column, dtype) for (name, dtype), column in zip(PLACED.items(), by_column, strict=True)}


def total_bytes_of_ranks(
    pairs: Mapping[str, NDArray[Any]],
    sites: Mapping[str, NDArray[Any]],
    files: Both[tuple[TraceFile, ...]],
    parts_of: Both[list[tuple[Part, ...]]],
) -> int:
    """Bytes to read for all distinct pairs."""
    numbers = sites["reference_file"][pairs["site"]].tolist()
    first = zip(numbers, pairs["reference_value"].tolist(), strict=True)
    distinct = {(ours if len(ours) > 1 else (own,), theirs) for ours, theirs, own in zip(*parts_of, first, strict=True)}
    return sum(
        int(side[file].values.nbytes[value]) for both in distinct for side, parts in zip(files, both, strict=True) for file, value in parts
    )
