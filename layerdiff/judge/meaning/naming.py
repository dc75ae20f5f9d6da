"""`name_call`: which call it is at which two programs of a body part, and what the two calls differ in besides their values.

In order: aligned calls that are given other scalars and make something else; the first exact value of the target's program that
the reference's never makes; the first of the reference's that the target's never makes (equals.py). What reaches the cut only through
a value that both make is looked at last: rewritten on the way to a right value, it is no fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.forms import same_form
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.equals import Equals
from layerdiff.judge.meaning.mending import other_scalars, with_scalars
from layerdiff.judge.meaning.reach import behind, cone, cone_of_call
from layerdiff.judge.programs.bodies import tokens_of
from layerdiff.judge.programs.constants import unmasked
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING, Cut
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import row_difference
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both

Array = NDArray[Any]
_FAR: Final = 1000.0
"""How many times further two programs part than a value that they both make, though not to the last bit."""


def name_call(
    programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, cut: Cut, figure: float
) -> tuple[tuple[int, int], str, dict[str, Any]] | None:
    """The call where the programs part on their way to a cut, by `figure`: calls, position, evidence."""
    back = {t: r for r, t in programs.aligned.items()}
    near = BELOW_ROUNDING if figure > _FAR * BELOW_ROUNDING else NOTHING  # a table that was rounded makes no such difference
    tokens = tokens_of(programs.runs, programs.body) or ()
    ours, theirs = _plain(programs, ours, theirs)
    known = Both(Equals.of(ours, near, tokens), Equals.of(theirs, near, tokens))
    cones = Both(cone(programs, "reference", cut), cone(programs, "target", cut))
    beside = Both(
        {r: theirs.results[t] for r, t in programs.aligned.items() if t in theirs.results},
        {t: ours.results[r] for r, t in programs.aligned.items() if r in ours.results},
    )
    held = Both(known.target.holds(ours, known.reference, beside.reference), known.reference.holds(theirs, known.target, beside.target))
    apart = Both(cone(programs, "reference", cut, held.reference), cone(programs, "target", cut, held.target))
    right = Both(behind(programs, "reference", ours, held.reference), behind(programs, "target", theirs, held.target))
    apart = Both(apart.reference - right.reference or apart.reference, apart.target - right.target or apart.target)
    if programs.incoming.own_choices:  # what follows from other choices is no fault
        cones = Both(cones.reference - _following(ours), cones.target - _following(theirs))
        apart = Both(apart.reference - _following(ours), apart.target - _following(theirs))
    first = other = None
    for inside, equals in ((apart, known), (cones, Both(Equals.of(ours, NOTHING, tokens), Equals.of(theirs, NOTHING, tokens)))):
        first = first or equals.reference.first_without(theirs, inside.target - _copies(programs.runs.target, inside.target))
        first = first or equals.reference.first_without(theirs, inside.target)
        other = other or equals.target.first_without(ours, inside.reference)
    changed = _first_changed(programs, wiring, ours, theirs, apart.target)
    changed = changed or _first_changed(programs, wiring, ours, theirs, cones.target)
    mends = None if changed is None else _mends(programs, ours, *changed)
    if changed is not None and (mends or (mends is None and (first is None or changed[1] <= first[0]))):
        return changed, _first_position(theirs, ours, changed), _static_difference(programs, wiring, *changed)
    if first is not None:
        call, position = first
        partner = back.get(call, _replaced(programs, theirs, ours, call, other))
        names = {run.operation(one).name for run, one in zip(programs.runs, (partner, call), strict=True) if one >= 0}
        same = partner >= 0 and len(names) == 1 and wiring.scalars.reference.get(partner) == wiring.scalars.target.get(call)
        if (
            other is not None
            and same
            and other[0] not in programs.aligned
            and other[0] in cone_of_call(programs.runs.reference, programs.body.items.reference, partner)
        ):
            return _missing(programs, other, programs.runs.target.operation(call).name)
        rewired = _given_another(programs, ours, theirs, partner, call) if same else None
        if rewired is not None:
            return rewired
        evidence = _static_difference(programs, wiring, partner, call)
        if mends is False and changed == (partner, call):  # its scalars are not to blame
            evidence.pop("static", None)
        return (partner, call), position, evidence
    if other is not None and other[0] not in programs.aligned:
        return _missing(programs, other, None)
    if other is not None:
        static = f"the target never makes what {shown(programs.runs.reference, other[0])} makes"
        return (other[0], programs.aligned.get(other[0], -1)), other[1], {"static": static}
    return None


def _plain(programs: Programs, ours: Ran, theirs: Ran) -> Both[Ran]:
    """What the programs made, at the places that count."""
    forms, rans = programs.body.forms, Both(ours, theirs)
    if not forms.fillings.sizes and forms.packing is None:
        return rans
    partners = Both(programs.aligned, {t: r for r, t in programs.aligned.items()})
    sizes = rans.map(lambda ran: {size for results in ran.results.values() for made in results.values() for size in made.shape})

    def plain(side: str, other: str) -> Ran:
        ran: Ran = getattr(rans, side)
        known = getattr(rans, other).results
        made: dict[int, dict[str, Array]] = {}
        for call, results in ran.results.items():
            there = known.get(getattr(partners, side).get(call), {})
            made[call] = {at: forms.plain(x, side, there.get(at), getattr(sizes, other)) for at, x in results.items()}
        return replace(ran, results=made)

    return Both(plain("reference", "target"), plain("target", "reference"))


def _replaced(programs: Programs, theirs: Ran, ours: Ran, call: int, other: tuple[int, str] | None) -> int:
    """The reference's call in whose place one of the target's stands that has no partner: both make what the other side never does."""
    if other is None or other[0] in programs.aligned:
        return -1
    shapes = [[made.shape for made in results.values()] for results in (ours.results[other[0]], theirs.results[call])]
    return other[0] if shapes[0] == shapes[1] else -1


COPIES: Final = frozenset({"clone", "copy_", "_to_copy", "contiguous", "lift_fresh_copy"})


def _copies(run: Recorded, calls: set[int]) -> set[int]:
    """Calls that hand on what they are given: another value there was another before."""
    return {call for call in calls if run.operation(call).base in COPIES}


def _following(ran: Ran) -> set[int]:
    """Calls that make whole numbers or truth values only: masks and lists of the tokens of an expert."""
    return {call for call, results in ran.results.items() if all(made.dtype.kind in "iub" for made in results.values())}


def _given_another(
    programs: Programs, our_ran: Ran, their_ran: Ran, reference: int, target: int
) -> tuple[tuple[int, int], str, dict[str, Any]] | None:
    """An operand of two aligned calls that comes from elsewhere.

    From another call: the reference's is named, whose result is not handed on. From another module, or another input: the two calls.
    """
    ours, theirs = programs.runs.reference, programs.runs.target
    for position, value in theirs.operation(target).inputs.items():
        partner = ours.operation(reference).inputs.get(position)
        if partner is None:
            continue
        there = _maker(theirs, programs.body.items.target, target, value)
        here = _maker(ours, programs.body.items.reference, reference, partner)
        if here is not None and there is not None and _alike(our_ran.results.get(here), their_ran.results.get(there)):
            continue
        if here is not None and programs.aligned.get(here) is not None and programs.aligned.get(here) != there:
            given = "a value that came in" if there is None else shown(theirs, there)
            static = f"{shown(theirs, target)} is given {given} in place of what {shown(ours, here)} makes"
            return (here, programs.aligned[here]), "out", {"static": static, "reader": theirs.file.site(target)}
        if here is None and there is None:
            crossed = Both(_crossed(programs, "reference", partner), _crossed(programs, "target", value))
            if crossed.reference is not None and crossed.target is not None and crossed.reference.source != crossed.target.source:
                given, usual = crossed.target.words, crossed.reference.words
                return (reference, target), "out", {"static": f"{shown(theirs, target)} is given {given} in place of {usual}"}
    return None


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


def _alike(one: Mapping[str, Array] | None, other: Mapping[str, Array] | None) -> bool:
    """Whether two calls made the same first value."""
    if not one or not other:
        return False
    made = next(iter(one.values())), next(iter(other.values()))
    if made[0].shape != made[1].shape:
        return Equals([made[1]]).has(made[0]) or Equals([made[0]]).has(made[1])
    return row_difference(unmasked(made[0]), unmasked(made[1])).figure <= NOTHING


def _maker(run: Recorded, items: Sequence[int], before: int, value: int) -> int | None:
    """The operator call of the body that made what a value holds, copies and views left out; None where it came in."""
    memory = run.place(value).memory[0]
    for item in reversed(items[: items.index(before)]):
        if run.is_module(item) or run.is_view(run.operation(item)) or not _makes(run, item, memory):
            continue
        operation = run.operation(item)
        if operation.base not in COPIES or "in[0]" not in operation.inputs or operation.writes:
            return item
        memory = run.place(operation.inputs["in[0]"]).memory[0]
    return None


def name_wiring(programs: Programs, cut: Cut) -> tuple[tuple[int, int], str, dict[str, Any]] | None:
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
        static = f"the target hands on another value than {shown(programs.runs.reference, made)} makes"
        return (made, programs.aligned.get(made, -1)), "out", {**evidence, "static": static}
    usual, given = _crossed(programs, "reference", value), _crossed(programs, "target", there)
    weight, maker = programs.runs.reference.weight(value), _last_maker(programs, "target", there)
    if usual is None and weight is None and programs.incoming.partner(value) is None:
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


def _last_maker(programs: Programs, side: str, value: int) -> int | None:
    """The last operator call of the body that makes what lies where a value does, views left out; None where it came in."""
    run: Recorded = getattr(programs.runs, side)
    memory = run.place(value).memory[0]
    makers = (i for i in reversed(getattr(programs.body.items, side)) if not run.is_module(i) and not run.is_view(run.operation(i)))
    return next((i for i in makers if _makes(run, i, memory)), None)


def _makes(run: Recorded, call: int, memory: int) -> bool:
    return any(run.place(value).memory[0] == memory for value in run.operation(call).outputs.values())


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


def _missing(programs: Programs, other: tuple[int, str], following: str | None) -> tuple[tuple[int, int], str, dict[str, Any]]:
    """A call of the reference's that the target does not make; or the module that the target never runs, where it stands in one."""
    run, (call, position) = programs.runs.reference, other
    module, outermost = int(run.file.calls.parent[call]), None
    while module in programs.body.unpaired.reference:
        outermost, module = module, int(run.file.calls.parent[module])
    if outermost is not None:
        named = run.file.text(int(run.file.calls.type[outermost])) or "module"
        return (outermost, -1), "out", {"static": f"the target never runs {run.file.site(outermost)} ({named})", "missing": "module"}
    evidence: dict[str, Any] = {"static": f"the target lacks {shown(run, call)}"}
    return (call, -1), position, evidence if following is None else {**evidence, "next": following}


def changed_call(
    programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, cut: Cut
) -> tuple[tuple[int, int], str, dict[str, Any]] | None:
    """The first two aligned calls on the way to a cut that are given other scalars, and make something else of one shape."""
    changed = _first_changed(programs, wiring, ours, theirs, cone(programs, "target", cut))
    if changed is None:
        return None
    position = _first_position(theirs, ours, changed)
    if ours.results[changed[0]][position].shape != theirs.results[changed[1]][position].shape:
        return None
    return changed, position, _static_difference(programs, wiring, *changed)


def _first_changed(programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, inside: set[int]) -> tuple[int, int] | None:
    """The first pair of aligned calls that are given other scalars, and make something else."""
    for reference, target in sorted(programs.aligned.items(), key=lambda pair: pair[1]):
        if target not in inside or wiring.scalars.reference.get(reference) == wiring.scalars.target.get(target):
            continue
        one, other = ours.results.get(reference), theirs.results.get(target)
        if one is None or other is None:
            continue
        for position, made in one.items():
            there = other.get(position)
            if there is None or (there.dtype.kind == "f") != (made.dtype.kind == "f"):
                continue  # positions are added up, too: that is no other scalar
            if there.shape != made.shape or row_difference(unmasked(made), unmasked(there)).figure > NOTHING:
                return reference, target
    return None


def _mends(programs: Programs, ours: Ran, reference: int, target: int) -> bool | None:
    """Whether a call of the target makes what the reference's does once it is given its scalars; None where that cannot be tried."""
    here, there = programs.runs.reference.operation(reference), programs.runs.target.operation(target)
    tried = False
    for keys in other_scalars(there, here):
        try:
            made = programs.run("target", watch=True, pictures={target: with_scalars(there, here, keys)}).results.get(target, {})
        except CannotReplay:
            continue
        tried = True
        right = ours.results[reference]
        if made.keys() == right.keys() and all(_same(x, made[at]) for at, x in right.items()):
            return True
    return False if tried else None


def _same(one: Array, other: Array) -> bool:
    """Whether two results are the same, in whatever layout."""
    if same_form(one.shape, other.shape):
        return row_difference(unmasked(one), unmasked(other.reshape(one.shape))).figure <= NOTHING
    return Equals([one]).has(other)


def _first_position(theirs: Ran, ours: Ran, pair: tuple[int, int]) -> str:
    one, other = ours.results[pair[0]], theirs.results[pair[1]]
    return next((position for position in other if position in one and not np.array_equal(one[position], other[position])), "out")


def _static_difference(programs: Programs, wiring: Wiring, reference: int, target: int) -> dict[str, Any]:
    """What two aligned calls differ in besides their values."""
    runs = programs.runs
    if reference < 0:
        return {"static": f"the target adds {shown(runs.target, target)}"}
    found: dict[str, Any] = {}
    ours, theirs = wiring.scalars.reference.get(reference), wiring.scalars.target.get(target)
    names = runs.reference.operation(reference).name, runs.target.operation(target).name
    if ours != theirs or names[0] != names[1]:
        found["static"] = f"{shown(runs.target, target)}, reference {shown(runs.reference, reference)}"
    differing = _other_constant(programs, reference, target)
    if differing is not None:
        found["constant"] = differing
    return found


def _other_constant(programs: Programs, reference: int, target: int) -> str | None:
    runs = programs.runs
    ours, theirs = runs.reference.operation(reference).inputs, runs.target.operation(target).inputs
    for position in (one for one in theirs if one in ours):
        there, here = runs.target.weight(theirs[position]), runs.reference.weight(ours[position])
        if there is None or here is None:
            continue
        if programs.incoming.number("target", theirs[position]) != programs.incoming.number("reference", ours[position]):
            return here[0] if here[0] == there[0] else f"{there[0]} in place of {here[0]}"
    return None


def shown(run: Recorded, call: int) -> str:
    """An operator with its scalars: `add(1e-05)`."""
    operation = run.operation(call)
    name = operation.name.removeprefix("aten.").rpartition(".")[0]
    picture = operation.picture or {"args": [], "kwargs": {}}
    plain = [_text(item) for item in picture["args"]] + [f"{k}={_text(v)}" for k, v in picture["kwargs"].items()]
    scalars = [text for text in plain if text and not text.endswith("=")]
    return f"{name}({', '.join(scalars)})" if scalars else name


def _text(thing: Any) -> str:
    if isinstance(thing, Mapping):
        return "" if "tensor" in thing else str(next(iter(thing.values()), ""))
    if isinstance(thing, list):
        return "" if any(isinstance(item, Mapping) for item in thing) else json.dumps(thing)
    return "" if thing is None else str(thing)


def numbers_in(static: str) -> bool:
    """Whether a difference of two calls in words names a number that is no size: an epsilon, a scale."""
    return any("." in text or "e" in text for text in re.findall(r"(?<![\w.])-?\d[\d.e+-]*", static))
