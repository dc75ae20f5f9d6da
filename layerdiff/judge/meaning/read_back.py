"""`as_rounded`: measures that were rounded to codes, held against what is made of the codes again.

Exact arithmetic gives back what was rounded (`judge/programs/codes.py`). Where it does not, another scale is read with the codes than
that with which they were made, or none, or another head's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.meaning.changes import instead
from layerdiff.judge.meaning.finding import found_of_meaning
from layerdiff.judge.meaning.parting import figure_at, worst_cut
from layerdiff.judge.meaning.passed_over import NEARER, Over
from layerdiff.judge.programs.running import Programs, Ran, Redone
from layerdiff.judge.programs.setting import BodyVerdict, Cut, Setting
from layerdiff.judge.tables import Verdict
from layerdiff.replay.once import operands_by_position
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
_SCALES: Final = ("mul", "div", "add", "sub", "_to_copy", "clamp", "clone", "round")
"""Operators that make codes of measures, and measures of codes, element by element."""
_SMALL: Final = 1e-6
"""Of the largest: what lies below says nothing of a ratio."""
_SAME: Final = 1e-6


@dataclass(frozen=True)
class _ReadBack:
    """Another measure than was rounded: at which call of the target's, what was rounded, and what is said."""

    call: int
    measures: Array
    statement: str
    ratios: tuple[float, float]


def as_rounded(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cuts: list[Cut], said: BodyVerdict) -> Over | None:
    """The target's program with what it rounded where it reads another measure of the codes, which is said; None where it is no nearer."""
    codes = programs.codes.target
    before = worst_cut(setting, programs, ours, theirs, cuts) if codes.roundings or codes.casts else None
    others = _read_back(programs) if before is not None else []
    if before is None or not others:
        return None
    cut, difference = before
    ways: dict[int, Redone] = {one.call: instead({"out": one.measures}) for one in others}
    ran = programs.run("target", redone=ways)
    off = figure_at(setting, programs, ours, ran, cuts)
    if off >= NEARER * difference.figure:
        return None
    for one in others:
        if len(others) > 1 and figure_at(setting, programs, ours, _without(programs, ways, one.call), cuts) <= off:
            continue
        evidence = {"static": one.statement, "ratios": list(one.ratios)}
        found = found_of_meaning((-1, one.call), "out", cut, difference, evidence, broken=False)
        said.findings.append(found if found.notice else replace(found, verdict=Verdict.DEFECT, cause="quant-scale"))
    return Over(ways, ran, off)


def _without(programs: Programs, ways: dict[int, Redone], call: int) -> Ran:
    return programs.run("target", redone={one: way for one, way in ways.items() if one != call})


def _read_back(programs: Programs) -> list[_ReadBack]:
    """Where the target reads another measure of codes than it rounded. Raises CannotReplay."""
    run, codes = programs.runs.target, programs.codes.target
    found: list[_ReadBack] = []
    for rounding in sorted(codes.roundings | codes.casts):
        first, position = _first(programs, rounding)
        last = _last(programs, rounding)
        before = _given(programs, first, position)
        if last is not None:
            after = programs.run("target", watch=frozenset({last})).results.get(last, {}).get("out")
        elif rounding in codes.casts:  # what was cast goes on as it is
            last, after = rounding, _given(programs, rounding, "in[0]")
        else:
            continue
        told = None if before is None or after is None or before.shape != after.shape else _ratios(before, after)
        if before is not None and told is not None and all(last != one.call for one in found):
            statement = f"reads back {told.times} times what was rounded to {codes.kept_as(run, rounding)}{told.where}"
            found.append(_ReadBack(last, before, statement, told.ratios))
    return found


def _given(programs: Programs, call: int, position: str) -> Array | None:
    """What a call of the target's is given."""
    ran = programs.run("target", looked_at=call)
    return operands_by_position(programs.runs.target.operation(call), ran.operands[call]).get(position) if call in ran.operands else None


class _Told(NamedTuple):
    """How many times as large something is: in words, in which elements, and the least and the most."""

    times: str
    where: str
    ratios: tuple[float, float]


def _ratios(before: Array, after: Array) -> _Told | None:
    counts = np.abs(before) > _SMALL * np.max(np.abs(before), initial=0.0)
    ratio = after[counts] / before[counts]
    if not ratio.size or not np.isfinite(ratio).all() or np.all(np.abs(ratio - 1.0) <= _SAME):
        return None
    others = np.abs(ratio - 1.0) > _SAME
    low, high = float(ratio[others].min()), float(ratio[others].max())
    times = f"{low:.3g}" if high - low <= _SAME * abs(high) else f"{low:.3g} to {high:.3g}"
    return _Told(times, "" if others.all() else f", in {np.count_nonzero(others)} of {others.size} elements", (low, high))


def _first(programs: Programs, rounding: int) -> tuple[int, str]:
    """The call that begins to make codes of measures, and where it is given these: going back from where they are rounded."""
    run, items = programs.runs.target, set(programs.body.items.target)
    call, position = rounding, "in[0]"
    while True:
        before = _maker(run, run.operation(call).inputs[position])
        if before not in items or run.is_module(before):
            return call, position
        if before in programs.partners and call != rounding:  # where both runs round, both scale before
            return call, position
        operation = run.operation(before)
        along = _measure_of(run, operation)
        if operation.base not in _SCALES or operation.writes or along is None:
            return call, position
        call, position = before, along


def _maker(run: Recorded, value: int) -> int:
    """The call that made what a value shows."""
    call = int(run.producer[value])
    while call >= 0 and not run.is_module(call) and run.is_view(operation := run.operation(call)) and "in[0]" in operation.inputs:
        call = int(run.producer[operation.inputs["in[0]"]])
    return call


def _measure_of(run: Recorded, operation: Operation) -> str | None:
    """Where a call is given what it scales: the operand of the form of its result."""
    made = operation.outputs.get("out")
    shape = None if made is None else run.file.shape(made)
    return next((at for at, value in operation.inputs.items() if run.file.shape(value) == shape), None)


def _last(programs: Programs, rounding: int) -> int | None:
    """The call after which what is made of codes, element by element, is made no further; None where nothing is, or codes are kept."""
    run, last = programs.runs.target, None
    for call in _along(programs, rounding):
        last = call
    known = None if last is None else dtype_named(run.file.dtype_name(run.operation(last).outputs["out"]))
    return last if known is not None and known.kind == "float" else None


def _along(programs: Programs, rounding: int) -> Iterator[int]:
    run = programs.runs.target
    value = run.operation(rounding).outputs["out"]
    shape, memories = run.file.shape(value), {run.place(value).memory[0]}
    for call in sorted(item for item in programs.body.items.target if item > rounding and not run.is_module(item)):
        operation = run.operation(call)
        given = [at for at, value in operation.inputs.items() if run.place(value).memory[0] in memories]
        made = operation.outputs.get("out")
        if not given or made is None or run.is_view(operation) or call in programs.partners:
            continue
        if operation.base in _SCALES and not operation.writes and run.file.shape(made) == shape and _measure_of(run, operation) in given:
            memories = {run.place(made).memory[0]}
            if not run.is_float_cast(operation):
                yield call
