"""Decisions (top-k, argmax, comparisons) that the two programs of a body make otherwise: by a rounding, by a tie, or wrongly.

The reference decides for itself on exact operands. Where its margin is no more than what rounding makes of them it goes on with
the target's decision, and that is said; else it keeps its own, and what follows shows the fault. What follows may be a choice again (of
experts, in the groups that were chosen), which is then asked anew: taken from the target it would hide what made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.programs.choices import Decision, apart
from layerdiff.judge.programs.jumps import takes_other_ends
from layerdiff.judge.programs.noise import Rounding
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import FLIP, NOTHING, BodyVerdict, Cut, Setting
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import row_difference
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
_ORDERED: Final = ("topk", "sort")
"""Operators that hand out values and their places in order."""
_SINGLE: Final = ("argmax", "argmin", "max", "min")
"""Operators that hand out the place of the first in that order."""
_CHOOSING: Final = (*_ORDERED, *_SINGLE, "argsort", "kthvalue", "median", "mode")
"""Operators whose whole numbers are places in their operand."""


def with_decisions(setting: Setting, programs: Programs, theirs: Ran, said: BodyVerdict) -> tuple[Ran, frozenset[int]]:
    """The reference's program, following the target's decisions where they hang by a rounding; and the calls where it keeps its own."""
    ours = programs.run("reference")
    if programs.incoming.own_choices:  # each its own: where they are not the same nothing is judged
        return ours, frozenset()
    otherwise = _by_other_calls(programs, ours, theirs)
    if otherwise:
        programs.decided_by.update(otherwise)
        ours = programs.run("reference")
    kept: dict[int, dict[str, Array]] = {}
    said_of: dict[int, Local] = {}
    while fresh := [decision for decision in ours.decisions if decision.operation.call not in kept]:
        noisy = programs.run("reference", noise=setting.rounding.as_expected, taken=kept)
        wrong: dict[int, dict[str, Array]] = {}
        for decision in fresh:
            call = decision.operation.call
            allowed = allowed_margin(setting.rounding, decision, ours.operands.get(call), noisy.operands.get(call))
            there = programs.aligned.get(call, programs.decided_by.get(call, (-1,))[0])
            operands = _decides_of(programs, "reference", call, ours), _decides_of(programs, "target", there, theirs)
            decision.margin = np.maximum(decision.margin, _tied_on_one_side(decision, *operands))
            if there >= 0 and takes_other_ends(decision.operation, programs.runs.target.operation(there)):
                decision.margin = np.where(decision.differs, np.inf, decision.margin)
            if np.any(decision.margin > allowed):
                wrong[call] = decision.own
            else:
                said_of[call] = flip_of(decision, (call, programs.aligned.get(call, -1)), allowed, wrong=False)
        if not wrong:
            break
        kept |= wrong  # what follows of its own choice may be another choice, further on
        said_of.clear()
        ours = programs.run("reference", kept=frozenset(kept))
    said.findings += said_of.values()
    return ours, frozenset(kept)


def _tied_on_one_side(decision: Decision, ours: Array | None, theirs: Array | None) -> Array:
    """How far apart the exact operands are where the reference stands on the border itself: a tie of both sides, or of one alone.

    A 0 that the target has as 1 is no tie, though the least of roundings would make it True; nor are masked numbers that the
    target did not mask. Of a choice in a row the row counts.
    """
    nothing = np.zeros_like(decision.margin)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return nothing
    off = apart(ours, theirs)
    if off.shape != nothing.shape:
        off = off.max(-1, keepdims=True, initial=0.0)
        if off.ndim != nothing.ndim or any(size not in (1, there) for size, there in zip(off.shape, nothing.shape, strict=True)):
            return nothing
    found: Array = np.where((decision.margin == 0) & decision.differs, off, 0.0)
    return found


def _decides_of(programs: Programs, side: str, call: int, ran: Ran) -> Array | None:
    """The numbers that decide in a call, the largest first in a choice."""
    args = ran.operands.get(call)
    if args is None or not args.args or not isinstance(args.args[0], np.ndarray):
        return None
    ordered = _largest_first(_base(programs, side, call), args)
    return args.args[0] if ordered is None else ordered


def _by_other_calls(programs: Programs, ours: Ran, theirs: Ran) -> dict[int, tuple[int, ...]]:
    """By choice of the reference that has no partner the target's of the same numbers: a sort for a top-k, from whichever end.

    Several where each takes the largest of what those before it left.
    """
    found: dict[int, tuple[int, ...]] = {}
    orders = {there: _largest_first(_base(programs, "target", there), others) for there, others in theirs.operands.items()}
    for call, args in ours.operands.items():
        operand = None if call in programs.aligned else _largest_first(_base(programs, "reference", call), args)
        if operand is None:
            continue
        left = np.ones(operand.shape, bool)
        chosen: list[int] = []
        for there, other in orders.items():
            if other is None or other.shape != operand.shape or other.dtype != operand.dtype or not _alike(operand, other, left):
                continue
            single = _base(programs, "target", there) in _SINGLE
            if chosen and not single:
                continue
            chosen.append(there)
            if not single:
                break
            try:
                np.put_along_axis(left, programs.chosen_by([there]), False, -1)
            except (CannotReplay, IndexError, ValueError):
                break
        if chosen:
            found[call] = tuple(chosen)
    return found


def _alike(one: Array, other: Array, left: NDArray[np.bool_]) -> bool:
    """Whether two operands of choices are the same, where they are left; what was chosen before must lie below the rest."""
    if not row_difference(np.where(left, one, 0.0), np.where(left, other, 0.0)).figure <= NOTHING:
        return False
    lowest = np.where(left, other, np.inf).min(axis=-1, initial=np.inf)
    return bool(left.all() or (np.where(left, -np.inf, other).max(axis=-1, initial=-np.inf) < lowest).all())


def _largest_first(name: str, args: Arguments) -> Array | None:
    """The numbers of which a choice hands out the largest first, the negative of its operand for the smallest; None of other calls."""
    operand = args.args[0] if args.args else None
    if not isinstance(operand, np.ndarray) or operand.dtype.kind != "f" or not operand.ndim:
        return None
    if name in _SINGLE:
        along = args.kwargs.get("dim", args.args[1] if len(args.args) > 1 else None)
        last = along in (-1, operand.ndim - 1) if isinstance(along, int) else False
        return None if not last else operand if name in ("argmax", "max") else -operand
    if name not in _ORDERED:
        return None
    flag, at, otherwise = ("largest", 3, True) if name == "topk" else ("descending", 2, False)
    return operand if args.kwargs.get(flag, args.args[at] if len(args.args) > at else otherwise) else -operand


def _base(programs: Programs, side: str, call: int) -> str:
    return str(getattr(programs.runs, side).operation(call).base)


def decided_otherwise(
    setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cut: Cut, fixed: Mapping[int, Mapping[str, Array]]
) -> tuple[Local, int, dict[str, Array]] | None:
    """Whether whole numbers at a cut are indices into what the reference chose from, and the target's choice is as good up to rounding.

    However the target came by its own: by a sort, by a top-k, from the other end. What is said, the reference's call, and what it makes
    of the target's choice; nothing where its results have another form. `fixed` are the results of calls that rounding is not to change.
    """
    (r, t), position = cut
    one, other = ours.cuts[r, position], theirs.cuts[t, position]
    if any(x.dtype.kind not in "iu" for x in (one, other)) or not one.ndim or not one.size:
        return None
    if not programs.body.forms.same(one.shape, other.shape):
        return None
    other = programs.body.forms.for_reference(other, one.shape, lambda: ours.cuts[r, position])
    if min(one.min(), other.min()) < 0:
        return None
    for call, args in ours.operands.items():
        operand = args.args[0] if args.args and isinstance(args.args[0], np.ndarray) else None
        if _base(programs, "reference", call) not in _CHOOSING:
            continue
        if operand is None or operand.dtype.kind != "f" or operand.shape[:-1] != one.shape[:-1]:
            continue
        if max(one.max(), other.max()) >= operand.shape[-1]:
            continue
        values = (
            np.take_along_axis(operand, one.astype(np.int64), -1),
            np.take_along_axis(operand, other.astype(np.int64), -1),
        )
        operation = programs.runs.reference.operation(call)
        decision = Decision(operation, {}, apart(*values), np.maximum(np.abs(values[0]), np.abs(values[1])), values[0] != values[1])
        noisy = programs.run("reference", noise=setting.rounding.as_expected, taken=fixed)
        allowed = allowed_margin(setting.rounding, decision, args, noisy.operands.get(call))
        if not np.any(decision.margin > allowed):
            made = ours.results.get(call, {})
            followed = {"out[0]": values[1], "out[1]": other}
            fits = made.keys() == followed.keys() and all(made[at].shape == chosen.shape for at, chosen in followed.items())
            said = flip_of(decision, (call, programs.aligned.get(call, -1)), allowed, wrong=False)
            return said, call, followed if fits else {}
    return None


def allowed_margin(rounding: Rounding, decision: Decision, exact: Arguments | None, noisy: Arguments | None) -> Array:
    """How far from the border rounding may move each element: some spreads of the operand, and its own rounding; an infinity has none."""
    scale = np.where(np.isfinite(decision.scale), decision.scale, 0.0)
    found: Array = FLIP * _spread(exact, noisy) + 2 * rounding.of_operands(decision.operation, scale)
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
            finite = np.isfinite(one) & np.isfinite(other)
            off = one[finite] - other[finite]
            found = max(found, float(np.sqrt(np.mean(np.square(off)))) if off.size else 0.0)
    return found
