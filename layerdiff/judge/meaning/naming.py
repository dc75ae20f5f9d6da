"""`name_call`: which call it is at which two programs of a body part, and what the two calls differ in besides their values.

In order: aligned calls that are given other scalars and make something else; the first exact value of the target's program that
the reference's never makes; the first of the reference's that the target's never makes (equals.py). What reaches the cut only through
a value that both make is looked at last: rewritten on the way to a right value, it is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.forms import same_form
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.acquitted import Acquitted
from layerdiff.judge.meaning.equals import Equals
from layerdiff.judge.meaning.handed import given_another, missing
from layerdiff.judge.meaning.mending import only_number, other_number, other_scalars, with_scalars
from layerdiff.judge.meaning.reach import cone
from layerdiff.judge.meaning.suspects import Suspects, nearly, suspects
from layerdiff.judge.meaning.wording import Named, never_makes, shown
from layerdiff.judge.programs.constants import unmasked
from layerdiff.judge.programs.running import Programs, Ran, Redone
from layerdiff.judge.programs.setting import NOTHING, Cut
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import row_difference
from layerdiff.replay.once import operands_by_position, run_once
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]


def name_call(
    programs: Programs,
    wiring: Wiring,
    ours: Ran,
    theirs: Ran,
    cut: Cut,
    figure: float,
    off: Callable[[Ran], float],
    met: Sequence[Cut],
    passed: Mapping[int, Redone] = {},
) -> Named | None:
    """The call where the programs part on their way to a cut, by `figure`: calls, position, evidence.

    `off`: how far another run of the target's program is off there; `met`: cuts where they meet; `passed`: what calls of it do that are
    passed over.
    """
    acquitted = Acquitted(programs, theirs, met, nearly(figure), passed)
    seen = suspects(programs, ours, theirs, cut, figure, acquitted)
    changed, mends, idle = _changed_to_blame(programs, wiring, seen, theirs, cut, passed)
    if idle:
        acquitted.add(idle)
        seen = suspects(programs, ours, theirs, cut, figure, acquitted)
    ours, theirs = seen.ours, seen.theirs
    if changed is not None and (mends or (mends is None and (seen.first is None or changed[1] <= seen.first[0]))):
        return changed, _first_position(theirs, ours, changed), _static_difference(programs, wiring, *changed)
    if seen.first is not None:
        return _of_the_target(programs, wiring, seen, off, passed)
    if seen.other is None:
        return None
    call, position = seen.other
    there = programs.aligned.get(call, -1)
    if there < 0 and (lacking := seen.between("reference", call)) is not None:
        return missing(programs, seen.paired, lacking, None)
    return (call, there), position, {"static": never_makes("target", programs.runs.reference, call)}


def _of_the_target(
    programs: Programs,
    wiring: Wiring,
    seen: Suspects,
    off: Callable[[Ran], float],
    passed: Mapping[int, Redone],
) -> Named:
    """Of the first result of the target's that the reference never makes: the call, or what stands behind it."""
    assert seen.first is not None
    call, position = seen.first
    partner = {t: r for r, t in programs.aligned.items()}.get(call, -1)
    if partner < 0:
        return _without_partner(programs, seen, off, passed)
    evidence = _static_difference(programs, wiring, partner, call)
    same = wiring.scalars.reference.get(partner) == wiring.scalars.target.get(call)
    innocent = "static" in evidence and _mended(programs, seen, partner, call, passed) == (True, None)  # its scalars are not to blame
    if same or innocent:
        rewired = given_another(programs, seen.paired, partner, call)
        if rewired is not None:
            return rewired
    if innocent:
        del evidence["static"]
        evidence.pop("number", None)
    return (partner, call), position, evidence


def _without_partner(programs: Programs, seen: Suspects, off: Callable[[Ran], float], passed: Mapping[int, Redone]) -> Named:
    """Of a call of the target's without partner: another number, another operator, one more; or no more than that it is the first."""
    assert seen.first is not None
    (call, position), other, runs = seen.first, seen.other, programs.runs
    there = shown(runs.target, call)
    number = other_number(programs, seen, passed)
    if number is not None:
        return (number.reference, call), position, {"static": f"{there}, reference {number.words}", "number": number.number}
    if other is not None and other[0] not in programs.aligned:
        differs = {"static": f"{there}, reference {shown(runs.reference, other[0])}"}
        if seen.paired.is_in_place_of(other[0], call):
            return (other[0], call), position, differs
        if _meets_with(programs, other[0], call, off, seen.near, passed):
            return (-1, call), position, differs
    if seen.between("target", call) is not None:
        return (-1, call), position, {"static": f"the target adds {there}"}
    return (-1, call), position, {"static": never_makes("reference", runs.target, call)}


def _meets_with(
    programs: Programs, reference: int, target: int, off: Callable[[Ran], float], near: float, passed: Mapping[int, Redone]
) -> bool:
    """Whether the programs meet once the reference's operator is given what the target's is, in its place."""
    run, there = programs.runs.reference.operation(reference), programs.runs.target.operation(target)
    if run.inputs.keys() != there.inputs.keys() or run.outputs.keys() != there.outputs.keys():
        return False

    def way(given: Arguments, _: Mapping[str, Array]) -> Mapping[str, Array]:
        return run_once(programs.runs.reference, run, operands_by_position(there, given))

    try:
        return off(programs.run("target", redone={**passed, target: way})) <= near
    except (CannotReplay, ValueError):  # it makes something of another shape
        return False


def other_draws(programs: Programs, wiring: Wiring) -> list[Local]:
    """Random calls that are given other scalars: what they drew is taken as recorded on both sides, so that nothing else shows it."""
    found = []
    for reference, target in programs.aligned.items():
        both = Both(reference, target)
        if not all(run.operation(call).random for run, call in zip(programs.runs, both, strict=True)):
            continue
        if wiring.scalars.reference.get(reference) != wiring.scalars.target.get(target):
            evidence = _static_difference(programs, wiring, reference, target)
            rule = "random: scalars of a draw"
            found.append(Local((reference, target), "out", Verdict.UNEXPLAINED, evidence["static"], 1.0, 0.0, rule, evidence=evidence))
    return found


def changed_call(programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, cut: Cut) -> Named | None:
    """The first two aligned calls on the way to a cut that are given other scalars, and make something else of one shape."""
    changed = _first_changed(programs, wiring, ours, theirs, cone(programs, "target", cut))
    if changed is None:
        return None
    position = _first_position(theirs, ours, changed)
    if ours.results[changed[0]][position].shape != theirs.results[changed[1]][position].shape:
        return None
    return changed, position, _static_difference(programs, wiring, *changed)


def _has_other_scalars(programs: Programs, wiring: Wiring, reference: int, target: int) -> bool:
    """Whether two aligned calls are given other scalars, and not each those of its step of several that stand as one."""
    if wiring.scalars.reference.get(reference) == wiring.scalars.target.get(target):
        return False
    together = programs.together
    return not together.reference.counts_a_step(reference) and not together.target.counts_a_step(target)


def _first_changed(programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, inside: Set[int]) -> tuple[int, int] | None:
    """The first pair of aligned calls that are given other scalars, and make something else."""
    return next(_changed(programs, wiring, ours, theirs, inside), None)


def _changed(programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, inside: Set[int]) -> Iterator[tuple[int, int]]:
    """The pairs of aligned calls that are given other scalars, and make something else, in the target's order."""
    for reference, target in sorted(programs.aligned.items(), key=lambda pair: pair[1]):
        if target not in inside or not _has_other_scalars(programs, wiring, reference, target):
            continue
        one, other = ours.results.get(reference), theirs.results.get(target)
        if one is not None and other is not None and any(_is_another(x, other.get(position)) for position, x in one.items()):
            yield reference, target


def _is_another(made: Array, there: Array | None) -> bool:
    """Whether a result of a call is another than that of its partner."""
    if there is None or (there.dtype.kind == "f") != (made.dtype.kind == "f"):
        return False  # positions are added up, too: that is no other scalar
    return there.shape != made.shape or row_difference(unmasked(made), unmasked(there)).figure > NOTHING


def _changed_to_blame(
    programs: Programs, wiring: Wiring, seen: Suspects, theirs: Ran, cut: Cut, passed: Mapping[int, Redone]
) -> tuple[tuple[int, int] | None, bool | None, set[int]]:
    """The first pair of calls whose other scalars may be to blame, whether the reference's mend what it makes (None where that cannot be
    tried), and the target's calls before it whose scalars show nowhere.

    `theirs`: the target's program as it was run.
    """
    idle: set[int] = set()
    for inside in (seen.apart.target, seen.cones.target):
        for pair in _changed(programs, wiring, seen.ours, seen.theirs, inside):
            tried, ran = (False, None) if pair[1] in idle else _mended(programs, seen, *pair, passed)
            if ran is not None and not _shows(theirs, ran, cut):
                idle.add(pair[1])
            if pair[1] not in idle:
                return pair, (ran is not None) if tried else None, idle
    return None, None, idle


def _shows(theirs: Ran, ran: Ran, cut: Cut) -> bool:
    """Whether another run of the target's program makes something else at a cut, or would choose otherwise."""
    (_, call), position = cut
    was, now = theirs.cuts[call, position], ran.cuts.get((call, position))
    if now is None or not np.array_equal(was, now, equal_nan=was.dtype.kind == "f"):
        return True
    chosen = [{(one.operation.call, at): one.own[at] for one in each.decisions for at in one.places} for each in (theirs, ran)]
    return chosen[0].keys() != chosen[1].keys() or any(not np.array_equal(chosen[0][key], chosen[1][key]) for key in chosen[0])


def _mended(programs: Programs, seen: Suspects, reference: int, target: int, passed: Mapping[int, Redone]) -> tuple[bool, Ran | None]:
    """The target's program in which a call makes what the reference's does, given its scalars; and whether any such could be tried."""
    here, there = programs.runs.reference.operation(reference), programs.runs.target.operation(target)
    tried = False
    for keys in other_scalars(there, here):
        try:
            ran = programs.run("target", watch=frozenset({target}), pictures={target: with_scalars(there, here, keys)}, redone=passed)
        except CannotReplay:
            continue
        tried = True
        made, right = ran.results.get(target, {}), seen.ours.results[reference]
        if made.keys() == right.keys() and all(_is_right(seen, seen.counted(made[at]), x) for at, x in right.items()):
            return True, ran
    return tried, None


def _is_right(seen: Suspects, made: Array, right: Array) -> bool:
    """Whether a result is what the reference makes there, in whatever layout, or a part of it."""
    if same_form(made.shape, right.shape):
        return row_difference(unmasked(right), unmasked(made.reshape(right.shape))).figure <= seen.near
    if made.size < right.size:
        return bool(made.any()) and seen.known.reference.has(made)
    return Equals([right], seen.near).has(made)


def _first_position(theirs: Ran, ours: Ran, pair: tuple[int, int]) -> str:
    one, other = ours.results[pair[0]], theirs.results[pair[1]]
    return next((position for position in other if position in one and not np.array_equal(one[position], other[position])), "out")


def _static_difference(programs: Programs, wiring: Wiring, reference: int, target: int) -> dict[str, Any]:
    """What two aligned calls differ in besides their values."""
    runs = programs.runs
    found: dict[str, Any] = {}
    names = runs.reference.operation(reference).name, runs.target.operation(target).name
    if names[0] != names[1] or _has_other_scalars(programs, wiring, reference, target):
        found["static"] = f"{shown(runs.target, target)}, reference {shown(runs.reference, reference)}"
        number = only_number(runs.target.operation(target), runs.reference.operation(reference))
        if number is not None:
            found["number"] = number
    return {**_other_weight(programs, reference, target), **found}


def _other_weight(programs: Programs, reference: int, target: int) -> dict[str, str]:
    """Of the weights that two aligned calls are given the first that is another, or another view of one that both runs have alike."""
    runs, incoming = programs.runs, programs.incoming
    ours, theirs = runs.reference.operation(reference).inputs, runs.target.operation(target).inputs
    for position in (one for one in theirs if one in ours):
        there, here = runs.target.weight(theirs[position]), runs.reference.weight(ours[position])
        if there is None or here is None or incoming.number("target", theirs[position]) == incoming.number("reference", ours[position]):
            continue
        if incoming.is_same_weight(here.name, there.name):
            return {"static": f"{shown(runs.target, target)} is given another view of {there.name}"}
        return {"constant": here.name if here.name == there.name else f"{there.name} in place of {here.name}"}
    return {}
