"""Meaning and arithmetic of one body: do both programs compute the same, and did the target make what its program says.

Where the wiring of a cut is the same, the meaning is, and nothing is run. Else both programs run in float64 on the target's incoming
values; where they part at a cut, the first exact value of one that the other never makes names the call. Once a call is named, its
result is handed to the reference's program too, so that a second fault behind it still shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.bodies import Body
from layerdiff.judge.constants import as_mask, is_masked
from layerdiff.judge.incoming import Incoming
from layerdiff.judge.local import Local
from layerdiff.judge.noise import Rounding, is_product
from layerdiff.judge.padding import without_padding
from layerdiff.judge.running import Decision, Programs, Ran
from layerdiff.judge.tables import Verdict
from layerdiff.judge.wiring import Wiring
from layerdiff.measure.rows import RowDifference, row_difference
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
NOTHING: Final = 1e-9
"""Meaning up to here is float64's own rounding. Harmless pairs stay at 3e-15; the smallest fault tried is 2.9e-5."""
BELOW_ROUNDING: Final = 2.0**-20
"""Meaning up to here is said and not convicted, unless a scalar or a constant that differs is its cause."""
RATIO: Final = 4.0
"""How many times its predicted spread a recorded value may lie from its own program."""
_FLIP: Final = 4.0
_MOST_FAULTS: Final = 8


@dataclass
class BodyVerdict:
    """What is said of one body."""

    findings: list[Local] = field(default_factory=list)
    opaque: list[tuple[int, str]] = field(default_factory=list)
    """The target's calls that could not be run, and why."""
    compared: int = 0
    """Cuts."""
    same: int = 0
    """Cuts of the same wiring: nothing was run for them."""


@dataclass(frozen=True)
class Setting:
    """What judging a body needs besides the body."""

    runs: Both[Recorded]
    contents: Callable[[Recorded, int], Array]
    expected_dtype: Mapping[str, str]
    """The dtype map: the target's dtype for each of the reference's, by majority."""
    rounding: Rounding
    padded: NDArray[np.bool_] | None = None
    """Shape (batch, keys): the positions of this step that are padding."""


def judge_body(setting: Setting, body: Body, incoming: Incoming, wiring: Wiring, aligned: Mapping[int, int]) -> BodyVerdict:
    """The local findings of one body. Raises CannotReplay where what is needed was not recorded."""
    said = BodyVerdict()
    cuts = _cuts(body)
    differing = [cut for cut in cuts if not wiring.same(*cut)]
    said.compared, said.same = len(cuts), len(cuts) - len(differing)
    coarse = _coarser_calls(setting, body, aligned)
    if not differing and not coarse:
        return said
    programs = Programs(setting.runs, body, incoming, aligned, setting.contents)
    theirs = programs.run("target")
    said.opaque = theirs.opaque
    ours, kept = _with_decisions(setting, programs, theirs, said)
    opaque = {call for call, _ in (*theirs.opaque, *ours.opaque)}
    told = [cut for cut in differing if not opaque or not (opaque & (_cone(programs, "target", cut) | _cone(programs, "reference", cut)))]
    faults, ours = _faults(setting, programs, wiring, theirs, ours, kept, told, said)
    if not faults:
        hidden = {cut for cut in differing if cut not in told}
        _precision(setting, programs, theirs, ours, kept, coarse, cuts, hidden, said)
    return said


def _cuts(body: Body) -> list[tuple[tuple[int, int], str]]:
    found = [(pair, position) for pair, interface in body.children.items() for position, _ in interface.inputs]
    return found + [(body.calls, position) for position, _ in body.interface.outputs]


def _with_decisions(setting: Setting, programs: Programs, theirs: Ran, said: BodyVerdict) -> tuple[Ran, frozenset[int]]:
    """The reference's program, following the target's decisions where they hang by a rounding; and the calls where it keeps its own."""
    ours = programs.run("reference")
    if not ours.decisions:
        return ours, frozenset()
    noisy = programs.run("reference", noise=setting.rounding.as_expected)
    kept = set()
    for decision in ours.decisions:
        spread = _spread(ours.operands.get(decision.operation.call), noisy.operands.get(decision.operation.call))
        unit = setting.rounding.unit_of_operands(decision.operation)
        allowed = _FLIP * spread + 2 * unit * decision.scale
        wrong = decision.margin > allowed
        if np.any(wrong):
            kept.add(decision.operation.call)
        said.findings.append(_flip(programs, decision, allowed, bool(np.any(wrong))))
    said.findings = [local for local in said.findings if local.notice]
    if kept:
        ours = programs.run("reference", kept=frozenset(kept))
    return ours, frozenset(kept)


def _flip(programs: Programs, decision: Decision, allowed: Array, wrong: bool) -> Local:
    call = decision.operation.call
    margin = decision.margin
    with np.errstate(all="ignore"):
        ratio = np.where(margin > 0, margin / np.where(allowed > 0, allowed, np.nan), 0.0)
    worst = float(np.nanmax(ratio)) if ratio.size else 0.0
    calls = (call, programs.aligned.get(call, -1))
    if not np.any(margin > 0):
        statement = f"{decision.operation.name}: values that tie were ordered otherwise"
        return Local(calls, "out", Verdict.FLIP, statement, 0.0, 1.0, "exact margin 0", kind="tie-order", notice=True)
    statement = f"{decision.operation.name} decides otherwise by a margin of {worst:.2g} of what rounding can make"
    return Local(calls, "out", Verdict.FLIP, statement, worst, 1.0, "margin over 4 spreads + 2u", kind="flip", notice=not wrong)


def _spread(exact: Any, noisy: Any) -> float:
    """Root mean square of what noise made of the float operands of a call."""
    if exact is None or noisy is None:
        return 0.0
    found = 0.0
    for one, other in zip(exact.args, noisy.args, strict=False):
        if isinstance(one, np.ndarray) and one.dtype.kind == "f" and isinstance(other, np.ndarray) and one.shape == other.shape:
            off = (one - other)[np.isfinite(one) & np.isfinite(other)]
            found = max(found, float(np.sqrt(np.mean(np.square(off)))) if off.size else 0.0)
    return found


# meaning


def _faults(
    setting: Setting,
    programs: Programs,
    wiring: Wiring,
    theirs: Ran,
    ours: Ran,
    kept: frozenset[int],
    differing: list[tuple[tuple[int, int], str]],
    said: BodyVerdict,
) -> tuple[bool, Ran]:
    """Finds faults one after another, each time with those found before taken over; returns whether there were any."""
    taken: dict[int, Mapping[str, Array]] = {}
    named: set[tuple[int, int]] = set()
    watched: Ran | None = None
    for _ in range(_MOST_FAULTS):
        worst = _worst_cut(ours, theirs, differing, setting.padded)
        if worst is None:
            break
        cut, difference = worst
        if watched is None:
            watched = programs.run("target", watch=True)
        ours = programs.run("reference", watch=True, kept=kept, taken=taken)
        decided = _decided_otherwise(setting, programs, ours, theirs, cut)
        if decided is not None:
            said.findings.append(decided)
            differing = [other for other in differing if other != cut]
            continue
        place = _name_call(programs, wiring, ours, watched, cut)
        calls, value, evidence = place if place is not None else (cut[0], cut[1], {})
        if calls in named:
            break
        named.add(calls)
        said.findings.append(_meaning(calls, value, cut, difference, evidence, broken=_loses_numbers(ours, theirs, cut)))
        if calls[0] < 0 or calls[1] not in watched.results or setting.runs.reference.is_module(calls[0]):
            break  # nothing to take over: what lies behind is not told apart
        taken[calls[0]] = watched.results[calls[1]]
        ours = programs.run("reference", kept=kept, taken=taken)
    return bool(named), ours


def _decided_otherwise(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cut: tuple[tuple[int, int], str]) -> Local | None:
    """Whether whole numbers at a cut are indices into what the reference chose from, and the target's choice is as good up to rounding.

    However the target came by its own: by a sort, by a top-k, from the other end.
    """
    (r, t), position = cut
    one, other = ours.cuts[r, position], theirs.cuts[t, position]
    if one.dtype.kind not in "iu" or not one.ndim or not one.size or min(one.min(), other.min()) < 0:
        return None
    for call, args in ours.operands.items():
        operand = args.args[0] if args.args and isinstance(args.args[0], np.ndarray) else None
        if operand is None or operand.dtype.kind != "f" or operand.shape[:-1] != one.shape[:-1]:
            continue
        if max(one.max(), other.max()) >= operand.shape[-1]:
            continue
        values = (
            np.take_along_axis(operand, one.astype(np.int64), -1),
            np.take_along_axis(operand, other.reshape(one.shape).astype(np.int64), -1),
        )
        operation = programs.runs.reference.operation(call)
        decision = Decision(operation, {}, np.abs(values[0] - values[1]), np.maximum(np.abs(values[0]), np.abs(values[1])))
        noisy = programs.run("reference", noise=setting.rounding.as_expected)
        allowed = _FLIP * _spread(args, noisy.operands.get(call)) + 2 * setting.rounding.unit_of_operands(operation) * decision.scale
        if not np.any(decision.margin > allowed):
            return _flip(programs, decision, allowed, wrong=False)
    return None


def _worst_cut(
    ours: Ran, theirs: Ran, cuts: list[tuple[tuple[int, int], str]], padded: NDArray[np.bool_] | None
) -> tuple[tuple[tuple[int, int], str], RowDifference] | None:
    found: tuple[tuple[tuple[int, int], str], RowDifference] | None = None
    for cut in cuts:
        (r, t), position = cut
        one, other = ours.cuts.get((r, position)), theirs.cuts.get((t, position))
        if one is None or other is None:
            continue
        other = as_mask(other.reshape(one.shape), one)
        difference = row_difference(_unmasked(without_padding(one, other, padded)), _unmasked(other))
        if difference.figure > NOTHING and (found is None or difference.figure > found[1].figure):
            found = cut, difference
    return found


def _unmasked(x: Array) -> Array:
    """The lowest number of any dtype as -inf: in an additive mask they mean one thing."""
    return np.where(is_masked(x), -np.inf, x) if x.dtype.kind == "f" else x


def _loses_numbers(ours: Ran, theirs: Ran, cut: tuple[tuple[int, int], str]) -> bool:
    """Whether the target's program has NaN or Inf where the reference's is finite."""
    (r, t), position = cut
    one, other = ours.cuts[r, position], theirs.cuts[t, position]
    return one.dtype.kind == "f" and bool(np.any(np.isfinite(one) & ~is_masked(one) & ~np.isfinite(other.reshape(one.shape))))


def _meaning(
    calls: tuple[int, int],
    value: str,
    cut: tuple[tuple[int, int], str],
    difference: RowDifference,
    evidence: dict[str, Any],
    *,
    broken: bool,
) -> Local:
    figure = difference.figure
    static = evidence.get("static")
    small = figure <= BELOW_ROUNDING and static is None and "constant" not in evidence
    shown = {
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
            evidence=shown,
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
            evidence=shown,
        )
    return Local(
        calls, value, Verdict.UNEXPLAINED, statement, figure, NOTHING, "meaning: both programs on the target's values", evidence=shown
    )


def _name_call(
    programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, cut: tuple[tuple[int, int], str]
) -> tuple[tuple[int, int], str, dict[str, Any]] | None:
    """The call where the programs part on their way to a cut: calls, position, evidence."""
    back = {t: r for r, t in programs.aligned.items()}
    cones = Both(_cone(programs, "reference", cut), _cone(programs, "target", cut))
    first = _first_without_equal(theirs, ours, cones.target)
    other = _first_without_equal(ours, theirs, cones.reference)
    changed = _first_changed(programs, wiring, ours, theirs, cones.target)
    if changed is not None and (first is None or changed[1] <= first[0]):
        return changed, _first_position(theirs, ours, changed), _static_difference(programs, wiring, *changed)
    if first is not None:
        call, position = first
        partner = back.get(call, -1)
        if other is not None and other[0] not in programs.aligned and partner >= 0 and _feeds(programs.runs.reference, other[0], partner):
            static = f"the target lacks {_shown(programs.runs.reference, other[0])}"
            return (other[0], -1), other[1], {"static": static, "next": programs.runs.target.operation(call).name}
        return (partner, call), position, _static_difference(programs, wiring, partner, call)
    if other is not None:
        static = f"the target never makes what {_shown(programs.runs.reference, other[0])} makes"
        return (other[0], programs.aligned.get(other[0], -1)), other[1], {"static": static}
    return None


def _cone(programs: Programs, side: str, cut: tuple[tuple[int, int], str]) -> set[int]:
    """The operator calls of the body whose results reach a cut, by the memory that they share."""
    run: Recorded = getattr(programs.runs, side)
    body, (pair, position) = programs.body, cut
    here = 0 if side == "reference" else 1
    crossing = body.interface.outputs if pair == body.calls else body.children[pair].inputs
    needed = {run.place(values[here]).memory[0] for at, values in crossing if at == position}
    items: tuple[int, ...] = getattr(body.items, side)
    stop = items.index(pair[here]) if pair != body.calls else len(items)
    found: set[int] = set()
    for item in reversed(items[:stop]):
        if run.is_module(item):
            continue
        operation = run.operation(item)
        made = {run.place(value).memory[0] for value in operation.outputs.values()}
        made |= {run.place(operation.inputs[at]).memory[0] for at in operation.writes if at in operation.inputs}
        if made & needed:
            found.add(item)
            needed |= {run.place(value).memory[0] for value in operation.inputs.values()}
    return found


def _first_changed(programs: Programs, wiring: Wiring, ours: Ran, theirs: Ran, cone: set[int]) -> tuple[int, int] | None:
    """The first pair of aligned calls that are given other scalars, and make something else."""
    for reference, target in sorted(programs.aligned.items(), key=lambda pair: pair[1]):
        if target not in cone or wiring.scalars.reference.get(reference) == wiring.scalars.target.get(target):
            continue
        one, other = ours.results.get(reference), theirs.results.get(target)
        if one is None or other is None:
            continue
        for position, made in one.items():
            there = other.get(position)
            if there is not None and (there.shape != made.shape or row_difference(_unmasked(made), _unmasked(there)).figure > NOTHING):
                return reference, target
    return None


def _first_position(theirs: Ran, ours: Ran, pair: tuple[int, int]) -> str:
    one, other = ours.results[pair[0]], theirs.results[pair[1]]
    return next((position for position in other if position in one and not np.array_equal(one[position], other[position])), "out")


def _feeds(run: Recorded, call: int, reader: int) -> bool:
    """Whether a call reads the results of another, views and casts in between left out."""
    made = {run.place(value).memory[0] for value in run.operation(call).outputs.values()}
    return any(run.place(value).memory[0] in made for value in run.operation(reader).inputs.values())


def _static_difference(programs: Programs, wiring: Wiring, reference: int, target: int) -> dict[str, Any]:
    """What two aligned calls differ in besides their values."""
    runs = programs.runs
    if reference < 0:
        return {"static": f"the target adds {_shown(runs.target, target)}"}
    found: dict[str, Any] = {}
    ours, theirs = wiring.scalars.reference.get(reference), wiring.scalars.target.get(target)
    names = runs.reference.operation(reference).name, runs.target.operation(target).name
    if ours != theirs or names[0] != names[1]:
        found["static"] = f"{_shown(runs.target, target)}, reference {_shown(runs.reference, reference)}"
    differing = _other_constant(programs, reference, target)
    if differing is not None:
        found["constant"] = differing
    return found


def _other_constant(programs: Programs, reference: int, target: int) -> str | None:
    runs = programs.runs
    ours, theirs = runs.reference.operation(reference).inputs, runs.target.operation(target).inputs
    for position, value in theirs.items():
        there, here = runs.target.weight(value), runs.reference.weight(ours[position]) if position in ours else None
        if (
            there is not None
            and here is not None
            and programs.incoming.number("target", value) != programs.incoming.number("reference", ours[position])
        ):
            return here[0] if here[0] == there[0] else f"{there[0]} in place of {here[0]}"
    return None


def _shown(run: Recorded, call: int) -> str:
    """An operator with its scalars: `add(1e-05)`."""
    operation = run.operation(call)
    name = operation.name.removeprefix("aten.").rpartition(".")[0]
    picture = operation.picture if isinstance(operation.picture, Mapping) else {}
    plain = [_text(item) for item in picture.get("args", [])] + [f"{k}={_text(v)}" for k, v in picture.get("kwargs", {}).items()]
    scalars = [text for text in plain if text and not text.endswith("=")]
    return f"{name}({', '.join(scalars)})" if scalars else name


def _text(thing: Any) -> str:
    if isinstance(thing, Mapping):
        return "" if "tensor" in thing else str(next(iter(thing.values()), ""))
    if isinstance(thing, list):
        return "" if any(isinstance(item, Mapping) for item in thing) else json.dumps(thing)
    return "" if thing is None else str(thing)


def _first_without_equal(ran: Ran, other: Ran, cone: set[int]) -> tuple[int, str] | None:
    """The first result of one program that the other never makes, the value as a whole and in its order."""
    known: dict[int, list[tuple[float, float]]] = {}
    for results in other.results.values():
        for made in results.values():
            known.setdefault(made.size, []).append(_signature(made))
    for call, results in ran.results.items():
        if call not in cone:
            continue
        for position, made in results.items():
            if not made.size:
                continue
            size, projection = _signature(made)
            near = (
                abs(projection - p) <= NOTHING * max(size, s) and abs(size - s) <= NOTHING * max(size, s)
                for s, p in known.get(made.size, ())
            )
            if not any(near):
                return call, position
    return None


def _signature(x: Array) -> tuple[float, float]:
    """Norm, and a projection that knows positions: what tells a swapped head from the right one."""
    flat = np.where(np.isfinite(x), x, 12345.0).reshape(-1).astype(np.float64)
    return float(np.sqrt(np.dot(flat, flat))), float(np.dot(flat, _weights(flat.size)))


_known_weights: dict[int, Array] = {}


def _weights(count: int) -> Array:
    found = _known_weights.get(count)
    if found is None:
        if len(_known_weights) > 64:
            _known_weights.clear()
        found = _known_weights[count] = np.random.default_rng(0).standard_normal(count)
    return found


# precision


def _coarser_calls(setting: Setting, body: Body, aligned: Mapping[int, int]) -> list[int]:
    """The target's calls at which values become coarser than the dtype map says.

    A cast back to the dtype that came in, or that a matrix product gave, and casts of what a matrix product consumes where the
    run does that to all of them (autocast), are the way that the run declares.
    """
    back = {t: r for r, t in aligned.items()}
    run = setting.runs.target
    children = {t for _, t in body.children}
    given = {run.file.dtype_name(values[1]) for _, values in body.interface.inputs}
    for pair, interface in body.children.items():
        given |= {run.file.dtype_name(values[1]) for _, values in interface.outputs} if pair else set()
    products = {
        value
        for call in body.items.target
        if call not in children and is_product(run.operation(call).name)
        for value in _through_views(run, body, run.operation(call).inputs.values())
    }
    for call in body.items.target:
        if call not in children and is_product(run.operation(call).name):
            given |= {run.file.dtype_name(value) for value in run.operation(call).outputs.values()}
    found = []
    for call in body.items.target:
        if call in children:
            continue
        operation = run.operation(call)
        if run.is_view(operation) or not operation.outputs or not operation.inputs:
            continue
        value = next(iter(operation.outputs.values()))
        dtype = run.file.dtype_name(value)
        unit = _unit(dtype)
        units = [u for given_value in operation.inputs.values() if (u := _unit(run.file.dtype_name(given_value))) is not None]
        if unit is None or not units or unit <= max(units) or dtype in given:
            continue
        partner = back.get(call)
        name = None
        if partner is not None and (there := next(iter(setting.runs.reference.operation(partner).outputs.values()), None)) is not None:
            name = setting.runs.reference.file.dtype_name(there)
            limit = _unit(setting.expected_dtype.get(name, name))
        else:
            limit = max((_unit(expected) or 0.0 for expected in setting.expected_dtype.values()), default=0.0)
        if limit is None or unit <= limit or (run.place(value).memory in products and dtype == setting.rounding.product_dtype):
            continue
        found.append(call)
    return found


def _through_views(run: Recorded, body: Body, values: Iterable[int]) -> set[tuple[int, str]]:
    return {run.place(value).memory for value in values}


def _unit(name: str) -> float | None:
    known = dtype_named(name)
    return known.unit_roundoff if known is not None and known.kind == "float" else None


def _precision(
    setting: Setting,
    programs: Programs,
    theirs: Ran,
    ours: Ran,
    kept: frozenset[int],
    coarse: list[int],
    cuts: list[tuple[tuple[int, int], str]],
    hidden: set[tuple[tuple[int, int], str]],
    said: BodyVerdict,
) -> None:
    """Are values that are kept coarser than the run keeps others the reason that a recorded value lies off its program?"""
    noise = setting.rounding.as_expected if coarse else setting.rounding.beside(programs.body, programs.aligned)
    noisy = programs.run("reference", noise=noise, kept=kept)
    worst, worst_cut = 0.0, None
    for (r, t), position in cuts:
        exact, other = ours.cuts.get((r, position)), noisy.cuts.get((r, position))
        right = theirs.cuts.get((t, position)) if ((r, t), position) not in hidden else exact  # a call that cannot run hides what it does
        recorded = _recorded_cut(setting, programs.body, (r, t), position)
        if exact is None or other is None or right is None or recorded is None or recorded.shape != right.shape:
            continue
        if any(one.dtype.kind != "f" for one in (exact, right, recorded)) or exact.shape != recorded.shape:
            continue
        recorded = without_padding(recorded, right, setting.padded)
        unit = setting.rounding.unit_at(programs.body, (r, t), position, expected=bool(coarse))
        ratio = _ratio(recorded - right, other - exact, unit * np.abs(exact))
        if worst_cut is None or ratio > worst:
            worst, worst_cut = ratio, ((r, t), position)
    if worst <= RATIO or worst_cut is None:
        return
    if not coarse:
        said.findings.append(_arithmetic(setting, programs, theirs, worst, worst_cut, kept))
        return
    call = coarse[0]
    value = next(iter(setting.runs.target.operation(call).outputs.values()))
    dtype = setting.runs.target.file.dtype_name(value)
    back = {t: r for r, t in programs.aligned.items()}
    statement = f"computed in {dtype}, coarser than the run keeps such values; {worst:.3g} times the error that they make"
    said.findings.append(
        Local(
            (back.get(call, -1), call),
            "out",
            Verdict.PRECISION,
            statement,
            worst,
            RATIO,
            "arithmetic: recorded over predicted spread",
            cause="lower-precision",
            kind="declared",
            evidence={"dtype": dtype, "calls": len(coarse)},
        )
    )


def _arithmetic(
    setting: Setting, programs: Programs, theirs: Ran, worst: float, cut: tuple[tuple[int, int], str], kept: frozenset[int]
) -> Local:
    """A recorded value lies off its own program: by the rounding of the target's own calls, or by nothing that is known."""
    (_, t), position = cut
    noisy = programs.run("target", noise=setting.rounding.as_recorded)
    recorded, right = _recorded_cut(setting, programs.body, cut[0], position), theirs.cuts[t, position]
    value = _value_at(programs.body, cut[0], position)
    own = _unit(setting.runs.target.file.dtype_name(value)) or 0.0
    assert recorded is not None
    ratio = _ratio(recorded - right, noisy.cuts[t, position] - right, own * np.abs(right))
    evidence = {"cut": position, "against_own_spread": ratio}
    rule = "arithmetic: recorded over predicted spread"
    calls = _maker(programs, cut)
    if ratio <= RATIO:
        statement = f"{worst:.3g} times the error that the reference's way makes; the target rounds more often on the way"
        return Local(calls, "out", Verdict.PRECISION, statement, worst, RATIO, rule, "lower-precision", "accumulator", evidence)
    statement = f"lies {ratio:.3g} times further from what its program says than its rounding explains"
    return Local(calls, "out", Verdict.UNEXPLAINED, statement, worst, RATIO, rule, evidence=evidence)


def _maker(programs: Programs, cut: tuple[tuple[int, int], str]) -> tuple[int, int]:
    """The target's call of the body that makes the value of a cut; the pair of the cut where none does."""
    cone = _cone(programs, "target", cut)
    back = {t: r for r, t in programs.aligned.items()}
    for call in sorted(cone, reverse=True):
        if not programs.runs.target.is_view(programs.runs.target.operation(call)):
            return back.get(call, -1), call
    return cut[0]


def _value_at(body: Body, pair: tuple[int, int], position: str) -> int:
    values = body.interface.outputs if pair == body.calls else body.children[pair].inputs
    return next(values[1] for at, values in values if at == position)


def _recorded_cut(setting: Setting, body: Body, pair: tuple[int, int], position: str) -> Array | None:
    values = body.interface.outputs if pair == body.calls else body.children[pair].inputs
    value = next((values[1] for at, values in values if at == position), None)
    if value is None or not setting.runs.target.file.has_bytes(value):
        return None
    return setting.contents(setting.runs.target, value)


def _ratio(error: Array, spread: Array, rounding: Array) -> float:
    """Root mean square of the error over that of its predicted spread, or their maxima, whichever is larger."""
    finite = np.isfinite(error) & np.isfinite(spread)
    if not finite.any():
        return 0.0
    error, spread, rounding = np.abs(error[finite]), np.abs(spread[finite]), rounding[finite]
    predicted = np.sqrt(np.mean(np.square(spread))) + np.sqrt(np.mean(np.square(rounding))) * 0.58
    top = float(spread.max()) + float(rounding.max())
    if predicted == 0.0:
        return float("inf") if error.any() else 0.0
    return max(float(np.sqrt(np.mean(np.square(error))) / predicted), float(error.max()) / top)
