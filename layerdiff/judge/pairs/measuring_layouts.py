"""Two runs of many ranks: the logical tensor of a value as the ranks of each have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import Fillings
from layerdiff.align.layouts import infer_both, infer_both_filled
from layerdiff.align.placement import FITS, Placement
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.measuring import Numbers
from layerdiff.judge.pairs.placed import Part, Placed, differing_sizes, joined, kept, screened
from layerdiff.judge.tables import Source
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]
_SURELY: Final = 2.0**-5
"""Relative error at which no other stages are looked at: of another stage's hidden states a few layers may have changed little."""
_NEARLY: Final = 2.0**-7
"""Of its size, how far mean and root mean square of a weight may move by a rounding to bfloat16."""


def same_layout(
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


def measure_both(
    files: Both[tuple[TraceFile, ...]],
    ours: tuple[Part, ...],
    theirs: tuple[Part, ...],
    likely: dict[tuple[int, ...], Placement],
    same: bool | None,
    stages: Both[list[int]],
    fillings: Fillings,
) -> tuple[Numbers, Placed | None]:
    """A value that both sides have in parts: the logical tensor as the reference's ranks have it, and as the target's."""
    sides = Both(ours, theirs)
    every = [(side[file], value) for side, parts in zip(files, sides, strict=True) for file, value in parts]
    if not theirs or not all(file.has_bytes(value) for file, value in every):
        why = "bytes of every rank of both sides are needed to put it together: record with --keep full, and --weights used for weights"
        return Numbers({"source": int(Source.NOTHING)}, why), None
    try:
        values = Both(*([kept(side[file], value) for file, value in parts] for side, parts in zip(files, sides, strict=True)))
    except TraceError as error:
        return Numbers({"source": int(Source.NOTHING)}, str(error)), None
    best: tuple[float, Both[list[int]], Placement, Array, Placement] | None = None
    other_ranks = len(files.reference) != len(files.target)  # of which some may cut a value as the other side's do
    for chosen in _of_one_stage(sides, stages):
        mine, held = ([parts[i] for i in own] for parts, own in zip(values, chosen, strict=True))
        sizes = differing_sizes(mine[0].bits.shape, [x.bits.shape for x in held])
        numbers = [x.numbers for x in mine], [x.numbers for x in held]
        filled = infer_both_filled(*numbers, fillings) if fillings.sizes else None
        alike = None if other_ranks and len(mine) == len(held) else same
        placement, whole, other = infer_both(*numbers, likely.get(sizes), alike) if filled is None else filled
        off = other.error if other.kind != "unknown" and other.fits and other.error < FITS else np.inf
        if best is None or off < best[0]:
            best = off, chosen, placement, whole, other
        if off < _SURELY:
            break
    assert best is not None
    _, chosen, placement, whole, other = best
    if other.is_sure:
        likely[differing_sizes(values.reference[chosen.reference[0]].bits.shape, [values.target[i].bits.shape for i in chosen.target])] = (
            other
        )
    of = Both(*(tuple(parts[i][0] for i in own) for parts, own in zip(sides, chosen, strict=True)))
    placed = Placed(other, of.target, (), None, whole.shape, placement, of.reference)
    mine, held = ([parts[i] for i in own] for parts, own in zip(values, chosen, strict=True))
    return screened(joined(placement, whole.shape, mine), held, placed)


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
