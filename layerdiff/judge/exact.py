"""The exact judge in the table of sites: runs it where both traces recorded operators, and turns what it found into verdicts.

What was found does not depend on a profile: it is kept in columns and in a list of findings, and `apply_exact` makes verdicts of
them under any profile, with or without the traces.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import FormsAt, as_they_are
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import BY_THRESHOLDS, LEFT_TO_THRESHOLDS, Columns, Source, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind, Role

if TYPE_CHECKING:  # a saved comparison is opened without what reads a trace
    from layerdiff.judge.judging_programs import Judgement
    from layerdiff.trace.reader import TraceFile

ALLOWED_BY: Final = {"tf32": "tf32", "quantised": "quantised", "collectives": "low-precision-collectives"}
"""What in a profile's `allow` permits a kind of precision. A rounded constant is permitted always; the others never."""
_NEARLY: Final = 0.1
NO_TORCH: Final = "judged by thresholds: judging by operators needs torch (pip install 'layerdiff[torch]')"


def can_judge_exactly(files: Both[TraceFile]) -> str | None:
    """Why two files are not judged by their operators; None where they are. An empty text where they recorded none."""
    from layerdiff.judge.programs.coverage import recorded_operators

    if not all(recorded_operators(file) for file in files):
        return ""
    return None if importlib.util.find_spec("torch") is not None else NO_TORCH


def judge_exactly(
    sites: dict[str, NDArray[Any]],
    pairs: Columns,
    texts: Texts,
    files: Both[TraceFile],
    rows: NDArray[np.int64],
    trust: Collection[str] = (),
    forms_at: FormsAt = as_they_are,
) -> Iterator[tuple[int, int, list[Found]]]:
    """Judge the calls of one pair of files, at `rows` of the table; fills its exact columns. Hands out (done, all, findings so far).

    `trust`: namespaces beside ATen whose operators may be run again, where this machine has them.
    """
    from layerdiff.judge.judging_programs import judge_programs
    from layerdiff.judge.programs.coverage import covered_calls

    reference, target = sites["reference_call"][rows], sites["target_call"][rows]
    both = (reference >= 0) & (target >= 0) & (sites["kind"][rows] == CallKind.MODULE)
    modules = dict(zip(reference[both].tolist(), target[both].tolist(), strict=True))
    covered = covered_calls(files)
    place = _Rows(rows, reference, target, files)
    found: list[Found] = []
    last: Judgement | None = None
    for done, total, judgement in judge_programs(files, modules, covered, _settled(sites, pairs, rows), trust, forms_at):
        last = judgement
        found[:] = [
            Found(row, _with_site(local, files.reference, _module(texts[int(sites["site"][row])] or "", int(sites["kind"][row]))))
            for local in judgement.findings
            if (row := place.of(local.calls)) is not None
        ]
        yield done, total, found
    if last is not None:
        _fill(sites, pairs, texts, rows, last)
        known = {one.row for one in found}
        found += [one for one in _new_non_finite(sites, pairs, texts, rows) if one.row not in known]
    yield 1, 1, found


def _with_site(local: Local, reference: TraceFile, module: str) -> Local:
    """The finding with the reference's site of its call, where that lies in a module of another name: a target may be one flat graph."""
    call = local.calls[0]
    if call < 0 or _module(own := reference.site(call), int(reference.calls.kind[call])) == module:
        return local
    return replace(local, evidence={**local.evidence, "reference_site": own})


def _module(site: str, kind: int) -> str:
    """The module of a site: its own, or that in which an operator is called."""
    return site if kind == CallKind.MODULE else site.rpartition("/")[0]


def _settled(sites: Columns, pairs: Columns, rows: NDArray[np.int64]) -> set[int]:
    """The target's operator calls that made the reference's bits of the reference's bits: nothing of the target's shows there."""
    outputs, equal_out, equal_in = _equalities(sites, pairs)
    same = outputs & equal_out & equal_in & (sites["reference_call"] >= 0) & (sites["kind"] == CallKind.OPERATOR)
    return set(sites["target_call"][rows[same[rows]]].tolist())


class _Rows:
    """The rows of calls; of one that nobody made, that of the module in which it stands."""

    def __init__(self, rows: NDArray[np.int64], reference: NDArray[Any], target: NDArray[Any], files: Both[TraceFile]) -> None:
        self._reference = {call: row for call, row in zip(reference.tolist(), rows.tolist(), strict=True) if call >= 0}
        self._target = {call: row for call, row in zip(target.tolist(), rows.tolist(), strict=True) if call >= 0}
        from layerdiff.trace.joined import own_of

        for file, known in zip(files, (self._reference, self._target), strict=True):
            known.update({call: known[around] for call in own_of(file) if (around := int(file.calls.parent[call])) in known})

    def of(self, calls: tuple[int, int]) -> int | None:
        row = self._target.get(calls[1]) if calls[1] >= 0 else None
        return row if row is not None else self._reference.get(calls[0])


def _fill(sites: dict[str, NDArray[Any]], pairs: Columns, texts: Texts, rows: NDArray[np.int64], judged: Judgement) -> None:
    outputs, equal_out, equal_in = _equalities(sites, pairs)
    for row in rows.tolist():
        call = int(sites["target_call"][row])
        if call < 0 or (int(sites["reference_call"][row]) < 0 and call not in judged.own):
            continue
        is_module = int(sites["kind"][row]) == CallKind.MODULE
        reason = judged.unjudged.get(call)
        paired = int(sites["reference_call"][row]) >= 0
        if is_module:
            if call not in judged.judged and reason is None:
                continue
            if call in judged.by_thresholds:
                sites["statement"][row] = texts.intern(LEFT_TO_THRESHOLDS + str(reason).removeprefix("opaque: "))
                continue
            same = paired and outputs[row] and equal_out[row]
            verdict = Verdict.IDENTICAL if same else Verdict.INHERITED if reason is None else Verdict.NOT_COMPARABLE
            if not outputs[row] and reason is None:
                verdict = Verdict.IDENTICAL if equal_in[row] else Verdict.INHERITED
            sites["exact_rule"][row] = texts.intern("programs: meaning at every cut")
        else:
            own = judged.own.get(call)
            if paired and outputs[row] and (equal_out[row] or call in judged.unwritten):
                verdict = Verdict.IDENTICAL
            elif own is not None and own.verdict == "not-comparable":
                verdict, reason = Verdict.NOT_COMPARABLE, own.statement
            elif reason is not None and own is None:
                verdict = Verdict.NOT_COMPARABLE
            elif not paired:
                continue  # said to have no partner
            else:
                exactly = own is not None and own.verdict == "order-exact"
                within = Verdict.ORDER_EXACT if exactly else Verdict.ORDER_CONSISTENT
                verdict = within if equal_in[row] else Verdict.INHERITED
            if own is not None:
                sites["exact_measured"][row], sites["exact_allowed"][row] = own.measured, own.allowed
                sites["local_sigma"][row] = own.zrms
                sites["exact_rule"][row] = texts.intern(f"own replay, {own.rung}")
        if verdict == Verdict.NOT_COMPARABLE and reason is not None:
            sites["statement"][row] = texts.intern(reason)
        sites["exact"][row] = int(verdict)


def _new_non_finite(sites: Columns, pairs: Columns, texts: Texts, rows: NDArray[np.int64]) -> Iterator[Found]:
    """Operator calls that are given the reference's classes of numbers, and make NaN or Inf where the reference does not."""
    count = len(sites["site"])
    differs = pairs["nonfinite_differ"] > 0
    is_output = pairs["role"] == Role.OUTPUT
    coming, unknown = np.zeros(count, bool), np.zeros(count, bool)
    coming[pairs["site"][~is_output & differs]] = True
    unknown[pairs["site"][~is_output & (pairs["source"] != Source.BYTES)]] = True
    coming |= _far_apart(pairs, is_output, count)
    here = np.zeros(count, bool)
    here[rows] = True
    made = is_output & differs & (pairs["nonfinite_target"] > pairs["nonfinite_reference"])
    for pair in np.flatnonzero(made).tolist():
        row = int(pairs["site"][pair])
        if not here[row] or sites["kind"][row] != CallKind.OPERATOR or coming[row] or unknown[row]:
            continue
        number = int(pairs["nonfinite_differ"][pair])
        position = texts[int(pairs["position"][pair])] or "out"
        calls = (int(sites["reference_call"][row]), int(sites["target_call"][row]))
        statement = f"{number} elements are NaN or Inf here and finite in the reference, and none of what comes in is"
        yield Found(row, Local(calls, position, Verdict.BROKEN, statement, float(number), 0.0, "non-finite: where it enters"))


def _far_apart(pairs: Columns, is_output: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Per site: something that comes in is not the reference's even nearly, so that an overflow may be right."""
    far = np.zeros(count, bool)
    far[pairs["site"][~is_output & (np.nan_to_num(pairs["rel_l2"], nan=0.0, posinf=1.0) > _NEARLY)]] = True
    return far


def _equalities(sites: Columns, pairs: Columns) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Per site: has paired outputs; all of them are the same bits; all inputs and weights are."""
    count = len(sites["site"])
    outputs, out, coming = np.zeros(count, bool), np.ones(count, bool), np.ones(count, bool)
    is_output = pairs["role"] == Role.OUTPUT
    outputs[pairs["site"][is_output]] = True
    differs = pairs["equal"] == 0
    out[pairs["site"][is_output & differs]] = False
    coming[pairs["site"][~is_output & differs]] = False
    return outputs, out, coming


def apply_exact(sites: dict[str, NDArray[Any]], texts: Texts, found: Sequence[Found]) -> dict[str, NDArray[Any]]:
    """Columns of verdicts with those of the exact judge in place of the thresholds'."""
    exact = sites["exact"] != BY_THRESHOLDS
    if not exact.any() and not found:
        return sites
    judged = dict(sites)
    judged["verdict"] = np.where(exact, sites["exact"], sites["verdict"]).astype(np.uint8)
    for name in ("measured", "allowed", "rule"):
        judged[name] = np.where(exact, sites[f"exact_{name}"], sites[name]).astype(sites[name].dtype)
    for one in found:
        if one.local.notice:
            continue
        local, row = one.local, one.row
        before = int(judged["verdict"][row])
        if before >= Verdict.NOT_COMPARABLE or before < local.verdict:
            judged["verdict"][row] = int(local.verdict)
            judged["measured"][row], judged["allowed"][row] = local.measured, local.allowed
            judged["rule"][row] = texts.intern(local.rule)
    return judged


def is_defect(local: Local, profile: Profile) -> bool:
    """Whether a finding is a defect under a profile."""
    if local.verdict in (Verdict.BROKEN, Verdict.DEFECT, Verdict.UNEXPLAINED):
        return True
    if local.verdict != Verdict.PRECISION or local.kind == "constant":
        return False
    return ALLOWED_BY.get(local.kind, "") not in profile.allow
