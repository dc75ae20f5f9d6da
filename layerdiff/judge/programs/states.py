"""`with_states`: what a body leaves behind in memory, for a call elsewhere that reads it later, as further results of the body.

A cache that prefill writes and only decoding reads, a running mean, a ring of keys: no module hands it on, and whoever reads it
takes the target's. So it is judged where it is made, or nowhere. Which two values are one state is told by their readers: aligned
calls, at the same position. State that nobody reads in the recorded steps is not looked at; the cast of a weight is none. Nor is what
calls read of other requests than those aligned with them (`trace/joined.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from layerdiff.judge.programs.bodies import Body, Interface, Pair
from layerdiff.judge.programs.codes import is_coded
from layerdiff.replay.recorded import Place, Recorded
from layerdiff.sides import Both
from layerdiff.trace.joined import Joined, in_row


def with_states(runs: Both[Recorded], all_bodies: Sequence[Body], calls: Mapping[int, int]) -> list[Body]:
    """The bodies with their states among what they return. `calls`: the target's operator call of each of the reference's."""
    homes = Both(_homes(runs.reference, all_bodies, "reference"), _homes(runs.target, all_bodies, "target"))
    makers = Both(_Makers(runs.reference, homes.reference), _Makers(runs.target, homes.target))
    found: list[dict[Pair, None]] = [{} for _ in all_bodies]
    for reference in sorted(runs.reference.readers(makers.reference.memories)):
        target = calls.get(reference)
        if target is None or in_row(runs.reference.file, reference) or in_row(runs.target.file, target):
            continue
        here = homes.reference.get(reference)
        ours, theirs = runs.reference.operation(reference).inputs, runs.target.operation(target).inputs
        for position, value in ours.items():
            other = theirs.get(position)
            if other is None or runs.reference.file.shape(value) != runs.target.file.shape(other) or runs.target.weight(other) is not None:
                continue
            if is_coded(runs.reference.file.dtype_name(value), runs.target.file.dtype_name(other)):
                continue  # what reads it is judged
            made = makers.reference.home(value)
            if made is not None and made != here and made == makers.target.home(other):
                found[made][value, other] = None
    return [_extended(runs, body, list(states)) for body, states in zip(all_bodies, found, strict=True)]


def _extended(runs: Both[Recorded], body: Body, states: list[Pair]) -> Body:
    values = [one[0] for _, one in (*body.interface.inputs, *body.interface.outputs)]
    for interface in body.children.values():
        values += [one[0] for _, one in (*interface.inputs, *interface.outputs)]
    crossing = [runs.reference.place(part) for value in dict.fromkeys(values) for part in _parts(runs.reference, value)]
    left = [pair for pair in states if not _crosses(runs.reference.place(pair[0]), crossing)]
    if not left:
        return body
    outputs = (*body.interface.outputs, *((f"state[{i}]", pair) for i, pair in enumerate(left)))
    return replace(body, interface=Interface(body.interface.inputs, outputs))


def _parts(run: Recorded, value: int) -> tuple[int, ...]:
    """What a value of steps that are one is made of; the value itself of others."""
    whole = run.file.whole(value) if isinstance(run.file, Joined) else None
    return (value,) if whole is None else whole.parts


def _crosses(place: Place, crossing: Sequence[Place]) -> bool:
    """Whether a value is, or is a part of, what crosses between modules anyway."""
    return any(
        (one.memory, one.version) == (place.memory, place.version) and one.offset <= place.offset and place.extent <= one.extent
        for one in crossing
    )


def _homes(run: Recorded, all_bodies: Sequence[Body], side: str) -> dict[int, int]:
    """The body of each operator call."""
    return {item: i for i, body in enumerate(all_bodies) for item in getattr(body.items, side) if not run.is_module(item)}


class _Makers:
    """Which body made what a memory held at a version: that of the last write before it, or of the call that made the memory."""

    def __init__(self, run: Recorded, homes: Mapping[int, int]) -> None:
        self._run = run
        self._writes: dict[int, list[tuple[int, int]]] = {}
        for call, home in homes.items():
            for memory, version in self._made(call):
                self._writes.setdefault(memory, []).append((version, home))
        for writes in self._writes.values():
            writes.sort()

    @property
    def memories(self) -> Iterable[int]:
        """Those that some body made or wrote to."""
        return self._writes.keys()

    def _made(self, call: int) -> Iterator[tuple[int, int]]:
        operation = self._run.operation(call)
        if operation.writes:
            for position in operation.writes:
                if position in operation.inputs:
                    place = self._run.place(operation.inputs[position])
                    yield place.memory[0], place.version + 1
        elif not self._run.is_view(operation):
            for value in operation.outputs.values():
                place = self._run.place(value)
                yield place.memory[0], place.version

    def home(self, value: int) -> int | None:
        """The body, None where no recorded call made it."""
        place = self._run.place(value)
        writes = self._writes.get(place.memory[0], [])
        before = bisect_left(writes, (place.version + 1, -1))
        return writes[before - 1][1] if before else None
