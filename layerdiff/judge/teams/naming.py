"""At which call the programs of teams part: the reference's whose result the ranks' results do not make up, in any placement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.meaning.makers import COPIES
from layerdiff.judge.meaning.mending import other_scalars, with_scalars
from layerdiff.judge.meaning.reach import reaching
from layerdiff.judge.meaning.wording import numbers_in, shown
from layerdiff.judge.programs.constants import unmasked
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING
from layerdiff.judge.teams.crossings import TeamCall
from layerdiff.judge.teams.given import given_otherwise, made_up
from layerdiff.judge.teams.parting import Apart
from layerdiff.judge.teams.running import TeamPrograms, TeamRan
from layerdiff.measure.rows import row_difference
from layerdiff.replay.recorded import Place, Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.joined import Joined, own_of

Array = NDArray[Any]
_REDUCTIONS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "sum": lambda parts: np.asarray(parts.sum(0)),
    "largest": lambda parts: np.asarray(parts.max(0)),
    "smallest": lambda parts: np.asarray(parts.min(0)),
}
_TOGETHER: Final = COPIES | {"cat", "stack"}
_SHARE: Final = 1e-3
"""Of the difference that is asked for: what is off by less than that, and below rounding, does not make it."""
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
    makes: str = ""
    """The operator of the reference's call."""
    sure: bool = True
    """Whether its result is known to be another; else only that the ranks part no longer where they are given its number tells."""
    lacking: str = ""
    """The operator that the reference hands its result to, where the ranks run none for it."""
    mended: bool = False
    """Whether nothing differs there once the ranks are given the reference's number."""
    given: int | None = None
    """The argument that is another tensor already, where it is the first call that tells."""
    summed: TeamCall | None = None
    """The call inside that hands it on each rank's own part of a sum."""
    unreduced: str | None = None
    """Where the ranks' results, reduced over the ranks, are the reference's, and never were: `sum`."""


Again = Callable[[TeamRan], Sequence[Apart]]


def first_other(programs: TeamPrograms, ours: TeamRan, theirs: TeamRan, parted: Apart, alone: int | None, again: Again) -> Named | None:
    """The call on the way to where they part that makes something else; None where every result is made up.

    The first that is given another number, without which they would not part; else the first that does more than copy, on a way on which
    nothing is made up any more: ranks may take detours of their own (the largest of a part, then of all). Numbers of tokens and masks that
    each rank has its own of come last. `again`: where the ranks part when they make something else. `alone`: the file of the process that
    is off. Of a reference of several processes the calls of the first stand for those that the others make at the same step.
    """
    team = programs.body.parts.reference
    file, part = next(iter(team.items()))
    run = part.run
    ends = _end(programs, parted)
    if ends is None:
        return None
    items, place = ends
    inside = reaching(run, items, [place])
    beside: dict[int, dict[int, int]] = {}
    for (own, call), number in programs.partner.items():
        beside.setdefault(number, {})[own] = call  # of pieces the last one
    within = max(NOTHING, min(BELOW_ROUNDING, _SHARE * parted.difference.figure))
    found: list[Named] = []
    likely: list[Named] = []
    right: set[int] = set()
    for call in part.items:
        number = programs.partner.get((file, call), -1)
        made = ours.results.get((file, call))
        if call not in inside or made is None or number < 0:
            continue
        step, together = programs.steps[number], beside[number]
        others = {file: one for file, one in step.items() if file != alone} if alone in step else {}
        told = {position: _made_up(ours, together, theirs, step, position, within) for position in made}
        if all(told.values()):
            right.add(call)
        other = any(
            same is False
            and (not others or _made_up(ours, together, theirs, others, position, within))  # else in an order of the ranks' own
            for position, same in told.items()
        )
        at = alone if alone in step else next(iter(step))
        texts = shown(programs.runs.target[at], step[at]), shown(run, call)
        static = f"{texts[0]}, reference {texts[1]}" if texts[0] != texts[1] else None
        if programs.pieces.reference.counts_a_step(file, call) or programs.pieces.target.counts_a_step(at, step[at]):
            static = None
        if not other and any(same is None and _of_its_shape(ours, together, theirs, step, position) for position, same in told.items()):
            likely.append(Named(call, (at, step[at]), static, run.operation(call).base))
        known = None not in told.values() or programs.runs.target[at].operation(step[at]).name != run.operation(call).name
        if other or (static is not None and numbers_in(static) and not known):  # tiles of a product are no part of it, and scaled like it
            found.append(Named(call, (at, step[at]), static, run.operation(call).base, sure=other))
    open_ways = reaching(run, items, [place], right)
    found.sort(key=lambda one: one.reference not in open_ways)
    mended: dict[int, bool] = {}
    for one in [one for one in found if one.static is not None][:_MOST]:
        mended[one.reference] = _mends(programs, ours, one.reference, beside, parted, again, alone, within)
        if mended[one.reference] and numbers_in(one.static or ""):
            return replace(one, mended=True)
    plainest = sorted(
        [one for one in found if one.sure] or likely,
        key=lambda one: (one.reference not in open_ways, alone is None and _own_numbers(programs, theirs, one)),
    )
    first = next((one for one in plainest if run.operation(one.reference).base not in COPIES), next(iter(plainest), None))
    if first is None:
        return None
    if alone is None and (unreduced := _unreduced(programs, ours, theirs, first, right, beside)) is not None:
        return unreduced
    number = programs.partner[file, first.reference]
    summed = _parts_of_a_sum(programs, first) if alone is None else None
    if summed is not None:
        return replace(first, summed=summed)
    otherwise = None if first.at[0] == alone else given_otherwise(programs, Both(beside[number], programs.steps[number]), within)
    if otherwise is not None:
        return replace(first, given=otherwise)
    first = replace(first, lacking=_lacking(programs, first))
    return first if mended.get(first.reference, True) else replace(first, static=None)


def _end(programs: TeamPrograms, parted: Apart) -> tuple[Sequence[int], Place] | None:
    """What the reference runs until a value crosses, and where this lies, on the first of its processes; None where it has none of it."""
    file, part = next(iter(programs.body.parts.reference.items()))
    value = next((value for number, value in parted.crossing.held.reference.parts if number == file), None)
    if value is None:
        return None
    stop = part.items.index(parted.call.calls.reference[file]) if parted.handed else len(part.items)
    return part.items[:stop], part.run.place(value)


def may_follow(programs: TeamPrograms, other: Apart, known: Apart, named: Named | None) -> bool:
    """Whether what crosses differently may be the consequence of what was found where something else does."""
    ends = _end(programs, other), _end(programs, known)
    if ends[0] is None or ends[1] is None:
        return True
    run = next(iter(programs.body.parts.reference.values())).run
    way = reaching(run, ends[0][0], [ends[0][1]])
    if named is not None and named.mended:
        return named.reference in way
    computed = {call for call in reaching(run, ends[1][0], [ends[1][1]]) if call not in own_of(run.file)}
    return any(not run.is_module(call) and not run.is_view(run.operation(call)) for call in way & computed)


def _own_numbers(programs: TeamPrograms, theirs: TeamRan, named: Named) -> bool:
    """Whether a call makes whole numbers or masks, and each rank others: of the tokens, or the words, that it holds."""
    file = next(iter(programs.body.parts.reference))
    made = [theirs.results.get(at, {}) for at in programs.steps[programs.partner[file, named.reference]].items()]
    first = made[0] if made else {}
    if not first or any(one.dtype.kind == "f" for one in first.values()):
        return False
    return any(not np.array_equal(own.get(position, ()), one) for own in made for position, one in first.items())


def _unreduced(
    programs: TeamPrograms, ours: TeamRan, theirs: TeamRan, named: Named, right: Collection[int], beside: Mapping[int, Mapping[int, int]]
) -> Named | None:
    """The call whose results the ranks should have reduced: what it makes, or what it is given, each rank having its own part of it."""
    file, part = next(iter(programs.body.parts.reference.items()))
    run, step = part.run, programs.steps[programs.partner[file, named.reference]]
    for call in [named.reference, *(call for call in part.items if call in right)]:
        number = programs.partner[file, call]
        there = programs.steps[number]
        if call != named.reference and not all(_reads(programs.runs.target[one], step.get(one, -1), there.get(one, -1)) for one in step):
            continue
        if any(_is_exchanged(programs, *at) for at in there.items()):
            continue
        for position in ours.results[file, call]:
            sides = [
                [ran.results.get(at, {}).get(position) for at in calls.items()] for ran, calls in ((ours, beside[number]), (theirs, there))
            ]
            known = [[unmasked(one) for one in side if one is not None and one.dtype.kind == "f"] for side in sides]
            if (
                len({one.shape for side in known for one in side}) != 1
                or len(known[1]) < max(2, len(sides[1]))
                or len(known[0]) < len(sides[0])
            ):
                continue
            for how, reduce in _REDUCTIONS.items():
                whole, made = (reduce(np.stack(side)) for side in known)
                if _apart(whole, made) <= NOTHING < min(_apart(whole, one) for one in known[1]):
                    at = next(iter(there))
                    return Named(call, (at, there[at]), None, run.operation(call).base, unreduced=how)
    return None


def _parts_of_a_sum(programs: TeamPrograms, named: Named) -> TeamCall | None:
    """The call inside of which every rank goes on with its own part of a sum, in the call that was named; None where there is none."""
    step = programs.steps[programs.partner[next(iter(programs.body.parts.reference)), named.reference]]
    for child in programs.body.children:
        for crossing in child.outputs:
            held = crossing.held.target
            if held.placement.adds_up and all(
                _is_given(programs.runs.target[file], step.get(file, -1), value) for file, value in held.parts
            ):
                return child
    return None


def _is_given(run: Recorded, reader: int, value: int) -> bool:
    """Whether a call is given a value, or one of several that it is made of."""
    whole = run.file.whole(value) if isinstance(run.file, Joined) else None
    places = {run.place(one).memory for one in ((value,) if whole is None else whole.parts)}
    return reader >= 0 and any(run.place(one).memory in places for one in run.operation(reader).inputs.values())


def _is_exchanged(programs: TeamPrograms, file: int, call: int) -> bool:
    """Whether a rank puts what a call makes into a collective, as it is or beside others: then others have it."""
    part = programs.body.parts.target[file]
    copies = [call]
    for item in part.items[part.items.index(call) + 1 :]:
        if item in part.children or not any(_reads(part.run, item, one) for one in copies):
            continue
        if part.run.is_collective(item):
            return True
        operation = part.run.operation(item)
        if operation.base in _TOGETHER or part.run.is_float_cast(operation):
            copies.append(item)
    return False


def _lacking(programs: TeamPrograms, named: Named) -> str:
    """The operator that the reference hands a call's result to, where the ranks run none for it; empty where there is none."""
    file, part = next(iter(programs.body.parts.reference.items()))
    for item in part.items[part.items.index(named.reference) + 1 :]:
        if item in part.children or part.run.is_collective(item) or not _reads(part.run, item, named.reference):
            continue
        operation = part.run.operation(item)
        if part.run.is_view(operation) or part.run.is_float_cast(operation) or operation.base in COPIES:
            continue
        known = (file, item) in programs.partner or item in own_of(part.run.file)  # what steps make is put together where one run has none
        return "" if known else operation.base
    return ""


def _reads(run: Recorded, reader: int, maker: int) -> bool:
    """Whether a call is given what another made, as it was made."""
    if reader < 0 or maker < 0:
        return False
    made = {run.place(value).memory for value in run.operation(maker).outputs.values()}
    return any(run.place(value).memory in made for value in run.operation(reader).inputs.values())


def _apart(one: Array, other: Array) -> float:
    return row_difference(one, other).figure


def _mends(
    programs: TeamPrograms,
    ours: TeamRan,
    call: int,
    beside: Mapping[int, Mapping[int, int]],
    parted: Apart,
    again: Again,
    alone: int | None,
    within: float,
) -> bool:
    """Whether the ranks make up a call's result, or no longer part, once they are given its scalars; not asked of another operator.

    Of numbers of which each rank has its own (where its part begins) only that they no longer part tells.
    """
    file = next(iter(programs.body.parts.reference))
    number = programs.partner[file, call]
    step, reference = programs.steps[number], programs.runs.reference[file].operation(call)
    there = {one: programs.runs.target[one].operation(at) for one, at in step.items()}
    if any(operation.name != reference.name for operation in there.values()):
        return True
    varied = alone is None and len({shown(programs.runs.target[one], at) for one, at in step.items()}) > 1
    for keys in dict.fromkeys(keys for operation in there.values() for keys in other_scalars(operation, reference)):
        pictures = {
            one: {
                call: with_scalars(programs.runs.target[one].operation(call), reference, keys)
                for alike in _alike(programs, one, at)
                for call in programs.pieces.target.calls(one, alike)
            }
            for one, at in step.items()
        }
        try:
            theirs = programs.run("target", pictures=pictures)
        except CannotReplay:
            continue
        made = [not varied and _made_up(ours, beside[number], theirs, step, position, within) for position in ours.results[file, call]]
        left = [apart.difference.figure for apart in again(theirs) if apart.crossing.key == parted.crossing.key]
        if (made and all(made)) or max(left, default=0.0) <= within:
            return True
    return False


def _alike(programs: TeamPrograms, file: int, call: int) -> list[int]:
    """A rank's call, and those alike that the reference has no partner for: it may do in several what the reference does in one."""
    run, partnered = programs.runs.target[file], set(programs.partner.values())
    others = [step[file] for number, step in enumerate(programs.steps) if number not in partnered and file in step]
    same = [one for one in others if not run.is_module(one) and run.operation(one).name == run.operation(call).name]
    return [call, *(one for one in same if shown(run, one) == shown(run, call))]


def _of_its_shape(ours: TeamRan, together: Mapping[int, int], theirs: TeamRan, step: Mapping[int, int], position: str) -> bool:
    """Whether every rank makes something of the shape of the reference's result: it may be a part that is used otherwise later."""
    made = [ran.results.get(at, {}).get(position) for ran, calls in ((ours, together), (theirs, step)) for at in calls.items()]
    known = [one for one in made if one is not None and one.dtype.kind == "f"]
    return len(known) == len(made) and len({one.shape for one in known}) == 1


def _made_up(
    ours: TeamRan, together: Mapping[int, int], theirs: TeamRan, step: Mapping[int, int], position: str, within: float
) -> bool | None:
    """Whether what the ranks made at one step is the reference's result, in one placement or another; None where that is not known."""
    sides = [[ran.results.get(at, {}).get(position) for at in calls.items()] for ran, calls in ((ours, together), (theirs, step))]
    known = [[unmasked(part) for part in parts if part is not None] for parts in sides]
    if any(not parts or len(parts) < len(every) for parts, every in zip(known, sides, strict=True)):
        return None
    return made_up(known[0], known[1], within)
