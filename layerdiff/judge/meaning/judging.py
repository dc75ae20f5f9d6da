"""Meaning and arithmetic of one body: do both programs compute the same, and did the target make what its program says.

Where the wiring of a cut is the same, the meaning is, and nothing is run. Else both programs run in float64 on the target's incoming
values; where they part at a cut, the first exact value of one that the other never makes names the call. Once a call is named, its
result is handed to the reference's program too, so that a second fault behind it still shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.decisions import decided_otherwise, with_decisions
from layerdiff.judge.meaning.handed import name_wiring
from layerdiff.judge.meaning.naming import changed_call, name_call, other_draws
from layerdiff.judge.meaning.parting import cuts_met, cuts_of, figure_at, worst_cut
from layerdiff.judge.meaning.precision import coarser_calls, find_precision
from layerdiff.judge.meaning.reach import cone
from layerdiff.judge.meaning.sums_in_steps import find_rounded_sums
from layerdiff.judge.meaning.suspects import nearly
from layerdiff.judge.meaning.wording import is_told, numbers_in, shown
from layerdiff.judge.programs.accumulated import came_in_apart
from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.constants import is_masked, unmasked
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.running import Programs, Ran, Redone
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING, BodyVerdict, Cut, Setting
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import RowDifference, row_difference
from layerdiff.replay.once import operands_by_position
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both

Array = NDArray[Any]
_MOST_FAULTS: Final = 8
_NEARER: Final = 0.9
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
    coarse = coarser_calls(setting, body, aligned)
    if not differing and not coarse and not setting.laid:
        return said
    programs = Programs(setting.runs, body, incoming, aligned, setting.contents)
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
        coarse = coarser_calls(setting, body, aligned)
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
    for _ in range(_MOST_FAULTS):
        worst = worst_cut(setting, programs, ours, theirs, differing)
        if worst is None:
            break
        cut, difference = worst
        if programs.incoming.alone and not named:
            allowed = _OTHER_NUMBERS * setting.rounding.coarsest(programs.body)
            if difference.figure > allowed:
                allowed = max(allowed, _ACCUMULATED * came_in_apart(setting.runs, setting.contents, programs.body))
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
            over = _passed_over(setting, programs, ours, differing, calls[1], passed, difference.figure)
            if over is not None and over.off <= nearly(difference.figure):
                evidence = {"static": f"the target adds {shown(setting.runs.target, calls[1])}"}
            elif "the target adds" not in str(evidence.get("static")):
                over = None  # nearer by chance
            surely = over is not None
        told = "constant" in evidence or is_told(evidence.get("static"))
        if calls in named or (passed and not surely) or (named and programs.incoming.own_choices and not told):
            break  # beside other choices what is made of other tokens parts, too
        named.add(calls)
        shown_at = calls[0], _first_piece(programs, ours, watched, calls, value, evidence)
        said.findings.append(_meaning(shown_at, value, cut, difference, evidence, broken=_loses_numbers(programs, ours, theirs, cut)))
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


@dataclass(frozen=True)
class _Over:
    """The target's program without what it adds."""

    ways: Mapping[int, Redone]
    ran: Ran
    off: float
    """How far it is from the reference's then."""


def _passed_over(
    setting: Setting, programs: Programs, ours: Ran, cuts: list[Cut], call: int, passed: Mapping[int, Redone], figure: float
) -> _Over | None:
    """The target's program without a call that it adds, or without all that are alike, one a request of a batch.

    What each was given goes on in its place. None where that is no nearer.
    """
    run, partnered = setting.runs.target, set(programs.aligned.values())
    items = [item for item in programs.body.items.target if not run.is_module(item) and item not in partnered]
    alike = [item for item in items if shown(run, item) == shown(run, call)]
    found: _Over | None = None
    for calls in ([call], alike)[: 1 + (len(alike) > 1)]:
        ways = {one: way for one in calls if (way := _handing_on(run, one)) is not None}
        try:
            ran = programs.run("target", redone={**passed, **ways}) if len(ways) == len(calls) else None
        except CannotReplay:
            ran = None
        off = np.inf if ran is None else figure_at(setting, programs, ours, ran, cuts)
        if ran is not None and off < min(_NEARER * figure, np.inf if found is None else found.off):
            found = _Over({**passed, **ways}, ran, off)
    return found


def _handing_on(run: Recorded, call: int) -> Redone | None:
    """A call that hands on the first operand that has the shape of its result; None where it has none."""
    operation = run.operation(call)
    if operation.writes or set(operation.outputs) != {"out"}:
        return None
    shape = run.file.shape(operation.outputs["out"])
    for position, value in operation.inputs.items():
        if run.file.shape(value) == shape and "float" in run.file.dtype_name(value):
            return lambda given, _: {"out": operands_by_position(operation, given)[position]}
    return None


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
            return [_meaning(calls, position, cut, difference, evidence, broken=False)]
    return []


def _loses_numbers(programs: Programs, ours: Ran, theirs: Ran, cut: Cut) -> bool:
    """Whether the target's program has NaN or Inf where the reference's is finite."""
    (r, t), position = cut
    beside = programs.body.forms.beside(ours.cuts[r, position], theirs.cuts[t, position])
    if beside is None or beside[0].dtype.kind != "f":
        return False
    return bool(np.any(np.isfinite(beside[0]) & ~is_masked(beside[0]) & ~np.isfinite(beside[1])))


def _meaning(
    calls: tuple[int, int],
    value: str,
    cut: Cut,
    difference: RowDifference,
    evidence: dict[str, Any],
    *,
    broken: bool,
) -> Local:
    figure = difference.figure
    static = evidence.get("static")
    small = figure <= BELOW_ROUNDING and "constant" not in evidence and not (static is not None and numbers_in(static))
    said = {
        **evidence,
        "meaning": figure,
        "cut": cut[1],
        "worst": difference.worst,
        "largest": difference.max_abs,
        "rows": difference.rows,
    }
    statement = "computes something else" if static is None else static
    if "constant" in evidence:
        statement = f"another {evidence['constant']}"
    if small:
        return Local(
            calls,
            value,
            Verdict.INHERITED,
            f"{statement}, below rounding",
            figure,
            BELOW_ROUNDING,
            "meaning",
            kind="below-rounding",
            evidence=said,
            notice=True,
        )
    if broken:
        return Local(
            calls,
            value,
            Verdict.BROKEN,
            f"NaN or Inf where the reference's program is finite: {statement}",
            figure,
            NOTHING,
            "meaning: both programs on the target's values",
            evidence=said,
        )
    return Local(
        calls, value, Verdict.UNEXPLAINED, statement, figure, NOTHING, "meaning: both programs on the target's values", evidence=said
    )
