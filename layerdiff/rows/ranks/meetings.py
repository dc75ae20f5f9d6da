"""`Meetings`: the collectives of a run with all its ranks in one place, read from the target's traces.

The n-th collective of a group on one rank is the n-th of that group on another: where ranks part in their order, the same number
holds different calls, and that is shown as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerdiff.judge.issued import Issued, issued
from layerdiff.judge.tables import Verdict
from layerdiff.progress import tell
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import POINT_TO_POINT, CallKind

_Key = tuple[Any, ...]


@dataclass(frozen=True)
class Load:
    """What one rank put into a collective, or got out of it: all its tensors together."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    rms: float
    """Over finite elements; NaN where no statistics were recorded, or nothing is finite."""
    largest: float
    """The largest magnitude, NaN likewise."""
    nonfinite: int
    prints: tuple[Any, ...] | None
    """What tells bits apart; None where a fingerprint is missing."""


@dataclass(frozen=True)
class Seat:
    """One rank in a collective."""

    rank: int
    call: Issued
    given: Load | None
    """None where it put nothing in."""
    got: Load | None


@dataclass(frozen=True)
class Meeting:
    """One collective, with the ranks that issued it and those of its group that did not."""

    first: Issued
    seats: tuple[Seat, ...]
    absent: tuple[int, ...]
    """Ranks of its group with a trace but without this call."""
    unrecorded: tuple[int, ...]
    """Ranks of its group without a trace."""

    @property
    def alike(self) -> bool:
        """Whether every rank's result should be the same."""
        return self.first.operator in ("c10d.all_reduce", "c10d.all_gather", "c10d.broadcast")

    @property
    def reduces(self) -> bool:
        """Whether what ranks put in is added up, or the like."""
        return self.first.op is not None


class Meetings:
    """Every collective of a run; made once, by whoever shows some of them. Raises TraceError where a trace is not there."""

    def __init__(self, comparison: Comparison, traces: Traces) -> None:
        self._comparison = comparison
        self._files = traces.target_files(comparison)
        self._seats: dict[_Key, dict[int, Issued]] = {}
        self._order: list[dict[int, _Key]] = []
        for number, file in enumerate(self._files):
            tell(number, len(self._files))
            self._order.append({})
            for call in issued(file, number):
                key = _key(call)
                self._seats.setdefault(key, {}).setdefault(call.rank, call)
                self._order[number][call.call] = key

    def __len__(self) -> int:
        return len(self._seats)

    def inside(self, row: int) -> list[Meeting]:
        """The collectives inside the call of a site, on any rank, or the one that it is; in the order of the first rank that has each."""
        sites = self._comparison.sites
        file, call = int(sites["target_file"][row]), int(sites["target_call"][row])
        if not (0 <= file < len(self._files) and 0 <= call < len(self._files[file].calls)):
            return []
        keys: dict[_Key, None] = {}
        for number, other in enumerate(self._files):
            for one in _same_call(other, self._files[file], call):
                keys |= dict.fromkeys(self._order[number][found] for found in self._within(number, one))
        return [self._meeting(key) for key in keys]

    def _within(self, number: int, module: int) -> Iterable[int]:
        parents, inside = np.asarray(self._files[number].calls.parent), {module: True}
        for call in self._order[number]:
            way: list[int] = []
            at = call
            while at >= 0 and at not in inside and len(way) <= len(parents):
                way.append(at)
                at = int(parents[at])
            found = inside.get(at, False) if at >= 0 else False
            inside |= dict.fromkeys(way, found)
            if found:
                yield call

    def _meeting(self, key: _Key) -> Meeting:
        calls = self._seats[key]
        first = next(iter(calls.values()))
        there = {file.rank or 0 for file in self._files}
        left = [rank for rank in _members(first) if rank not in calls]
        seats = [self._seat(calls[rank]) for rank in sorted(calls)]
        return Meeting(first, tuple(seats), tuple(r for r in left if r in there), tuple(r for r in left if r not in there))

    def _seat(self, call: Issued) -> Seat:
        file = self._files[call.file]
        return Seat(call.rank, call, _load(file, call.inputs), _load(file, call.outputs))


def _key(call: Issued) -> _Key:
    if call.operator not in POINT_TO_POINT:
        return (call.group.name, call.group.ranks, call.sequence)
    source, destination = (call.rank, call.destination) if call.operator == "c10d.send" else (call.source, call.rank)
    return (call.group.name, call.group.ranks, source, destination, call.tag, call.sequence)


def _members(call: Issued) -> Sequence[int]:
    if call.operator not in POINT_TO_POINT:
        return call.group.ranks
    return [rank for rank in (call.rank, call.source, call.destination) if rank is not None]


def _same_call(file: TraceFile, other: TraceFile, call: int) -> list[int]:
    """The calls of `file` at the site, step and occurrence of `call` in `other`: one, or none."""
    if file is other:
        return [call]
    mine, theirs = file.calls, other.calls
    found = np.flatnonzero(
        (np.asarray(mine.kind) == theirs.kind[call])
        & (np.asarray(mine.step) == theirs.step[call])
        & (np.asarray(mine.occurrence) == theirs.occurrence[call])
        & (np.asarray(mine.number) == theirs.number[call])
    )
    site = other.site(call)
    return [one for one in found.tolist() if file.site(one) == site][:1]


def _load(file: TraceFile, values: Sequence[int]) -> Load | None:
    if not values:
        return None
    squares, count, largest, nonfinite = 0.0, 0, math.nan, 0
    known = True
    for value in values:
        statistics = file.statistics(value)
        if statistics is None:
            known = False
            continue
        odd = statistics.nan + statistics.posinf + statistics.neginf
        finite = max(0, file.count(value) - odd)
        nonfinite += odd
        if finite and not math.isnan(statistics.rms):
            squares, count = squares + statistics.rms**2 * finite, count + finite
            largest = np.fmax(largest, max(abs(statistics.minimum), abs(statistics.maximum)))
    prints = tuple((file.fingerprint(value), file.dtype_name(value), file.shape(value)) for value in values)
    return Load(
        shapes=tuple(file.shape(value) for value in values),
        dtype=file.dtype_name(values[0]),
        rms=math.sqrt(squares / count) if known and count else math.nan,
        largest=float(largest) if known else math.nan,
        nonfinite=nonfinite,
        prints=None if any(one[0] is None for one in prints) else prints,
    )


def verdicts_of(comparison: Comparison) -> dict[tuple[str, int, int], int]:
    """What was said of each collective, by site, step and occurrence; of several ranks the worst."""
    sites, found = comparison.sites, dict[tuple[str, int, int], int]()
    for row in np.flatnonzero(np.asarray(sites["kind"]) == CallKind.COLLECTIVE).tolist():
        place = comparison.texts[int(sites["site"][row])] or "", int(sites["step"][row]), int(sites["occurrence"][row])
        verdict = int(sites["verdict"][row])
        before = found.get(place)
        if before is None or (verdict < Verdict.NOT_COMPARABLE and not verdict < before < Verdict.NOT_COMPARABLE):
            found[place] = verdict
    return found
