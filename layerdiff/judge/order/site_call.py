"""Which call a site means: `call_at`, for the analysis of its sum.

A site may be an operator's, or a module's: then it is the operator call that makes the module's output by adding up.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from layerdiff.arithmetic.registry import contract_of
from layerdiff.errors import TraceError
from layerdiff.judge.order.composed import composed_sum
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.reader import Trace, TraceFile
from layerdiff.trace.schema import CallKind, Role

_FUSED: Final = ("attention", "softmax", "_norm")


def call_at(
    trace: Trace, site: str, step: int | None, occurrence: int | None, rank: int | None, other: Trace | None = None
) -> tuple[TraceFile, int]:
    """The call at a site; of a module, the operator call that makes its output. `other` may know the site where this one does not."""
    for file in trace.files:
        if rank is not None and (file.rank or 0) != rank:
            continue
        for call in _matching(file, site, step, occurrence):
            return file, _summing_call(file, call, site)
    module, _, operator = site.rpartition("/")
    if other is not None and operator and module != site:
        for file in other.files:
            if any(True for _ in _matching(file, site, step, occurrence)):
                return call_at(trace, module, step, occurrence, rank)
    raise TraceError(f"{trace.path}: {_unknown(trace, site, step, occurrence, rank)}")


def _matching(file: TraceFile, site: str, step: int | None, occurrence: int | None) -> Iterator[int]:
    calls = file.calls
    for call in range(len(calls)):
        if step is not None and int(calls.step[call]) != step:
            continue
        if occurrence is not None and int(calls.occurrence[call]) != occurrence:
            continue
        if file.site(call) == site:
            yield call


def _unknown(trace: Trace, site: str, step: int | None, occurrence: int | None, rank: int | None) -> str:
    known = {file.site(call) for file in trace.files for call in range(len(file.calls))}
    if site in known:
        asked = {"step": step, "occurrence": occurrence, "rank": rank}
        return f"{site} was not called at {', '.join(f'{name} {number}' for name, number in asked.items() if number is not None)}."
    close = get_close_matches(site, known, n=3, cutoff=0.5)
    hint = f" Close to it: {', '.join(close)}." if close else " `layerdiff inspect` lists what was recorded."
    return f"there is no site {site!r}.{hint}"


def _summing_call(file: TraceFile, call: int, site: str) -> int:
    """The call itself where it is an operator's; of a module, the operator call behind its first output."""
    if int(file.calls.kind[call]) != CallKind.MODULE:
        return call
    run = Recorded(file)
    inside = [one for one in _operators_inside(file, call)]
    if not inside:
        raise TraceError(f"{file.path}: no operator was recorded inside {site or 'the root'}: record with --operators.")
    values = [edge.value for edge in file.edges_of(call) if edge.role == Role.OUTPUT]
    at = int(run.producer[values[0]]) if values else -1
    for _ in range(64):
        if at < 0 or at not in inside:
            break
        operation = run.operation(at)
        if _sums(operation) or composed_sum(run, operation) is not None:
            return at
        if not operation.inputs:
            break
        at = int(run.producer[operation.inputs[min(operation.inputs)]])
    sums = [file.site(one) for one in inside if _sums(run.operation(one))]
    if len(sums) == 1:
        return next(one for one in inside if file.site(one) == sums[0])
    listed = f" One of these: {', '.join(sums[:6])}{', ...' if len(sums) > 6 else ''}." if sums else ""
    raise TraceError(f"{file.path}: {site or 'the root'} is a module whose output is no single sum.{listed}")


def _operators_inside(file: TraceFile, call: int) -> Iterator[int]:
    end = int(file.calls.end[call])
    kinds = file.calls.kind
    for one in range(call + 1, end if end > call else len(kinds)):
        if int(kinds[one]) != CallKind.MODULE:
            yield one


def _sums(operation: Operation) -> bool:
    """Whether a call is a sum, or a fused call with sums inside."""
    contract = contract_of(operation.name)
    if contract is None:
        return False
    return contract.product is not None or contract.summing is not None or any(word in operation.name for word in _FUSED)
