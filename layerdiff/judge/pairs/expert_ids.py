"""Ids of experts as each rank counts its own: which expert of the whole model each is, told from the stacked weights beside them.

A module that holds some of the experts may be given ids that count from its first one, and numbers that name none (-1, or as many as there
are) for experts of other ranks. Put together, each choice is named by the rank that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import PAD, Placement
from layerdiff.align.placements import infer
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.pairing import rows_of
from layerdiff.judge.pairs.placed import Part
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]
LOCAL: Final = "ids that each rank counts from its own first expert"
NOBODY: Final = np.iinfo(np.int64).min
_USUALLY: Final = 0.75
"""Share of the choices of an expert that must have one id on a rank, for that to be the id that a map gives it."""
_MOSTLY: Final = 0.5
"""Share of the choices that must be the reference's: rounding lets a router choose otherwise here and there."""


def held_experts(
    weight: int, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]
) -> tuple[NDArray[np.intp], ...] | None:
    """Of the pair of a weight that stacks experts the numbers of those that each rank holds; None where it is no such weight."""
    ours, theirs = parts_of.reference[weight], parts_of.target[weight]
    if len(ours) != 1 or len(theirs) < 2:
        return None
    shape = files.reference[ours[0][0]].shape(ours[0][1])
    shapes = [files.target[file].shape(value) for file, value in theirs]
    if len(shape) != 3 or any(len(own) != 3 or own[1:] != shape[1:] or own[0] >= shape[0] for own in shapes):
        return None
    try:
        placement = infer(files.reference[ours[0][0]].read(ours[0][1]), [files.target[file].read(value) for file, value in theirs])
    except TraceError:
        return None
    if placement.kind != "sharded" or placement.dim != 0 or not placement.fits or not placement.covers(shape):
        return None
    return None if any(np.any(at == PAD) for at in placement.positions) else placement.positions


def local_ids(
    pairs: Mapping[str, NDArray[Any]], sites: int, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]
) -> dict[tuple[Part, tuple[Part, ...]], Placement]:
    """By the reference's value and the ranks' the placement of ids that ranks count for themselves. `sites`: how many there are."""
    order, start = rows_of(pairs, sites)
    found: dict[tuple[Part, tuple[Part, ...]], Placement] = {}
    known: dict[tuple[tuple[Part, ...], tuple[Part, ...]], tuple[NDArray[np.intp], ...] | None] = {}

    def held_by(weight: int) -> tuple[NDArray[np.intp], ...] | None:  # of all calls of a module the same: it is read once
        parts = parts_of.reference[weight], parts_of.target[weight]
        if parts not in known:
            known[parts] = held_experts(weight, files, parts_of)
        return known[parts]

    roles = np.asarray(pairs["role"])
    for row in range(sites):
        own = order[start[row] : start[row + 1]].tolist()
        asked = [pair for pair in own if roles[pair] == Role.INPUT and _may_be_local(pair, files, parts_of)]
        held = next((held for pair in own if asked and roles[pair] == Role.WEIGHT and (held := held_by(pair))), None)
        for pair in asked if held is not None else ():
            ours, theirs = parts_of.reference[pair][0], parts_of.target[pair]
            if (ours, theirs) in found or held is None or len(held) != len(theirs):
                continue
            try:
                whole, parts = files.reference[ours[0]].read(ours[1]), [files.target[file].read(value) for file, value in theirs]
            except TraceError:
                continue
            placement = placed_by_experts(whole, parts, held)
            if placement is not None:
                found[ours, theirs] = placement
    return found


def placed_by_experts(whole: Array, parts: Sequence[Array], held: Sequence[NDArray[np.intp]]) -> Placement | None:
    """How ids that ranks count for themselves make up the reference's; None where some choice is no rank's, or two ranks' in two ways."""
    if not set(np.unique(whole).tolist()) <= set(np.concatenate(held).tolist()):
        return None
    absent = tuple(_absent(part, own.size) for part, own in zip(parts, held, strict=True))
    placement = Placement("replicated", LOCAL, numbers=tuple(held), absent=absent)
    logical = placement.joined(parts, whole.shape)
    if np.any(logical < 0):
        return None
    error = float(np.mean(logical != whole)) if whole.size else 0.0
    return Placement("replicated", LOCAL, error=error, numbers=tuple(held), absent=absent) if error <= _MOSTLY else None


def _absent(part: Array, count: int) -> int:
    """The number that a rank has most often for an expert that it does not hold."""
    beyond = part[(part < 0) | (part >= count)]
    numbers, times = np.unique(beyond, return_counts=True)
    return int(numbers[np.argmax(times)]) if numbers.size else -1


def _may_be_local(pair: int, files: Both[tuple[TraceFile, ...]], parts_of: Both[list[tuple[Part, ...]]]) -> bool:
    """Whether a value is a table of whole numbers that differ between the ranks."""
    ours, theirs = parts_of.reference[pair], parts_of.target[pair]
    if len(ours) != 1 or len(theirs) < 2:
        return False
    every = [(files.reference[ours[0][0]], ours[0][1]), *((files.target[file], value) for file, value in theirs)]
    shape = every[0][0].shape(every[0][1])
    if len(shape) < 2 or any(file.shape(value) != shape or not file.has_bytes(value) for file, value in every):
        return False
    kinds = [dtype_named(file.dtype_name(value)) for file, value in every]
    if any(kind is None or kind.kind != "integer" for kind in kinds):
        return False
    prints = [file.fingerprint(value) for file, value in every[1:]]
    return any(one is None or one != prints[0] for one in prints)


def maps_used(whole: Array, parts: Sequence[Array], experts: int) -> Iterator[NDArray[np.int64]]:
    """For each rank the id that it usually has for each expert of the model; NOBODY where that is none, or nobody chose the expert."""
    for part in parts:
        found = np.full(experts, NOBODY, np.int64)
        for expert in range(experts):
            numbers, times = np.unique(part[whole == expert], return_counts=True)
            if numbers.size and times.max() > _USUALLY * times.sum():
                found[expert] = numbers[np.argmax(times)]
        yield found
