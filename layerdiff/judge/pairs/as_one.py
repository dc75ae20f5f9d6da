"""Both runs as they are compared: steps that had the same tokens in other pieces are one, in the file of each rank alike.

Ranks of one run are given the same tokens, or what others make of them. Their values are compared as they make up the reference's, so each
file has its tokens in the same lines: a row of those that both runs have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from layerdiff.judge.pairs.aligned import is_ranked
from layerdiff.judge.pairs.called_before import as_calls_inside
from layerdiff.judge.pairs.in_chunks import (
    Steps,
    Told,
    as_one,
    chunks_of,
    in_chunks,
    may_be_tokens,
    roots_of,
    steps_of,
    told,
    without_refused,
)
from layerdiff.judge.pairs.main_root import named_alike
from layerdiff.sides import Both
from layerdiff.trace.chunks import Chunks
from layerdiff.trace.reader import Trace, TraceFile

T = TypeVar("T")


def as_compared(traces: Both[Trace]) -> tuple[Both[Trace], tuple[Steps, ...]]:
    """Both runs, with steps as one where they had their tokens in other pieces, and which these are."""
    files = traces.map(lambda trace: trace.files)
    if len(files.reference) == len(files.target) == 1:
        one, found = in_chunks(as_calls_inside(named_alike(files.map(lambda own: own[0]))))
        made: Both[tuple[TraceFile, ...]] = one.map(lambda file: (file,))
    elif is_ranked(traces):
        made, found = _of_ranks(files)
    else:
        return traces, ()
    return Both(*(replace(trace, files=own) for trace, own in zip(traces, made, strict=True))), found


def _of_ranks(files: Both[tuple[TraceFile, ...]]) -> tuple[Both[tuple[TraceFile, ...]], tuple[Steps, ...]]:
    """The files of all ranks, where each has the steps of its run's first one that is given tokens."""
    leads = files.map(_lead)
    found = told(leads, rows=True)
    if not found:
        return files, ()
    chunks = [chunks_of(leads, one) for one in found]
    made = [_side(files, leads, found, chunks, side) for side in ("reference", "target")]
    if any(own is None for own in made):
        return files, ()
    return Both(*(tuple(own or ()) for own in made)), tuple(one.described() for one in found)


def _side(
    files: Both[tuple[TraceFile, ...]], leads: Both[TraceFile], found: Sequence[Told], chunks: Sequence[Both[Chunks]], side: str
) -> list[TraceFile] | None:
    """Those of one run; None where a rank has other steps, or other tokens."""
    own: list[TraceFile] = []
    each = Both(*(list(of) for of in zip(*chunks, strict=True)))
    plain = Both(*map(as_one, leads, each))
    for file in getattr(files, side):
        calls = _calls(file, getattr(leads, side), found, side)
        if calls is None:
            return None
        moved = [replace(one, roots=roots) for one, roots in zip(getattr(each, side), calls, strict=True)]
        own.append(without_refused(_with(plain, side, as_one(file, moved)), _with(each, side, moved), side))
    return own


def _with(both: Both[T], side: str, one: T) -> Both[T]:
    return Both(one, both.target) if side == "reference" else Both(both.reference, one)


def _lead(files: Sequence[TraceFile]) -> TraceFile:
    """The first that is given whole numbers, which may be tokens."""
    return next((file for file in files if any(may_be_tokens(file, own[-1]) for own in roots_of(file))), files[0])


def _calls(file: TraceFile, lead: TraceFile, found: Sequence[Told], side: str) -> list[tuple[int, ...]] | None:
    """The root calls of a rank that are those of another one; None where it has others, or is given other tokens."""
    own, leading = roots_of(file), roots_of(lead)
    if [len(calls) for calls in own] != [len(calls) for calls in leading]:
        return None
    beside = {call: other for ours, theirs in zip(leading, own, strict=True) for call, other in zip(ours, theirs, strict=True)}
    moved = []
    for one in found:
        steps = getattr(one.steps, side)
        moved.append(tuple(beside[step.call] for step in steps))
        given = steps_of(file, moved[-1], steps[0].position)  # none where what other ranks make comes in
        if any(not np.array_equal(step.tokens, other.tokens) for step, other in zip(steps, given, strict=False)):
            return None
    return moved
