"""Meaning and arithmetic of one body: do both programs compute the same, and did the target make what its program says.

Where the wiring of a cut is the same, the meaning is, and nothing is run. Else both programs run in float64 on the target's incoming
values; where they part at a cut, the first exact value of one that the other never makes names the call. Once a call is named, its
result is handed to the reference's program too, so that a second fault behind it still shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.decisions import decided_otherwise, with_decisions
from layerdiff.judge.meaning.finding import found_of_meaning
from layerdiff.judge.meaning.handed import name_wiring
from layerdiff.judge.meaning.naming import changed_call, name_call, other_draws
from layerdiff.judge.meaning.parting import cuts_met, cuts_of, figure_at, worst_cut
from layerdiff.judge.meaning.passed_over import passed_over
from layerdiff.judge.meaning.precision import coarser_calls, find_precision
from layerdiff.judge.meaning.reach import cone
from layerdiff.judge.meaning.read_back import as_rounded
from layerdiff.judge.meaning.sums_in_steps import find_rounded_sums
from layerdiff.judge.meaning.suspects import nearly
from layerdiff.judge.meaning.wording import is_told, never_makes, shown
from layerdiff.judge.programs.accumulated import came_in_apart
from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.constants import is_masked, unmasked
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.running import Programs, Ran, Redone
from layerdiff.judge.programs.setting import COARSE_RATIO, NOTHING, BodyVerdict, Cut, Setting
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.measure.rows import row_difference
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both

Array = NDArray[Any]
_MOST_FAULTS: Final = 8
_NEARER: Final = 0.9
_DRAWS: Final = 8
_OTHER_NUMBERS: Final = 16.0
"""Roundoffs that what two programs make may be apart where the reference's reads state of its own run. Measured in one layer: up to 2.7."""
_ACCUMULATED: Final = 2.5
"""Times what came into the module, in this step and before, that it may be apart in later layers: the state was made of that. Measured,
decoding with static, dynamic, paged and ring caches in fp32 and bf16: up to 2.0 beyond 16 roundoffs; one slot that is stale: 2.8 to 5."""


def judge_body(setting: Setting, body: Body, incoming: Incoming, wiring: Wiring, aligned: Mapping[int, int]) -> BodyVerdict:
    """The local findings of one body. Raises CannotReplay where what is needed was not recorded."""
    said = BodyVerdict()
    cuts = cuts_of(body)
    differing = [cut for cut in cuts if not wiring.same(*cut)]
    said.compared, said.same = len(cuts), len(cuts) - len(differing)
    programs = Programs(setting.runs, body, incoming, aligned, setting.contents)
    coarse = sorted({*coarser_calls(setting, body, aligned), *programs.codes.target.roundings})
    if not differing and not coarse and not setting.laid:
        return said
    theirs = programs.run("target")
    said.opaque = theirs.opaque
    ours, kept = with_decisions(setting, programs, theirs, said)
    said.unheld = {programs.aligned.get(call, -1) for call, _ in ours.opaque} & {call for call, _ in theirs.opaque}
    opaque = {call for call, _ in (*theirs.opaque, *ours.opaque)}
    told = [cut for cut in differing if not opaque or not (opaque & (cone(programs, "target", cut) | cone(programs, "reference", cut)))]
    known, hidden, plain = len(said.findings), {cut for cut in differing if cut not in told}, ours
    faults, ours = _faults(setting, programs, wiring, theirs, ours, kept, told, said)
    if not faults:
        said.findings += other_draws(programs, wiring)
        said.findings += _before_opaque(programs, wiring, theirs, ours, sorted(hidden), kept)
        sums = find_rounded_sums(setting, programs, kept)
        said.findings += sums
        if coarse or not sums:
            find_precision(setting, programs, theirs, ours, kept, coarse, cuts, hidden, said)
    elif all(local.notice for local in said.findings[known:]):  # what is below rounding excuses no coarser dtype
        find_precision(setting, programs, theirs, plain, kept, coarse, cuts, hidden, said)
    return said


def precision_beside_folded(setting: Setting, body: Body, incoming: Incoming, aligned: Mapping[int, int]) -> list[Local]:
    """What arithmetic says of a body whose program is another function for folded weights alone: its own is right there."""
    said = BodyVerdict()
    programs = Programs(setting.runs, body, incoming, aligned, setting.contents)
    try:
        theirs = programs.run("target")
        coarse = sorted({*coarser_calls(setting, body, aligned), *programs.codes.target.roundings})
        find_precision(setting, programs, theirs, theirs, frozenset(), coarse, cuts_of(body), set(), said, folded=True)
    except CannotReplay:
        return []
    return said.findings


def _faults(
    setting: Setting,
    programs: Programs,
    wiring: Wiring,
    theirs: Ran,
    ours: Ran,
    kept: frozenset[int],
    differing: list[Cut],
    said: BodyVerdict,
) -> tuple[bool, Ran]:
    """Finds faults one after another, each time with those found before taken over; returns whether there were any."""
    taken: dict[int, Mapping[str, Array]] = {}
    passed: Mapping[int, Redone] = {}
    named: set[tuple[int, int]] = set()
    watched: Ran | None = None
    scaled = as_rounded(setting, programs, ours, theirs, differing, said)
    if scaled is not None:
        passed, theirs = scaled.ways, scaled.ran
        named.add((-1, -1))
    for _ in range(_MOST_FAULTS):
        worst = worst_cut(setting, programs, ours, theirs, differing)
        if worst is None:
            break
        cut, difference = worst
        own_codes = bool(programs.incoming.alone and programs.codes.target.kept)
        if programs.incoming.alone and not named:
            allowed = _OTHER_NUMBERS * setting.rounding.coarsest(programs.body)
            if difference.figure > allowed:
                codes = _codes_moved(setting, programs, theirs, cut)
                allowed = max(allowed, codes, _ACCUMULATED * came_in_apart(setting.runs, setting.contents, programs.body))
            if difference.figure <= allowed:
                break  # state that the two keep in different forms, each its own: no further apart than what it was made of
        if watched is None:
            watched = programs.run("target", watch=True, redone=passed)
        ours = programs.run("reference", watch=True, kept=kept, taken=taken)
        own = {call: ours.results[call] for call in kept if call in ours.results}
        decided = decided_otherwise(setting, programs, ours, theirs, cut, {**taken, **own})
        if decided is not None:
            said.findings.append(decided[0])
            differing = [other for other in differing if other != cut]
            if decided[2]:  # what follows from the choice is no fault either
                taken[decided[1]] = decided[2]
                ours = programs.run("reference", kept=kept, taken=taken)
            continue

        def off(ran: Ran, ours: Ran = ours, cut: Cut = cut) -> float:
            return figure_at(setting, programs, ours, ran, [cut])

        met = cuts_met(setting, programs, ours, theirs, differing, nearly(difference.figure))
        place = name_call(programs, wiring, ours, watched, cut, difference.figure, off, met, passed) or name_wiring(programs, cut)
        wired = place is not None and min(place[0]) >= 0 and setting.runs.reference.is_module(place[0][0])
        if place is None or (named and ("handed_to" in place[2] or (wired and place[0] in named))):
            differing = [other for other in differing if other != cut]  # not made here; or what a fault that was named does elsewhere
            continue
        calls, value, evidence = place
        surely, over = "constant" in evidence or ", reference " in str(evidence.get("static")), None
        if calls[0] < 0 and not surely:
            over = None if own_codes else passed_over(setting, programs, ours, differing, calls[1], passed, difference.figure)
            if over is not None and over.off <= nearly(difference.figure):
                evidence = {"static": f"the target adds {shown(setting.runs.target, calls[1])}"}
            elif own_codes:  # codes that were made before and read now are not told from how new ones are made
                evidence = {"static": never_makes("reference", setting.runs.target, calls[1])}
            elif "the target adds" not in str(evidence.get("static")):
                over = None  # nearer by chance
            surely = over is not None
        told = "constant" in evidence or is_told(evidence.get("static"))
        if calls in named or (passed and not surely) or (named and programs.incoming.own_choices and not told):
            break  # beside other choices what is made of other tokens parts, too
        named.add(calls)
        shown_at = calls[0], _first_piece(programs, ours, watched, calls, value, evidence)
        said.findings.append(
            found_of_meaning(shown_at, value, cut, difference, evidence, broken=_loses_numbers(programs, ours, theirs, cut))
        )
        if over is not None:
            passed, theirs, watched = over.ways, over.ran, None
            ours = programs.run("reference", kept=kept, taken=taken)
            continue
        if wired:  # all that it makes is right
            differing = [other for other in differing if other != cut]
            continue
        if calls[0] >= 0 and setting.runs.reference.is_module(calls[0]):  # nothing of what it makes is in the target
            inside = set(setting.runs.reference.walk(calls[0], set()))
            differing = [other for other in differing if inside.isdisjoint(cone(programs, "reference", other))]
            continue
        more = {**taken, calls[0]: watched.results[calls[1]]} if told and _fits(ours, watched, calls) else None
        after = None if more is None else _going_on(setting, programs, ours, theirs, differing, kept, more)
        if more is None or after is None:  # nothing to take over: what lies behind is not told apart
            differing = [other for other in differing if other != cut and not _goes_through(programs, other, calls)]
        else:
            taken, ours = more, after
    return bool(named), ours


def _codes_moved(setting: Setting, programs: Programs, theirs: Ran, cut: Cut) -> float:
    """How far roundings to codes of what the target keeps may move it at a cut; 0 where it keeps none."""
    (_, t), position = cut
    if not programs.codes.target.kept:
        return 0.0
    drawn = [programs.run("target", codes=programs.codes.target.moved(number)) for number in range(_DRAWS)]
    pairs = [setting.beside(programs.body.forms, theirs.cuts[t, position], ran.cuts[t, position]) for ran in drawn]
    return COARSE_RATIO * max((row_difference(*beside).figure for beside in pairs if beside is not None), default=0.0)


def _first_piece(programs: Programs, ours: Ran, theirs: Ran, calls: tuple[int, int], position: str, evidence: Mapping[str, Any]) -> int:
    """The call of the target's that is named: of those that are one in pieces the first that makes something else."""
    together = programs.together.target
    pieces = together.calls(calls[1])
    if len(pieces) == 1:
        return calls[1]
    made, there = (ran.results.get(call, {}).get(position) for ran, call in zip((ours, theirs), calls, strict=True))
    if made is not None and there is not None and made.shape == there.shape:
        both = zip(*(together.apart(calls[1], position, x) for x in (made, there)), strict=True)
        differing = [row_difference(unmasked(one), unmasked(other)).figure > NOTHING for one, other in both]
        return next((call for call, differs in zip(pieces, differing, strict=False) if differs), calls[1])
    return pieces[0] if is_told(evidence.get("static")) else calls[1]


def _going_on(
    setting: Setting,
    programs: Programs,
    ours: Ran,
    theirs: Ran,
    cuts: list[Cut],
    kept: frozenset[int],
    taken: Mapping[int, Mapping[str, Array]],
) -> Ran | None:
    """The reference's program with what the target made in place of its own; None where cuts part that met.

    The calls are no partners then: what the reference makes there is made elsewhere in the target, and right.
    """
    try:
        after = programs.run("reference", kept=kept, taken=taken)
    except CannotReplay:  # what the target made there does not fit
        return None
    met = cuts_met(setting, programs, ours, theirs, cuts)
    return after if worst_cut(setting, programs, after, theirs, met) is None else None


def _fits(ours: Ran, theirs: Ran, calls: tuple[int, int]) -> bool:
    """Whether the reference's program can go on with what the target made."""
    made, there = ours.results.get(calls[0]), theirs.results.get(calls[1])
    if calls[0] in ours.lacking or calls[1] in theirs.lacking:
        return False
    return made is not None and there is not None and {p: x.shape for p, x in made.items()} == {p: x.shape for p, x in there.items()}


def _goes_through(programs: Programs, cut: Cut, calls: tuple[int, int]) -> bool:
    return calls[0] in cone(programs, "reference", cut) or calls[1] in cone(programs, "target", cut)


def _before_opaque(programs: Programs, wiring: Wiring, theirs: Ran, ours: Ran, hidden: list[Cut], kept: frozenset[int]) -> list[Local]:
    """The first call with other scalars on the way to calls that could not be run, where both sides have the same such calls.

    What such a call makes is taken as recorded, so that nothing shows behind it.
    """
    opaque = {call: programs.aligned.get(call) for call, _ in ours.opaque}
    if not hidden or set(opaque.values()) != {call for call, _ in theirs.opaque}:
        return []
    if any(t is None or wiring.scalars.reference.get(r) != wiring.scalars.target.get(t) for r, t in opaque.items()):
        return []
    watched = Both(programs.run("reference", watch=True, kept=kept), programs.run("target", watch=True))
    for cut in hidden:
        changed = changed_call(programs, wiring, watched.reference, watched.target, cut)
        if changed is not None:
            calls, position, evidence = changed
            made = watched.reference.results[calls[0]][position], watched.target.results[calls[1]][position]
            difference = row_difference(unmasked(made[0]), unmasked(made[1].reshape(made[0].shape)))
            return [found_of_meaning(calls, position, cut, difference, evidence, broken=False)]
    return []


def _loses_numbers(programs: Programs, ours: Ran, theirs: Ran, cut: Cut) -> bool:
    """Whether the target's program has NaN or Inf where the reference's is finite."""
    (r, t), position = cut
    beside = programs.body.forms.beside(ours.cuts[r, position], theirs.cuts[t, position])
    if beside is None or beside[0].dtype.kind != "f":
        return False
    return bool(np.any(np.isfinite(beside[0]) & ~is_masked(beside[0]) & ~np.isfinite(beside[1])))
