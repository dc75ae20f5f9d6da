"""What the own replay of one call says, as a finding; and that of every call of every rank, each on its own recorded operands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from layerdiff.arithmetic.own import Own
from layerdiff.judge.exact import Found
from layerdiff.judge.local import Local
from layerdiff.judge.tables import Verdict
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.own import CONVICTING, excused, replay_own
from layerdiff.replay.program import contents
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind


def local_of(own: Own, calls: tuple[int, int], operation: Operation) -> Local:
    """The finding of a call that its own replay convicts."""
    value = operation_output(operation.outputs, int(own.evidence.get("result", 0)))
    return Local(
        calls,
        value,
        Verdict[own.verdict.upper().replace("-", "_")],
        own.statement,
        own.measured,
        own.allowed,
        f"own replay, {own.rung}",
        cause=own.cause,
        kind=_forbidden_kind(own.cause),
        evidence={**own.evidence, "zrms": own.zrms, "zmax": own.zmax},
    )


def operation_output(outputs: Mapping[str, int], index: int) -> str:
    """The position of the `index`-th result."""
    return f"out[{index}]" if f"out[{index}]" in outputs else "out"


def _forbidden_kind(cause: str | None) -> str:
    if cause is None:
        return ""
    return "tf32" if "tf32" in cause else "quantised" if "quant" in cause or "int8" in cause else "accumulator"


def own_of_ranks(
    reference: TraceFile,
    targets: Sequence[TraceFile],
    row_of: Mapping[tuple[int, int], int],
    sites: dict[str, NDArray[Any]],
    trust: Collection[str] = (),
) -> Iterator[tuple[int, int, Found | None]]:
    """Replay every operator call of every rank; hands out (done, all, what is wrong with the call or None).

    A residual that the reference's call of the same operator has too convicts nobody. `row_of`: by file and call, the row of the sites.
    """
    theirs = Recorded(reference, trust)
    runs = [Recorded(file, trust) for file in targets]
    todo = [at for at, row in row_of.items() if sites["kind"][row] == CallKind.OPERATOR]
    for row in row_of.values():
        if sites["kind"][row] == CallKind.OPERATOR and sites["reference_call"][row] >= 0:
            sites["exact"][row] = int(Verdict.ORDER_CONSISTENT)
    for done, (file, call) in enumerate(todo, 1):
        row = row_of[file, call]
        yield done, len(todo), _wrong(runs[file], call, theirs, int(sites["reference_call"][row]), row, targets[file].rank)


def _wrong(run: Recorded, call: int, reference: Recorded, partner: int, row: int, rank: int | None) -> Found | None:
    operation = run.operation(call)
    try:
        own = replay_own(run, operation, contents)
    except CannotReplay:
        return None
    if own is None or own.verdict not in CONVICTING:
        return None
    if partner >= 0:
        other = reference.operation(partner)
        try:
            if other.name == operation.name and excused(own, replay_own(reference, other, contents)):
                return None
        except CannotReplay:
            pass
    local = local_of(own, (partner, call), operation)
    return Found(row, Local(**{**vars(local), "evidence": {**local.evidence, "rank": rank}}))
