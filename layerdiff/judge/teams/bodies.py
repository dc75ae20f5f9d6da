"""The bodies of teams: what all processes of a run compute in one module call, without the calls inside that are judged by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layerdiff.judge.teams.crossings import Crossing, Crossings, TeamCall
from layerdiff.replay.program import Child, Part
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both


@dataclass(frozen=True)
class TeamBody:
    """One call of a team, and the calls inside that are judged by themselves."""

    call: TeamCall
    children: tuple[TeamCall, ...]
    parts: Both[Mapping[int, Part]]
    """By file, what its process runs."""
    modules: Both[Mapping[int, tuple[int, ...]]]
    """By file, the module calls whose operators it runs: the call itself and those that were dissolved."""

    def crossing(self) -> Iterator[tuple[TeamCall, bool]]:
        """The calls at whose values the body is held against the reference's: what the children are handed, and what it returns."""
        yield from ((child, True) for child in self.children)
        yield self.call, False


def team_bodies(runs: Both[Sequence[Recorded]], crossings: Crossings) -> Iterator[TeamBody]:
    """The bodies of all calls of teams that are given what is known, the inner ones first.

    A call that hands on what is not known is judged by itself, and is a part of the body around it besides.
    """
    whole = {row: call for row, call in crossings.calls.items() if all(one.known for one in (*call.inputs, *call.outputs))}
    inside = _inside(runs, crossings, whole)
    for row in sorted(crossings.calls, reverse=True):  # a call's row comes before those of the calls inside
        call = crossings.calls[row]
        if all(one.known for one in call.inputs):
            yield team_body(runs, call, [whole[child] for child in inside.get(row, ())])


def team_body(runs: Both[Sequence[Recorded]], call: TeamCall, children: Sequence[TeamCall] = ()) -> TeamBody:
    """The body of one call without those of `children`, which lie inside."""
    parts: dict[str, dict[int, Part]] = {"reference": {}, "target": {}}
    modules: dict[str, dict[int, tuple[int, ...]]] = {"reference": {}, "target": {}}
    for side, own in parts.items():
        for file, at in getattr(call.calls, side).items():
            run = getattr(runs, side)[file]
            inner = {getattr(child.calls, side)[file]: child for child in children if file in getattr(child.calls, side)}
            items = tuple(run.walk(at, set(inner)))
            handed = {one: _child(child, side, file) for one, child in inner.items()}
            own[file] = Part(run, at, items, handed, tuple(_values(call.inputs, side, file).values()), _values(call.outputs, side, file))
            modules[side][file] = (at, *run.modules_inside(at, set(inner)))
    return TeamBody(call, tuple(children), Both(**parts), Both(**modules))


def _child(child: TeamCall, side: str, file: int) -> Child:
    return Child(_values(child.inputs, side, file), tuple(_values(child.outputs, side, file).values()))


def _values(crossings: Sequence[Crossing], side: str, file: int) -> dict[str, int]:
    """By key the value that a process has."""
    return {one.key: value for one in crossings for number, value in getattr(one.held, side).parts if number == file}


def _inside(runs: Both[Sequence[Recorded]], crossings: Crossings, whole: Mapping[int, TeamCall]) -> dict[int, list[int]]:
    """By row the calls of `whole` right inside of it, on every process of both sides."""
    found: dict[int, list[int]] = {}
    for row, call in whole.items():
        above = int(crossings.parent[row])
        while above >= 0:
            around = crossings.calls.get(above)
            if around is not None and all(
                _lies_in(team, ours, theirs) for team, ours, theirs in zip(runs, call.calls, around.calls, strict=True)
            ):
                found.setdefault(above, []).append(row)
            if around is None or above not in whole:  # a part of what is around it
                above = int(crossings.parent[above])
            else:
                break
    return found


def _lies_in(team: Sequence[Recorded], inner: Mapping[int, int], outer: Mapping[int, int]) -> bool:
    for file, call in inner.items():
        parents, around = team[file].file.calls.parent, outer.get(file, -1)
        while call >= 0 and call != around:
            call = int(parents[call])
        if call < 0 or around < 0:
            return False
    return True
