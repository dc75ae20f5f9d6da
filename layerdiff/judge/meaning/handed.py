"""Where what a call is given, or a module hands on, comes from: another call, another module or another input than the reference's."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from layerdiff.judge.meaning.makers import Paired
from layerdiff.judge.meaning.wording import Named, numbered, shown
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import Cut
from layerdiff.measure.rows import row_difference
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.dtypes import dtype_named

_MOST_ASKED: Final = 64
"""Calls that are looked at behind one."""


def given_another(programs: Programs, paired: Paired, reference: int, target: int) -> Named | None:
    """An operand of two aligned calls that comes from elsewhere, or is another part of what both make.

    The two calls are named; or the one whose result the target hands to nobody. Where the operands are made by aligned calls, it is
    asked of these what they are given. Where one operand alone is another, and nothing more is known of it, that is said.
    """
    named = _given_another(programs, paired, reference, target, set())
    if named is not None:
        return named
    both = programs.runs.reference.operation(reference).inputs, programs.runs.target.operation(target).inputs
    other = [position for position in both[1] if position in both[0] and not paired.same((reference, position), (target, position))]
    if len(other) != 1:
        return None
    makers, at = paired.makers, other[0]
    here, there = makers.reference.source((reference, at)), makers.target.source((target, at))
    if here is None or there is None or here in programs.aligned or there in programs.partners:
        return None
    return _in_place_of(programs, paired, here, reference, target, at)


def _given_another(programs: Programs, paired: Paired, reference: int, target: int, asked: set[int]) -> Named | None:
    """The same; `asked`: the target's calls of which it was asked on the way here."""
    ours, theirs, makers = programs.runs.reference, programs.runs.target, paired.makers
    for position, value in theirs.operation(target).inputs.items():
        partner = ours.operation(reference).inputs.get(position)
        if partner is None or (programs.incoming.own_choices and _is_whole(theirs, value)):
            continue
        here, there = makers.reference.source((reference, position)), makers.target.source((target, position))
        if paired.same((reference, position), (target, position)):
            continue
        alone = here is not None and there is not None and here not in programs.aligned and there not in programs.aligned.values()
        if here is not None and there is not None and alone and paired.is_in_place_of(here, there):
            return (here, there), "out", {"static": f"{shown(theirs, there)}, reference {shown(ours, here)}"}
        lacking = None if here is None or here in programs.aligned else paired.between("reference", here)
        if here is not None and lacking is not None and _is_made_elsewhere(programs, lacking):
            return _in_place_of(programs, paired, here, reference, target, position)
        if lacking is not None:
            return missing(programs, paired, lacking, shown(theirs, target))
        added = None if there is None or there in programs.aligned.values() else paired.between("target", there)
        if added is not None:
            return (-1, added), "out", {"static": f"the target adds {shown(theirs, added)}"}
        aligned = None if here is None else programs.aligned.get(here)
        known = there is not None and paired.agree(there) if aligned is None else aligned != there
        if here is not None and known:
            return _in_place_of(programs, paired, here, reference, target, position)
        came = makers.reference.copied((reference, position)), makers.target.copied((target, position))
        if here is None and (other := _in_place_of_what_came(programs, came[0], came[1], there)) is not None:
            return (reference, target), "out", {"static": f"{shown(theirs, target)} is given {other}"}
        if here is None or there is None or aligned != there:
            continue
        if paired.agree(there):
            words = f"{shown(theirs, target)} is given another view of what {shown(theirs, there)} makes"
            return (reference, target), "out", {"static": words}
        if there not in asked and len(asked) < _MOST_ASKED and shown(ours, here) == shown(theirs, there):
            asked.add(there)
            before = _given_another(programs, paired, here, there, asked)
            if before is not None:
                return before
    return None


def _is_made_elsewhere(programs: Programs, reference: int) -> bool:
    """Whether the target makes such a call of the same module, of other values: a norm after a rotation in place of before it."""
    runs, body = programs.runs, programs.body
    module, partners = int(runs.reference.file.calls.parent[reference]), programs.partners
    if module == body.calls[0] or module in body.unpaired.reference:
        return False
    left = (call for call in body.items.target if call not in partners and not runs.target.is_module(call))
    return any(shown(runs.target, call) == shown(runs.reference, reference) for call in left)


def _is_whole(run: Recorded, value: int) -> bool:
    """Whether a value is of whole numbers: where each run has choices of its own, other ones are no fault."""
    kind = dtype_named(run.file.dtype_name(value))
    return kind is not None and kind.kind == "integer"


def _in_place_of(programs: Programs, paired: Paired, here: int, reference: int, target: int, position: str) -> Named:
    """What a call of the target's is given in place of what the reference's call `here` makes."""
    ours, theirs, makers = programs.runs.reference, programs.runs.target, paired.makers
    there, partner = makers.target.source((target, position)), programs.aligned.get(here, -1)
    made, usual = "" if there is None else shown(theirs, there), shown(ours, here)
    if there is not None and made == usual:
        made, usual = numbered(theirs, there), numbered(ours, here)
    came = _crossed(programs, "target", theirs.operation(target).inputs[position])
    given = f"what {made} makes" if made else "a value that came in" if came is None else came.words
    static = f"{shown(theirs, target)} is given {given} in place of what {usual} makes"
    if partner >= 0 and makers.target.readers(partner):
        return (reference, target), "out", {"static": static}
    return (here, partner), "out", {"static": static, "reader": theirs.file.site(target)}


def _in_place_of_what_came(programs: Programs, reference: int | None, target: int | None, made: int | None) -> str | None:
    """In words, what the target is given in place of what came into the reference's body; `made`: the call that made it there."""
    usual = None if reference is None else _crossed(programs, "reference", reference)
    if usual is None or target is None:
        return None
    if made is not None:
        return f"what {shown(programs.runs.target, made)} makes in place of {usual.words}"
    came = _crossed(programs, "target", target)
    if came is None:  # of steps that are one it may be a part of what crossed
        return None if any(programs.together) else f"a value that came in in place of {usual.words}"
    if came.source != usual.source:
        return f"{came.words} in place of {usual.words}"
    return None if came.whole and usual.whole else f"another view of {usual.words}"


class _Crossed(NamedTuple):
    """How a value came into a body."""

    source: object
    """By which call inside it, and at which position; or as which of its inputs."""
    words: str
    whole: bool
    """Whether it is all of that, as it came."""


def _crossed(programs: Programs, side: str, value: int) -> _Crossed | None:
    """How a value came into the body; None where it did not."""
    run: Recorded = getattr(programs.runs, side)
    here, place = 0 if side == "reference" else 1, run.place(value)
    for pair, interface in programs.body.children.items():
        for position, values in interface.outputs:
            if (came := run.place(values[here])).memory[0] == place.memory[0]:
                hands_on = "hands on" if position == "out" else f"hands on as {position}"
                return _Crossed((pair, position), f"what {run.file.site(pair[here]) or 'the root'} {hands_on}", came == place)
    for position, values in programs.body.interface.inputs:
        if (came := run.place(values[here])).memory[0] == place.memory[0]:
            return _Crossed(position, f"{position} of the module", came == place)
    return None


def name_wiring(programs: Programs, cut: Cut) -> Named | None:
    """Where every value has its equal and a cut is handed another one all the same: the call whose result the reference hands on.

    Where that came in, the body itself; None where the reference has a value of its own there, which no value of the target's is.
    """
    body, (pair, position) = programs.body, cut
    crossing = body.interface.outputs if pair == body.calls else body.children[pair].inputs
    value, there = next(values for at, values in crossing if at == position)
    handed = pair != body.calls
    evidence: dict[str, Any] = {"handed_to": {"site": programs.runs.target.file.site(pair[1]), "value": position}} if handed else {}
    made = _last_maker(programs, "reference", value)
    if made is not None:
        written = _written_over(programs, made, there)
        if written is not None:
            return (-1, written), "out", {**evidence, "static": f"the target adds {shown(programs.runs.target, written)}"}
        static = f"the target hands on another value than {shown(programs.runs.reference, made)} makes"
        return (made, programs.aligned.get(made, -1)), "out", {**evidence, "static": static}
    usual, given = _crossed(programs, "reference", value), _crossed(programs, "target", there)
    weight, maker = programs.runs.reference.weight(value), _last_maker(programs, "target", there)
    if usual is None and weight is None and not _is_right_elsewhere(programs, value, there):
        return None
    if usual is not None and given is not None and usual.source == given.source and usual.whole and given.whole:
        return None  # handed on as it came
    was = weight[0] if usual is None and weight is not None else None if usual is None else usual.words
    is_now = None if given is None else given.words
    if maker is not None:
        is_now = f"what {shown(programs.runs.target, maker)} makes"
    static = f"hands on {'another view of' if was == is_now else f'{is_now} in place of'} {was}"
    if was is None or is_now is None:
        static = "hands on another value than the reference does"
    return body.calls, "out" if handed else position, {**evidence, "static": static}


def _written_over(programs: Programs, reference: int, target: int) -> int | None:
    """A call without partner that writes last to what the target makes as the reference's call does, before it is handed on."""
    run, partner, last = programs.runs.target, programs.aligned.get(reference), _last_maker(programs, "target", target)
    if partner is None or last is None or last in programs.partners or not run.operation(last).writes:
        return None
    return last if _makes(run, partner, run.place(target).memory[0]) else None


def _is_right_elsewhere(programs: Programs, reference: int, target: int) -> bool:
    """Whether what the target made in the place of a value that came in is nearer to it than what the target hands on.

    Else the two calls are no partners: what the target hands on was made by another one.
    """
    partner = programs.incoming.partner(reference)
    if partner is None:
        return False
    try:
        value = programs.contents(programs.runs.reference, reference)
        others = [programs.contents(programs.runs.target, one) for one in (partner, target)]
    except CannotReplay:
        return False
    near, far = (programs.body.forms.beside(value, other) for other in others)
    return near is not None and (far is None or row_difference(*near).figure < row_difference(*far).figure)


def _last_maker(programs: Programs, side: str, value: int) -> int | None:
    """The last operator call of the body that makes what lies where a value does, views left out; None where it came in."""
    run: Recorded = getattr(programs.runs, side)
    memory = run.place(value).memory[0]
    makers = (i for i in reversed(getattr(programs.body.items, side)) if not run.is_module(i) and not run.is_view(run.operation(i)))
    return next((i for i in makers if _makes(run, i, memory)), None)


def _makes(run: Recorded, call: int, memory: int) -> bool:
    return any(run.place(value).memory[0] == memory for value in run.operation(call).outputs.values())


def missing(programs: Programs, paired: Paired, call: int, following: str | None) -> Named:
    """A call of the reference's that the target does not make; or the module that the target never runs, where it stands in one.

    Of a module that the target has written otherwise it makes some of what is made there: what it lacks is the call.
    """
    run = programs.runs.reference
    module, outermost = int(run.file.calls.parent[call]), None
    while module in programs.body.unpaired.reference:
        outermost, module = module, int(run.file.calls.parent[module])
    if outermost is not None and not _makes_some_of(programs, paired, outermost):
        named = run.file.text(int(run.file.calls.type[outermost])) or "module"
        return (outermost, -1), "out", {"static": f"the target never runs {run.file.site(outermost)} ({named})", "missing": "module"}
    evidence: dict[str, Any] = {"static": f"the target lacks {shown(run, call)}"}
    return (call, -1), "out", evidence if following is None else {**evidence, "next": following}


def _makes_some_of(programs: Programs, paired: Paired, module: int) -> bool:
    """Whether a call of the target's makes what its partner in a module of the reference's does."""
    inside = programs.runs.reference.walk(module, set())
    return any(one in programs.aligned and paired.agree(programs.aligned[one]) for one in inside)
