"""At which call the programs of teams part: the reference's whose result the ranks' results do not make up, in any placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from numpy.typing import NDArray

from layerdiff.align.layouts import infer_both
from layerdiff.align.placements import infer
from layerdiff.judge.meaning.makers import COPIES
from layerdiff.judge.meaning.mending import other_scalars, with_scalars
from layerdiff.judge.meaning.reach import reaching
from layerdiff.judge.meaning.wording import numbers_in, shown
from layerdiff.judge.programs.constants import unmasked
from layerdiff.judge.programs.setting import NOTHING
from layerdiff.judge.teams.parting import Apart
from layerdiff.judge.teams.running import TeamPrograms, TeamRan
from layerdiff.replay.refusal import CannotReplay

Array = NDArray[Any]
_MOST: Final = 4
"""Calls whose scalars are tried."""


@dataclass(frozen=True)
class Named:
    """A call of the reference whose result the ranks do not make up, and the target's beside it."""

    reference: int
    at: tuple[int, int]
    """File and call."""
    static: str | None
    """What the two differ in besides their values."""


Again = Callable[[TeamRan], Apart | None]


def first_other(programs: TeamPrograms, ours: TeamRan, theirs: TeamRan, parted: Apart, alone: int | None, again: Again) -> Named | None:
    """The call on the way to where they part that makes something else; None where every result is made up.

    The first that is given another number, without which they would not part; else the first that does more than copy. `again`: where
    the ranks part when they make something else. `alone`: the file of the process that is off. Of a
    reference of several processes the calls of the first stand for those that the others make at the same step.
    """
    team = programs.body.parts.reference
    file, part = next(iter(team.items()))
    run = part.run
    value = next((value for number, value in parted.crossing.held.reference.parts if number == file), None)
    if value is None:
        return None
    stop = part.items.index(parted.call.calls.reference[file]) if parted.handed else len(part.items)
    inside = reaching(run, part.items[:stop], [run.place(value)])
    beside: dict[int, dict[int, int]] = {}
    for (own, call), number in programs.partner.items():
        beside.setdefault(number, {}).setdefault(own, call)
    found: list[Named] = []
    for call in part.items:
        number = programs.partner.get((file, call), -1)
        made = ours.results.get((file, call))
        if call not in inside or made is None or number < 0:
            continue
        step, together = programs.steps[number], beside[number]
        others = {file: one for file, one in step.items() if file != alone} if alone in step else {}
        if any(
            _made_up(ours, together, theirs, step, position) is False
            and (not others or _made_up(ours, together, theirs, others, position))  # else the ranks have it in an order of their own
            for position in made
        ):
            at = alone if alone in step else next(iter(step))
            texts = shown(programs.runs.target[at], step[at]), shown(run, call)
            found.append(Named(call, (at, step[at]), f"{texts[0]}, reference {texts[1]}" if texts[0] != texts[1] else None))
    more = [one for one in found if run.operation(one.reference).base not in COPIES]
    mended: dict[int, bool] = {}
    for one in [one for one in found if one.static is not None][:_MOST]:
        mended[one.reference] = _mends(programs, ours, one.reference, beside, parted, again)
        if mended[one.reference] and numbers_in(one.static or ""):
            return one
    first = next(iter([*more, *found]), None)
    return first if first is None or mended.get(first.reference, True) else replace(first, static=None)


def _mends(programs: TeamPrograms, ours: TeamRan, call: int, beside: Mapping[int, Mapping[int, int]], parted: Apart, again: Again) -> bool:
    """Whether the ranks make up a call's result, or no longer part, once they are given its scalars; not asked of another operator."""
    file = next(iter(programs.body.parts.reference))
    number = programs.partner[file, call]
    step, reference = programs.steps[number], programs.runs.reference[file].operation(call)
    there = {one: programs.runs.target[one].operation(at) for one, at in step.items()}
    if any(operation.name != reference.name for operation in there.values()):
        return True
    for keys in dict.fromkeys(keys for operation in there.values() for keys in other_scalars(operation, reference)):
        pictures = {one: {operation.call: with_scalars(operation, reference, keys)} for one, operation in there.items()}
        try:
            theirs = programs.run("target", pictures=pictures)
        except CannotReplay:
            continue
        made = [_made_up(ours, beside[number], theirs, step, position) for position in ours.results[file, call]]
        apart = again(theirs)
        if (made and all(made)) or apart is None or apart.crossing.key != parted.crossing.key:
            return True
    return False


def _made_up(ours: TeamRan, together: Mapping[int, int], theirs: TeamRan, step: Mapping[int, int], position: str) -> bool | None:
    """Whether what the ranks made at one step is the reference's result, in one placement or another; None where that is not known."""
    sides = [[ran.results.get(at, {}).get(position) for at in calls.items()] for ran, calls in ((ours, together), (theirs, step))]
    known = [[unmasked(part) for part in parts if part is not None] for parts in sides]
    if any(not parts or len(parts) < len(every) for parts, every in zip(known, sides, strict=True)):
        return None
    placement = infer(known[0][0], known[1]) if len(known[0]) == 1 else infer_both(known[0], known[1])[2]
    return None if placement.kind == "unknown" else bool(placement.error <= NOTHING)
