"""Decisions (top-k, argmax, comparisons) that the two programs of a body make otherwise: by a rounding, by a tie, or wrongly.

The reference decides for itself on exact operands. Where its margin is no more than what rounding makes of them it goes on with
the target's decision, and that is said; else it keeps its own, and what follows shows the fault.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.running import Decision, Programs, Ran
from layerdiff.judge.setting import FLIP, NOTHING, BodyVerdict, Cut, Setting
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import row_difference
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
_ORDERED: Final = ("topk", "sort")
"""Operators that hand out values and their places in order."""


def with_decisions(setting: Setting, programs: Programs, theirs: Ran, said: BodyVerdict) -> tuple[Ran, frozenset[int]]:
    """The reference's program, following the target's decisions where they hang by a rounding; and the calls where it keeps its own."""
    ours = programs.run("reference")
    otherwise = _by_other_calls(programs, ours, theirs)
    if otherwise:
        programs.decided_by.update(otherwise)
        ours = programs.run("reference")
    if not ours.decisions:
        return ours, frozenset()
    noisy = programs.run("reference", noise=setting.rounding.as_expected)
    kept = set()
    for decision in ours.decisions:
        call = decision.operation.call
        unit = setting.rounding.unit_of_operands(decision.operation)
        allowed = allowed_margin(decision, ours.operands.get(call), noisy.operands.get(call), unit)
        wrong = bool(np.any(decision.margin > allowed))
        if wrong:
            kept.add(call)
        said.findings.append(flip_of(decision, (call, programs.aligned.get(call, -1)), allowed, wrong))
    said.findings = [local for local in said.findings if local.notice]
    if kept:
        ours = programs.run("reference", kept=frozenset(kept))
    return ours, frozenset(kept)


def _by_other_calls(programs: Programs, ours: Ran, theirs: Ran) -> dict[int, int]:
    """By choice of the reference that has no partner the target's of the same numbers: a sort for a top-k, from whichever end."""
    found: dict[int, int] = {}
    for call, args in ours.operands.items():
        operand = None if call in programs.aligned else _largest_first(_base(programs, "reference", call), args)
        if operand is None:
            continue
        for there, others in theirs.operands.items():
            other = _largest_first(_base(programs, "target", there), others)
            if other is None or other.shape != operand.shape or other.dtype != operand.dtype:
                continue
            if row_difference(operand, other).figure <= NOTHING:
                found.setdefault(call, there)
    return found


def _largest_first(name: str, args: Arguments) -> Array | None:
    """The numbers of which a choice hands out the largest first, the negative of its operand for the smallest; None of other calls."""
    operand = args.args[0] if args.args else None
    if name not in _ORDERED or not isinstance(operand, np.ndarray) or operand.dtype.kind != "f":
        return None
    flag, at, otherwise = ("largest", 3, True) if name == "topk" else ("descending", 2, False)
    return operand if args.kwargs.get(flag, args.args[at] if len(args.args) > at else otherwise) else -operand


def _base(programs: Programs, side: str, call: int) -> str:
    return str(getattr(programs.runs, side).operation(call).name.split(".")[1])


def decided_otherwise(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cut: Cut) -> tuple[Local, int, dict[str, Array]] | None:
    """Whether whole numbers at a cut are indices into what the reference chose from, and the target's choice is as good up to rounding.

    However the target came by its own: by a sort, by a top-k, from the other end. What is said, the reference's call, and what it makes
    of the target's choice; nothing where its results have another form.
    """
    (r, t), position = cut
    one, other = ours.cuts[r, position], theirs.cuts[t, position]
    if one.dtype.kind not in "iu" or not one.ndim or one.size != other.size or not one.size or min(one.min(), other.min()) < 0:
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
        allowed = allowed_margin(decision, args, noisy.operands.get(call), setting.rounding.unit_of_operands(operation))
        if not np.any(decision.margin > allowed):
            made = ours.results.get(call, {})
            followed = {"out[0]": values[1], "out[1]": other.reshape(one.shape)}
            fits = made.keys() == followed.keys() and all(made[at].shape == chosen.shape for at, chosen in followed.items())
            said = flip_of(decision, (call, programs.aligned.get(call, -1)), allowed, wrong=False)
            return said, call, followed if fits else {}
    return None


def allowed_margin(decision: Decision, exact: Arguments | None, noisy: Arguments | None, unit: float) -> Array:
    """How far from the border rounding may move each element: some spreads of the operand, and its own rounding."""
    found: Array = FLIP * _spread(exact, noisy) + 2 * unit * decision.scale
    return found


def flip_of(decision: Decision, calls: tuple[int, int], allowed: Array, wrong: bool) -> Local:
    """What is said of a decision that was made otherwise; a notice unless it is `wrong`."""
    margin = decision.margin
    with np.errstate(all="ignore"):
        ratio = np.where(margin > 0, margin / np.where(allowed > 0, allowed, np.nan), 0.0)
    worst = float(np.nanmax(ratio)) if ratio.size else 0.0
    if not np.any(margin > 0):
        statement = f"{decision.operation.name}: values that tie were ordered otherwise"
        return Local(calls, "out", Verdict.FLIP, statement, 0.0, 1.0, "exact margin 0", kind="tie-order", notice=True)
    statement = f"{decision.operation.name} decides otherwise by a margin of {worst:.2g} of what rounding can make"
    return Local(calls, "out", Verdict.FLIP, statement, worst, 1.0, "margin over 4 spreads + 2u", kind="flip", notice=not wrong)


def _spread(exact: Arguments | None, noisy: Arguments | None) -> float:
    """Root mean square of what noise made of the float operands of a call."""
    if exact is None or noisy is None:
        return 0.0
    found = 0.0
    for one, other in zip(exact.args, noisy.args, strict=False):
        if isinstance(one, np.ndarray) and one.dtype.kind == "f" and isinstance(other, np.ndarray) and one.shape == other.shape:
            off = (one - other)[np.isfinite(one) & np.isfinite(other)]
            found = max(found, float(np.sqrt(np.mean(np.square(off)))) if off.size else 0.0)
    return found
