"""Numbers for values of many ranks: their placement is inferred, the logical tensor put together and measured, and each part by itself.

All parts of one value are in memory at once; values follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import NOTHING_FILLED, Fillings, infer_filled, leading
from layerdiff.align.placement import FITS, SURELY, Placement
from layerdiff.align.placements import APART, by_shapes, infer
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.expert_ids import local_ids
from layerdiff.judge.pairs.measuring import Numbers, measure_values
from layerdiff.judge.pairs.measuring_layouts import measure_both, same_layout
from layerdiff.judge.pairs.placed import Kept, Part, Placed, all_equal, differing_sizes, joined, kept, put_apart, screened
from layerdiff.judge.pairs.stored_parts import same_parts
from layerdiff.judge.tables import PLACED, Placing, Source, Texts
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]
ELSEWHERE: Final = "some of it may be on ranks that left no file"
OTHER: Final = "its parts hold more places than the reference's, and other numbers: other rows, as experts that are given other tokens"


def fill_ranks(
    pairs: dict[str, NDArray[Any]],
    sites: dict[str, NDArray[Any]],
    texts: Texts,
    files: Both[tuple[TraceFile, ...]],
    parts_of: Both[list[tuple[Part, ...]]],
    placed: dict[int, Placed],
    stages: Both[list[int]] = Both([], []),
    fillings: Fillings = NOTHING_FILLED,
) -> Iterator[int]:
    """Fill the columns of `pairs`, in their order, and `placed` by pair; yields the bytes done, after each pair.

    `stages`: of a pipeline, for each file. Parts that are no part of a value are taken out of `parts_of`.
    """
    same, incomplete = same_layout(pairs, files, parts_of), _lacks_ranks(files.target)
    likely: dict[tuple[int, ...], Placement] = {}
    known: _Known = {}

    def key_of(pair: int) -> _Key:
        value, number = int(pairs["reference_value"][pair]), int(sites["reference_file"][pairs["site"][pair]])
        return value, parts_of.reference[pair] or ((number, value),), parts_of.target[pair]

    def measured(pair: int) -> tuple[Numbers, Placed | None]:
        value, ours, parts = key = key_of(pair)
        if key not in known:
            reference = files.reference[int(sites["reference_file"][pairs["site"][pair]])]
            if pairs["role"][pair] != Role.WEIGHT and (unlike := _unlike(reference, value, files.target, parts)):
                known[key] = Numbers({"source": int(Source.NOTHING)}, unlike), None
                return known[key]
            many = len(ours) > 1
            known[key] = (
                measure_both(files, ours, parts, likely, same, stages, fillings)
                if many
                else _measured(reference, value, files.target, parts, likely, stages.target, fillings)
            )
        return known[key]

    for ids in local_ids(pairs, len(sites["site"]), files, parts_of, lambda pair: measured(pair)[1]):
        of = ids.parts.map(lambda parts: tuple(file for file, _ in parts))
        own = None if len(of.reference) == 1 else ids.placements.reference
        key = ids.parts.reference[0][1], ids.parts.reference, ids.parts.target
        known[key] = _put_together(Placed(ids.placements.target, of.target, (), None, None, own, of.reference), ids.parts, files)
        for pair, stacked in ids.weights.items():
            known[key_of(pair)] = _put_together(stacked, Both(parts_of.reference[pair], parts_of.target[pair]), files)
    counted: set[_Key] = set()
    done = 0
    for pair, site in enumerate(pairs["site"].tolist()):
        value, parts, ours = int(pairs["reference_value"][pair]), parts_of.target[pair], parts_of.reference[pair]
        reference, targets = files.reference[int(sites["reference_file"][site])], files.target
        if key_of(pair) not in counted:
            counted.add(key_of(pair))
            done += int(reference.values.nbytes[value]) + sum(int(targets[file].values.nbytes[one]) for file, one in parts)
        found = measured(pair)
        numbers, where = found
        if incomplete and where is not None and _may_lie_elsewhere(where.placement, where.shape or reference.shape(value)):
            where = replace(where, placement=Placement("unknown", ELSEWHERE), errors=())
            numbers = put_apart(where.placement)
        shape = reference.shape(value) if where is None or where.shape is None else where.shape
        if where is not None and pairs["role"][pair] != Role.WEIGHT:
            if _has_other_places(where.placement, shape, likely, fillings):
                where = replace(where, placement=Placement("unknown", OTHER), errors=())
            if where.placement.name == OTHER or _lacks_places(where, shape):
                numbers = put_apart(where.placement)
        for name, number in numbers.columns.items():
            pairs[name][pair] = number
        if where is None and len(ours) > 1:  # parts of two layouts, not put together: their shapes say nothing
            pairs["target_shape"][pair] = pairs["reference_shape"][pair]
        if where is not None:
            placed[pair] = where
            if len(where.files) < len(parts):
                parts_of.target[pair] = tuple(part for part in parts if part[0] in where.files)
            if where.our_files and len(where.our_files) < len(ours):
                parts_of.reference[pair] = tuple(part for part in ours if part[0] in where.our_files)
            if where.placement.kind != "unknown" or where.placement.name == ELSEWHERE:
                if where.shape is not None:
                    pairs["reference_shape"][pair] = texts.intern(json.dumps(list(where.shape)))
                pairs["target_shape"][pair] = pairs["reference_shape"][pair]
                pairs["count"][pair] = reference.count(value) if where.shape is None else int(np.prod(where.shape))
        if numbers.reason is not None and sites["statement"][site] < 0:
            sites["statement"][site] = texts.intern(f"{texts[int(pairs['position'][pair])]}: {numbers.reason}")
        yield done


_Key = tuple[int, tuple[Part, ...], tuple[Part, ...]]
"""The reference's value, its parts and the ranks'."""
_Known = dict[_Key, tuple[Numbers, Placed | None]]


def _put_together(placed: Placed, parts_of: Both[tuple[Part, ...]], files: Both[tuple[TraceFile, ...]]) -> tuple[Numbers, Placed]:
    """A value that was placed otherwise than by its own numbers."""
    ours, theirs = ([kept(side[file], value) for file, value in parts] for side, parts in zip(files, parts_of, strict=True))
    if placed.ours is None:
        return screened(ours[0], theirs, replace(placed, our_files=()))
    shape = placed.shape or ours[0].bits.shape
    return screened(joined(placed.ours, shape, ours), theirs, replace(placed, shape=shape))


def _unlike(reference: TraceFile, value: int, targets: Sequence[TraceFile], parts: tuple[Part, ...]) -> str | None:
    """Why a value is no other form of the reference's: ids in place of logits; None where it may be one."""
    kinds = {
        (file.dtype_name(one), known.kind) for file, one in ((targets[file], one) for file, one in parts) if (known := file.dtype(one))
    }
    own = reference.dtype(value)
    if own is None or not kinds or any({own.kind, kind} != {"integer", "float"} for _, kind in kinds):
        return None
    return f"{own.name} and {next(iter(kinds))[0]} cannot be compared by number"


def _lacks_places(where: Placed, shape: tuple[int, ...]) -> bool:
    """Whether a call hands on only a part of what the reference's does: experts that are given other tokens, a part of a batch."""
    return where.placement.twice or (where.placement.kind == "sharded" and not where.placement.covers(shape))


def _has_other_places(placement: Placement, shape: tuple[int, ...], likely: dict[tuple[int, ...], Placement], fillings: Fillings) -> bool:
    """Whether parts that are longer together than the whole fit it nowhere, and no value of these sizes says that they are filled up."""
    if placement.kind != "sharded" or placement.fits or not placement.is_filled:
        return False
    whole, sizes = shape[placement.dim], tuple(at.size for at in placement.positions)
    known = likely.get((whole, *sizes))
    filled = any((whole, theirs) in fillings.sizes for theirs in (sum(sizes), *sizes))
    return not filled and (known is None or known.reading != placement.reading)


def _lacks_ranks(files: Sequence[TraceFile]) -> bool:
    """Whether the run had more ranks than there are files."""
    worlds = [size for file in files if type(size := file.meta.get("world_size")) is int]
    return max(worlds, default=0) > len({file.rank for file in files})


def _may_lie_elsewhere(placement: Placement, shape: tuple[int, ...]) -> bool:
    """Whether parts of ranks that are not there may make up what is amiss: places on no rank, and values that differ, as a sum's do."""
    if placement.adds_up and not placement.error < SURELY:  # the sum lacks something
        return True
    return placement.kind == "unknown" or not placement.fits or placement.name == APART or not placement.covers(shape)


def _measured(
    reference: TraceFile,
    value: int,
    targets: Sequence[TraceFile],
    parts: tuple[Part, ...],
    likely: dict[tuple[int, ...], Placement],
    stages: Sequence[int],
    fillings: Fillings,
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
        if len(parts) == 1 and error > FITS and reference.has_bytes(value) and targets[parts[0][0]].has_bytes(parts[0][1]):
            return _together(reference, value, targets, parts, likely, stages, fillings)  # rows in an order of their own, or another value
        name = "replicated" if len(parts) > 1 else "on one rank"
        return numbers, Placed(Placement("replicated", name, error=error), files, (error,) * len(files), True if len(files) > 1 else None)
    if not reference.has_bytes(value) or not all(targets[file].has_bytes(one) for file, one in parts):
        shapes = [targets[file].shape(one) for file, one in parts]
        placement = by_shapes(reference.shape(value), shapes)
        why = "bytes of every rank are needed to put it together: record with --keep full, and --weights used for weights"
        return Numbers({"source": int(Source.NOTHING)}, why), None if placement is None else Placed(placement, files, (), None)
    try:
        return _together(reference, value, targets, parts, likely, stages, fillings)
    except TraceError as error:
        return Numbers({"source": int(Source.NOTHING)}, str(error)), None


def _alike(targets: Sequence[TraceFile], parts: tuple[Part, ...]) -> bool:
    """Whether all ranks recorded the same bits, by their fingerprints."""
    prints = {(targets[file].fingerprint(one), targets[file].dtype_name(one), targets[file].shape(one)) for file, one in parts}
    return (len(prints) == 1 and next(iter(prints))[0] is not None) or len(parts) == 1


def _together(
    reference: TraceFile,
    value: int,
    targets: Sequence[TraceFile],
    parts: tuple[Part, ...],
    likely: dict[tuple[int, ...], Placement],
    stages: Sequence[int],
    fillings: Fillings,
) -> tuple[Numbers, Placed]:
    """`likely`: by sizes of a dimension, whole and parts, the sharding that fitted last; kept up to date."""
    shape, files = reference.shape(value), tuple(file for file, _ in parts)
    shapes = [targets[file].shape(one) for file, one in parts]
    of_stages = {stages[file] for file in files} if stages else set()
    sizes = differing_sizes(shape, shapes)
    known = likely.get(sizes)
    before = known if known is not None and known.reading and shape[known.dim :][:1] == sizes[:1] else None
    if all(part == shape for part in shapes) and len(of_stages) < 2:
        before = Placement("replicated", "replicated")
    stored, theirs = reference.stored(value), [targets[file].stored(one) for file, one in parts]
    if before is not None and stored is not None and same_parts(before, shape, stored, theirs):  # nothing tells against it
        return all_equal(stored, Placed(replace(before, error=0.0), files, (), None))
    whole, held = kept(reference, value), [kept(targets[file], one) for file, one in parts]
    filled = infer_filled(whole.numbers, [x.numbers for x in held], fillings)
    if filled is not None:
        ours, placement = filled
        if ours is None:
            return screened(whole, held, Placed(placement, files, (), None))
        counted = Kept(whole.dtype, leading(whole.bits, ours.dim, int(ours.positions[0].max()) + 1))
        return screened(counted, held, Placed(placement, files, (), None, counted.bits.shape, ours, (0,)))
    placement = infer(whole.numbers, [x.numbers for x in held], known)
    chosen = list(range(len(parts)))
    if (placement.kind in ("replicated", "unknown", "partial") or not placement.fits) and len(of_stages) > 1:
        # A call that several stages run by themselves is given, and hands on, what each has: it is the reference's in one of them.
        each = [[i for i, (file, _) in enumerate(parts) if stages[file] == stage] for stage in sorted(of_stages)]
        of = [differing_sizes(shape, [shapes[i] for i in own]) for own in each]
        readings = [infer(whole.numbers, [held[i].numbers for i in own], likely.get(at)) for own, at in zip(each, of, strict=True)]
        best, of_best = min(zip(readings, each, strict=True), key=lambda one: one[0].error if one[0].kind != "unknown" else np.inf)
        if best.kind != "unknown" and best.fits and not (placement.adds_up and placement.error <= best.error):
            placement, chosen = best, of_best
    if placement.is_sure:
        likely[differing_sizes(shape, [shapes[i] for i in chosen])] = placement
    return screened(whole, [held[i] for i in chosen], Placed(placement, tuple(files[i] for i in chosen), (), None))


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
