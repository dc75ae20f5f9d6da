"""Ids of experts as each rank counts its own: which expert of the whole model each is, told from the stacked weights beside them.

A module that holds some of the experts may be given ids that count from its first one, and numbers that name none (-1, or as many as there
are) for experts of other ranks. Put together, each choice is named by the rank that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import RANK_BY_RANK
from layerdiff.align.placement import PAD, Placement
from layerdiff.align.placements import APART, infer, relative_error
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.pairing import rows_of
from layerdiff.judge.pairs.placed import Part, Placed
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]
LOCAL: Final = "ids that each rank counts from its own first expert"
NOBODY: Final = np.iinfo(np.int64).min
_STACKED: Final = 3
"""Dimensions of a weight that has one matrix for each expert."""
_USUALLY: Final = 0.75
"""Share of the choices of an expert that must have one id on a rank, for that to be the id that a map gives it."""
_MOSTLY: Final = 0.5
"""Share of the choices that must be the reference's: rounding lets a router choose otherwise here and there."""


@dataclass(frozen=True)
class LocalIds:
    """A table of ids that the ranks of one side or of both count for themselves: how each side's make up the model's.

    `weights`: by pair of the stacked weights beside, how they lie, where they by themselves do not tell.
    """

    parts: Both[tuple[Part, ...]]
    placements: Both[Placement]
    weights: Mapping[int, Placed]


def local_ids(
    pairs: Mapping[str, NDArray[Any]],
    sites: int,
    files: Both[tuple[TraceFile, ...]],
    parts_of: Both[list[tuple[Part, ...]]],
    placed_of: Callable[[int], Placed | None],
) -> Iterator[LocalIds]:
    """The ids that ranks count for themselves. `sites`: how many there are; `placed_of`: how the ranks hold the values of a pair."""
    order, start = rows_of(pairs, sites)
    known: set[Both[tuple[Part, ...]]] = set()
    rows: dict[Both[tuple[Part, ...]], Placed | None] = {}

    def in_a_row(weight: int) -> Placed | None:  # of all calls of a module the same: it is read once
        parts = Both(parts_of.reference[weight], parts_of.target[weight])
        if parts not in rows:
            rows[parts] = _stacked_in_a_row(weight, files, parts_of)
        return rows[parts]

    roles = np.asarray(pairs["role"])
    for row in range(sites):
        own = order[start[row] : start[row + 1]].tolist()
        asked = [pair for pair in own if roles[pair] == Role.INPUT and _may_be_local(pair, files, parts_of)]
        stacked = [pair for pair in own if asked and roles[pair] == Role.WEIGHT and _dimensions(pair, files, parts_of) == _STACKED]
        weights: dict[int, Placed] = {}
        held = next((held for pair in stacked if (held := held_experts(placed_of(pair), files, parts_of.reference[pair]))), None)
        if held is None:
            weights = {pair: one for pair in stacked if (one := in_a_row(pair)) is not None}
            held = next((held for pair, one in weights.items() if (held := held_experts(one, files, parts_of.reference[pair]))), None)
        for pair in asked if held is not None else ():
            parts = Both(parts_of.reference[pair], parts_of.target[pair])
            if parts in known or held is None or any(file not in of for of, side in zip(held, parts, strict=True) for file, _ in side):
                continue
            known.add(parts)
            try:
                values = Both(*([side[file].read(value) for file, value in of] for side, of in zip(files, parts, strict=True)))
            except TraceError:
                continue
            experts = Both(*([of[file] for file, _ in side] for of, side in zip(held, parts, strict=True)))
            placements = placed_on_both_sides(values, experts)
            if placements is not None:
                yield LocalIds(parts, placements, weights)


def _stacked_in_a_row(pair: int, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]) -> Placed | None:
    """How two layouts hold stacked experts where one side has them one after the other, whole; None where neither has.

    Matrices of experts side by side, cut along one of their dimensions, are as good a reading of the weights alone.
    """
    ours, theirs = parts_of.reference[pair], parts_of.target[pair]
    if len(ours) < 2 or len(theirs) < 2:
        return None
    try:
        values = Both(*([side[file].read(value) for file, value in of] for side, of in zip(files, (ours, theirs), strict=True)))
    except TraceError:
        return None
    of = Both(tuple(file for file, _ in ours), tuple(file for file, _ in theirs))
    for first in ("reference", "target"):
        mine, other = (values.reference, values.target) if first == "reference" else (values.target, values.reference)
        if len({part.shape[1:] for part in mine}) > 1:
            continue
        edges = np.cumsum([0, *(len(part) for part in mine)]).tolist()
        positions = tuple(np.arange(start, stop, dtype=np.intp) for start, stop in pairwise(edges))
        whole = np.concatenate(mine)
        row, cut = Placement("sharded", "sharded along 0, contiguous", 0, positions), infer(whole, other)
        if cut.kind == "nested" and cut.fits:
            first_row, then = (row, cut) if first == "reference" else (cut, row)
            return Placed(then, of.target, (), None, whole.shape, first_row, of.reference)
    return None


def held_experts(
    placed: Placed | None, files: Both[tuple[TraceFile, ...]], ours: tuple[Part, ...]
) -> Both[dict[int, NDArray[np.intp]]] | None:
    """Of a weight that stacks experts the numbers of those that each file of each side holds; None where that is not known.

    `ours`: the parts of the reference.
    """
    if placed is None or placed.placement.kind == "unknown" or not placed.placement.fits or placed.placement.name == RANK_BY_RANK:
        return None
    file, value = ours[0]
    shape = placed.shape or files.reference[file].shape(value)
    if not placed.placement.covers(shape) or (placed.ours is not None and not placed.ours.covers(shape)):
        return None
    of = Both(placed.our_files or (file,), placed.files)
    where = Both(placed.ours or Placement("replicated", "on one rank"), placed.placement)
    held = Both(*({file: one.held_along(0, shape[0], i) for i, file in enumerate(side)} for side, one in zip(of, where, strict=True)))
    every = [at for side in held for at in side.values()]
    return None if any(np.any(at == PAD) for at in every) or all(at.size == shape[0] for at in every) else held


def placed_on_both_sides(values: Both[list[Array]], held: Both[list[NDArray[np.intp]]]) -> Both[Placement] | None:
    """How the ids of both sides make up the model's, on the side or sides where ranks have different ones; None where they do not."""
    ours = Placement("replicated", "replicated")
    whole = values.reference[0]
    if not _alike(values.reference):
        ours = _counted(values.reference, held.reference)
        whole = ours.joined(values.reference, whole.shape)
        if np.any(whole < 0):
            return None
    theirs = None if _alike(values.target) else placed_by_experts(whole, values.target, held.target)
    if theirs is None and not ours.numbers:
        return None
    name = "replicated" if _alike(values.target) else APART
    return Both(ours, theirs or Placement("replicated", name, error=max(relative_error(whole, one) for one in values.target)))


def placed_by_experts(whole: Array, parts: Sequence[Array], held: Sequence[NDArray[np.intp]]) -> Placement | None:
    """How ids that ranks count for themselves make up the reference's; None where some choice is no rank's, or two ranks' in two ways."""
    if not set(np.unique(whole).tolist()) <= set(np.concatenate(held).tolist()):
        return None
    placement = _counted(parts, held)
    logical = placement.joined(parts, whole.shape)
    if np.any(logical < 0):
        return None
    error = relative_error(whole, logical)
    return replace(placement, error=error) if error <= _MOSTLY else None


def _counted(parts: Sequence[Array], held: Sequence[NDArray[np.intp]]) -> Placement:
    absent = tuple(_absent(part, own.size) for part, own in zip(parts, held, strict=True))
    return Placement("replicated", LOCAL, numbers=tuple(held), absent=absent)


def _alike(parts: Sequence[Array]) -> bool:
    return all(np.array_equal(part, parts[0]) for part in parts[1:])


def _absent(part: Array, count: int) -> int:
    """The number that a rank has most often for an expert that it does not hold."""
    beyond = part[(part < 0) | (part >= count)]
    numbers, times = np.unique(beyond, return_counts=True)
    return int(numbers[np.argmax(times)]) if numbers.size else -1


def _may_be_local(pair: int, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]) -> bool:
    """Whether a value is a table of whole numbers that differ between the ranks of a side."""
    sides = [[(of[file], value) for file, value in parts[pair]] for of, parts in zip(files, parts_of, strict=True)]
    if not all(sides):
        return False
    shape = sides[0][0][0].shape(sides[0][0][1])
    every = [one for side in sides for one in side]
    if len(shape) < 2 or any(file.shape(value) != shape or not file.has_bytes(value) for file, value in every):
        return False
    kinds = [dtype_named(file.dtype_name(value)) for file, value in every]
    if any(kind is None or kind.kind != "integer" for kind in kinds):
        return False
    prints = [[file.fingerprint(value) for file, value in side] for side in sides]
    return any(one is None or one != side[0] for side in prints if len(side) > 1 for one in side)


def _dimensions(pair: int, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]) -> int:
    file, value = parts_of.reference[pair][0] if parts_of.reference[pair] else (-1, -1)
    return len(files.reference[file].shape(value)) if value >= 0 else 0


def maps_used(whole: Array, parts: Sequence[Array], experts: int) -> Iterator[NDArray[np.int64]]:
    """For each rank the id that it usually has for each expert of the model; NOBODY where that is none, or nobody chose the expert."""
    for part in parts:
        found = np.full(experts, NOBODY, np.int64)
        for expert in range(experts):
            numbers, times = np.unique(part[whole == expert], return_counts=True)
            if numbers.size and times.max() > _USUALLY * times.sum():
                found[expert] = numbers[np.argmax(times)]
        yield found
