"""Precision and arithmetic of one body whose programs mean the same: does the target's recorded value lie where its program says?

The unit is what rounding makes of the reference's program at the dtypes that the run declares, not the target's own: a target
that keeps its values coarser than that would excuse itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import rounding_of
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.reach import cone
from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.codes import Codes
from layerdiff.judge.programs.padding import without_padding
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import COARSE_RATIO, RATIO, BodyVerdict, Cut, Setting
from layerdiff.judge.tables import BEYOND, Verdict
from layerdiff.replay.recorded import Recorded
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
_QUANTISED: Final = ("quant", "int8", "int4")
_COARSEST: Final = 0.2
"""Of how far measures vary, that rounding them to codes may be off: twice what 4 bits make, a scale for each row."""
_STEPS: Final = 127
"""From 0 to the largest number of a tensor that is kept in 8 bits, or, of activations on x86, in 7 with a zero point."""


def find_precision(
    setting: Setting,
    programs: Programs,
    theirs: Ran,
    ours: Ran,
    kept: frozenset[int],
    coarse: list[int],
    cuts: list[Cut],
    hidden: set[Cut],
    said: BodyVerdict,
    *,
    folded: bool = False,
) -> None:
    """Are values that are kept coarser than the run keeps others the reason that a recorded value lies off its program?

    `folded`: the reference's program of this body is another function, so that the target's own is what rounding is drawn for.
    """
    if folded:
        noise = setting.rounding.declared(programs.aligned) if coarse else setting.rounding.as_recorded
    else:
        noise = setting.rounding.as_expected if coarse else setting.rounding.beside(programs.body, programs.aligned)
    noisy = programs.run("target" if folded else "reference", noise=noise, kept=kept)
    worst, worst_cut = _worst(setting, programs, theirs, (ours, noisy), cuts, hidden, coarse=bool(coarse), folded=folded)
    allowed = COARSE_RATIO if coarse else RATIO
    if worst <= allowed or worst_cut is None:
        return
    if worst_cut in hidden:
        said.findings.append(_unseen(setting, programs, theirs, ours, worst, worst_cut))
        return
    if not coarse:
        said.findings.append(_arithmetic(setting, programs, theirs, worst, worst_cut, kept))
        return
    call = coarse[0]
    if call in programs.codes.target.roundings:
        wrong = _beyond_codes(setting, programs, (ours, noisy), cuts, hidden)
        if wrong is not None:
            said.findings.append(wrong)
            return
    value = next(iter(setting.runs.target.operation(call).outputs.values()))
    codes = programs.codes.target
    dtype = codes.kept_as(setting.runs.target, call) if call in codes.roundings else setting.runs.target.file.dtype_name(value)
    known = dtype_named(dtype)
    quantised = call in codes.roundings or (known is not None and known.itemsize == 1)
    way = f"rounded to {dtype}" if call in codes.roundings else f"computed in {dtype}"
    statement = f"{way}, coarser than the run keeps such values; {worst:.3g} times the error that they make"
    back = {t: r for r, t in programs.aligned.items()}
    cause, kind = ("quantised-activation", "quantised") if quantised else ("lower-precision", "declared")
    evidence, calls = {"dtype": dtype, "calls": len(coarse)}, (back.get(call, -1), call)
    said.findings.append(Local(calls, "out", Verdict.PRECISION, statement, worst, allowed, BEYOND, cause, kind, evidence))


def _beyond_codes(setting: Setting, programs: Programs, drawn_for: tuple[Ran, Ran], cuts: list[Cut], hidden: set[Cut]) -> Local | None:
    """A rounding that is coarser than codes are; or a recorded value that is not what the target's program makes of the recorded codes."""
    roundings, back = programs.codes.target.roundings, {t: r for r, t in programs.aligned.items()}
    as_kept = programs.run("target", codes=Codes(), watch=roundings)
    for call in sorted(roundings & as_kept.operands.keys()):
        given, made = as_kept.operands[call].args[0], as_kept.results[call]["out"]
        off = float(np.sqrt(np.mean(np.square(made - given)))) / max(float(np.std(given)), np.finfo(np.float64).tiny) if given.size else 0.0
        if off > _COARSEST:
            statement = f"rounded to whole numbers, off by {off:.2g} of how far what is rounded varies: 4 bits make half of {_COARSEST}"
            return Local((back.get(call, -1), call), "out", Verdict.UNEXPLAINED, statement, off, _COARSEST, BEYOND)
    off, there = _worst(setting, programs, as_kept, drawn_for, cuts, hidden, coarse=True, folded=False)
    if off <= RATIO or there is None:
        return None
    statement = f"lies {off:.3g} times further from what its program makes of the recorded codes than rounding explains"
    return Local(_maker(programs, there), "out", Verdict.UNEXPLAINED, statement, off, RATIO, BEYOND)


def _worst(
    setting: Setting,
    programs: Programs,
    theirs: Ran,
    drawn_for: tuple[Ran, Ran],
    cuts: list[Cut],
    hidden: set[Cut],
    *,
    coarse: bool,
    folded: bool,
) -> tuple[float, Cut | None]:
    """How far a recorded value lies at most from what the target's program makes there, in what rounding makes of a program, and where.

    `drawn_for`: the program for which rounding is drawn, exact and with it.
    """
    worst, worst_cut = 0.0, None
    for (r, t), position in cuts:
        at = (t if folded else r), position
        exact, other = (ran.cuts.get(at) for ran in drawn_for)
        right = theirs.cuts.get((t, position)) if ((r, t), position) not in hidden else exact  # a call that cannot run hides what it does
        recorded = _recorded_cut(setting, programs.body, (r, t), position)
        if exact is None or other is None or right is None or recorded is None or recorded.shape != right.shape:
            continue
        if any(one.dtype.kind != "f" for one in (exact, right, recorded)):
            continue
        forms = programs.body.forms
        beside, drawn = forms.beside(exact, recorded), forms.beside(other, right)
        if beside is None or drawn is None:
            continue
        (exact, recorded), (other, right) = beside, drawn
        recorded = without_padding(recorded, right, setting.padded)
        other = without_padding(other, exact, setting.padded)  # where all is hidden, a rounding of what hides it makes anything
        dtype = setting.rounding.dtype_at(programs.body, (r, t), position, expected=coarse)
        with np.errstate(invalid="ignore"):  # of what is hidden by -inf on both sides there is no difference
            ratio = ratio_to_spread(recorded - right, other - exact, rounding_of(dtype, exact))
        if worst_cut is None or ratio > worst:
            worst, worst_cut = ratio, ((r, t), position)
    return worst, worst_cut


def coarser_calls(setting: Setting, body: Body, aligned: Mapping[int, int]) -> list[int]:
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
        if call not in children and run.operation(call).is_product
        for value in _through_views(run, body, run.operation(call).inputs.values())
    }
    for call in body.items.target:
        if call not in children and run.operation(call).is_product:
            given |= {run.file.dtype_name(value) for value in run.operation(call).outputs.values()} & {setting.rounding.product_dtype}
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
        if partner is not None and (there := next(iter(setting.runs.reference.operation(partner).outputs.values()), None)) is not None:
            name = setting.runs.reference.file.dtype_name(there)
            limit = max((_unit(one) or 0.0 for one in (setting.expected_dtype.get(name, name), name)), default=0.0)
        else:
            limit = max((_unit(one) or 0.0 for pair in setting.expected_dtype.items() for one in pair), default=0.0)
        if not limit or unit <= limit or (run.place(value).memory in products and dtype == setting.rounding.product_dtype):
            continue
        found.append(call)
    return found


def _through_views(run: Recorded, body: Body, values: Iterable[int]) -> set[tuple[int, str]]:
    return {run.place(value).memory for value in values}


def _unit(name: str) -> float | None:
    known = dtype_named(name)
    return known.unit_roundoff if known is not None and known.kind == "float" else None


def _arithmetic(setting: Setting, programs: Programs, theirs: Ran, worst: float, cut: Cut, kept: frozenset[int]) -> Local:
    """A recorded value lies off its own program: by the rounding of the target's own calls, or by nothing that is known."""
    (_, t), position = cut
    noisy = programs.run("target", noise=setting.rounding.as_recorded)
    recorded, right = _recorded_cut(setting, programs.body, cut[0], position), theirs.cuts[t, position]
    value = _value_at(programs.body, cut[0], position)
    own = rounding_of(setting.runs.target.file.dtype_name(value), right)
    assert recorded is not None
    recorded, drawn = (without_padding(one, right, setting.padded) for one in (recorded, noisy.cuts[t, position]))
    with np.errstate(invalid="ignore"):
        ratio = ratio_to_spread(recorded - right, drawn - right, own)
    evidence = {"cut": position, "against_own_spread": ratio}
    calls = _maker(programs, cut)
    if ratio <= RATIO:
        statement = f"{worst:.3g} times the error that the reference's way makes; the target rounds more often on the way"
        return Local(calls, "out", Verdict.PRECISION, statement, worst, RATIO, BEYOND, "lower-precision", "accumulator", evidence)
    statement = f"lies {ratio:.3g} times further from what its program says than its rounding explains"
    return Local(calls, "out", Verdict.UNEXPLAINED, statement, worst, RATIO, BEYOND, evidence=evidence)


def _unseen(setting: Setting, programs: Programs, theirs: Ran, ours: Ran, worst: float, cut: Cut) -> Local:
    """A recorded value lies off the reference's program behind a call that cannot be run: a kernel of 8 bits may be as far off as these."""
    (r, _), position = cut
    inside = cone(programs, "target", cut)
    call = next((call for call, _ in theirs.opaque if call in inside), -1)
    if call < 0:
        return _arithmetic(setting, programs, theirs, worst, cut, frozenset())
    name = setting.runs.target.operation(call).name
    recorded, exact = _recorded_cut(setting, programs.body, cut[0], position), ours.cuts[r, position]
    assert recorded is not None
    beside = programs.body.forms.beside(exact, recorded) or (exact, recorded)
    with np.errstate(invalid="ignore"):
        off = Size.of(beside[1] - beside[0]).rms / max(Size.of(beside[0]).rms, np.finfo(np.float64).tiny)
    calls = {t: r for r, t in programs.aligned.items()}.get(call, -1), call
    allowed = COARSE_RATIO * _rounded_to_eight_bits(setting, call, cone(programs, "reference", cut))
    if off <= allowed and any(word in name for word in _QUANTISED):
        statement = f"{name} rounds what it is given: off by {off:.2g} of what the reference makes, as 8 bits are (it cannot be run again)"
        return Local(calls, "out", Verdict.PRECISION, statement, off, allowed, BEYOND, "quantised-kernel", "quantised")
    statement = f"{worst:.3g} times the error that the reference's way makes, and {name} cannot be run again: why is not known"
    return Local(calls, "out", Verdict.UNEXPLAINED, statement, worst, RATIO, BEYOND)


def _rounded_to_eight_bits(setting: Setting, call: int, ours: Iterable[int]) -> float:
    """How far off a product is, in its rms, where what `call` is given and the reference's weights are rounded to even steps."""
    reference, target = setting.runs
    given = [(target, value) for value in target.operation(call).inputs.values()]
    inputs = {value for one in ours for value in reference.operation(one).inputs.values()}
    given += [
        (reference, value) for value in sorted(inputs) if reference.weight(value) is not None and len(reference.file.shape(value)) > 1
    ]
    off = 0.0
    for run, value in given:
        if _unit(run.file.dtype_name(value)) is not None and run.file.has_bytes(value):
            size = Size.of(setting.contents(run, value))
            off += (2 * size.largest / _STEPS) ** 2 / 12 / max(size.rms**2, np.finfo(np.float64).tiny)
    return float(np.sqrt(off))


def _maker(programs: Programs, cut: Cut) -> tuple[int, int]:
    """The target's call of the body that makes the value of a cut; the pair of the cut where none does."""
    inside = cone(programs, "target", cut)
    back = {t: r for r, t in programs.aligned.items()}
    for call in sorted(inside, reverse=True):
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


class Size(NamedTuple):
    """How large finite numbers are."""

    rms: float
    largest: float

    @classmethod
    def of(cls, x: Array) -> Size:
        """Of one array."""
        return cls(float(np.sqrt(np.mean(np.square(x)))), float(np.max(np.abs(x)))) if x.size else cls(0.0, 0.0)

    @classmethod
    def together(cls, sizes: Iterable[Size]) -> Size:
        """Of several arrays of one shape."""
        rms, largest = zip(*sizes, strict=True)
        return cls(float(np.sqrt(np.mean(np.square(rms)))), max(largest))


def ratio_to_spread(error: Array, spread: Array, rounding: Array) -> float:
    """Root mean square of the error over that of its predicted spread, or their maxima, whichever is larger."""
    finite = np.isfinite(error) & np.isfinite(spread)
    return ratio_of(*(Size.of(x[finite]) for x in (error, spread, rounding)))


def ratio_of(error: Size, spread: Size, rounding: Size) -> float:
    """The same, by how large they are."""
    predicted = spread.rms + 0.58 * rounding.rms
    if predicted == 0.0:
        return float("inf") if error.largest else 0.0
    return max(error.rms / predicted, error.largest / (spread.largest + rounding.largest))
