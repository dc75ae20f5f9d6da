"""What comes out of a collective in exact arithmetic, given what its ranks put in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.collectives.messages import messages
from layerdiff.judge.collectives.moved import MOVING, expected
from layerdiff.judge.collectives.rounds import rounds_of
from layerdiff.judge.issued import Issued, issued
from layerdiff.replay.program import Meeting
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import POINT_TO_POINT

Array = NDArray[Any]
_REDUCTIONS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "sum": lambda terms: terms.sum(0),
    "avg": lambda terms: terms.mean(0),
    "product": lambda terms: terms.prod(0),
    "min": lambda terms: terms.min(0),
    "max": lambda terms: terms.max(0),
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}


class Exchange:
    """The collectives of all ranks of one run: which calls are one, and what each hands back."""

    def __init__(self, files: Sequence[TraceFile]) -> None:
        every = [one for number, file in enumerate(files) for one in issued(file, number)]
        self._parts: dict[tuple[int, int], tuple[Issued, ...]] = {}
        rounds, _ = rounds_of(every)
        groups = [one.parts for one in rounds if not one.absent]
        groups += [pair for sent, got in messages(every).values() for pair in zip(sent, got, strict=False)]
        for parts in groups:
            for part in parts:
                self._parts[part.file, part.call] = parts

    def meet(self, waiting: Mapping[tuple[int, int], Meeting]) -> dict[tuple[int, int], dict[str, Array]]:
        """By (file, call), the results of the collectives that have all their ranks among `waiting`. Raises CannotReplay."""
        found: dict[tuple[int, int], dict[str, Array]] = {}
        for at, meeting in waiting.items():
            parts = self._parts.get(at)
            if parts is None:
                raise CannotReplay(f"{meeting.operation.name} has ranks of which no call is recorded")
            there = [(part.file, part.call) for part in parts]
            if at in found or any(one not in waiting for one in there):
                continue
            meetings = [waiting[one] for one in there]
            try:
                made = results(parts, [list(one.given.values()) for one in meetings])
            except (ValueError, IndexError) as error:
                raise CannotReplay(f"what was put into {meeting.operation.name} does not fit together: {error}") from None
            for one, other, outputs in zip(there, meetings, made, strict=True):
                found[one] = dict(zip(other.operation.outputs, outputs, strict=False))
        return found


def results(parts: Sequence[Issued], given: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """For each rank what it gets, flat, in the order of its outputs. Raises CannotReplay where that is not known.

    Args:
        parts: the call on each rank, in the order of the group; of a message the send and the receive.
        given: what each put in.
    """
    operator = parts[0].operator
    if operator in POINT_TO_POINT:
        return [[], list(given[0])]
    if operator == "c10d.barrier":
        return [[] for _ in parts]
    if operator in MOVING:
        return [_cut(_sent(parts, given, at), part) for at, part in enumerate(parts)]
    reduce = _REDUCTIONS.get(parts[0].op or "")
    if reduce is None:
        raise CannotReplay(f"{operator} {parts[0].op or ''} is not run again")
    if operator == "c10d.reduce_scatter":
        return [[reduce(np.stack(terms)) for terms in _scattered(parts, given, at)] for at in range(len(parts))]
    if operator not in ("c10d.all_reduce", "c10d.reduce"):
        raise CannotReplay(f"{operator} is not run again")
    sums = [reduce(np.stack([_flat(one) for one in terms])) for terms in zip(*given, strict=True)]
    getting = [operator == "c10d.all_reduce" or part.rank == part.destination for part in parts]
    return [sums if gets else [_flat(one) for one in own] for gets, own in zip(getting, given, strict=True)]


def _sent(parts: Sequence[Issued], given: Sequence[Sequence[Array]], at: int) -> Array:
    flat = [[_flat(one) for one in own] for own in given]
    rows = [[one.shape[0] if one.ndim else 1 for one in own] for own in given]
    pieces = expected(parts, flat, rows, at)
    if pieces is None:
        raise CannotReplay(f"what was put into {parts[at].operator} does not divide into a piece for each rank")
    return np.concatenate([piece.bits for piece in pieces]) if pieces else np.empty(0)


def _cut(whole: Array, part: Issued) -> list[Array]:
    """What a rank was sent, into its outputs; nothing where it gets none."""
    if part.destination not in (None, part.rank) or not part.outputs:
        return []
    counts = part.counts
    if sum(counts) != whole.size:
        raise CannotReplay(f"{part.operator} hands {whole.size} elements to {sum(counts)} places")
    return np.split(whole, np.cumsum(counts)[:-1])


def _scattered(parts: Sequence[Issued], given: Sequence[Sequence[Array]], at: int) -> Iterable[list[Array]]:
    """The terms of each output of the rank of number `at`."""
    for i in range(len(parts[at].outputs)):
        terms = []
        for part, own in zip(parts, given, strict=True):
            if part.layout == "list":
                terms.append(_flat(own[at]))
            else:
                terms.append(np.split(_flat(own[i]), len(parts))[at])
        yield terms


def _flat(x: Array) -> Array:
    return np.asarray(x).reshape(-1)
