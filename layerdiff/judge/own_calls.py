"""What the own replay of one call says, as a finding; and that of every call of every rank, each on its own recorded operands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from layerdiff.arithmetic.verdict import Own
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.pairs.ranked import RankedTables
from layerdiff.judge.tables import Verdict
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.own import CONVICTING, excused, replay_own
from layerdiff.replay.program import contents
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role


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
    tables: RankedTables, files: Both[tuple[TraceFile, ...]], sites: dict[str, NDArray[Any]], trust: Collection[str] = ()
) -> Iterator[tuple[int, int, Found | None]]:
    """Replay every operator call of every rank; hands out (done, all, what is wrong with the call or None).

    A residual that the reference's call of the same operator has too convicts nobody. Fills the column `exact` of operators.
    """
    runs = files.map(lambda side: [Recorded(file, trust) for file in side])
    for row, calls in tables.calls.items():
        if sites["kind"][row] != CallKind.OPERATOR:
            continue
        same = _same_bits(files, calls)
        sites["exact"][row] = int(Verdict.IDENTICAL if same else Verdict.ORDER_CONSISTENT)
    todo = [at for at, row in tables.row_of.items() if sites["kind"][row] == CallKind.OPERATOR]
    for done, (file, call) in enumerate(todo, 1):
        row = tables.row_of[file, call]
        partner = runs.reference[int(sites["reference_file"][row])], int(sites["reference_call"][row])
        yield done, len(todo), _wrong(runs.target[file], call, *partner, row, files.target[file].rank)


def _same_bits(files: Both[tuple[TraceFile, ...]], calls: Both[dict[int, int]]) -> bool:
    """Whether each rank's call made the bits that the same rank's of the reference made; two layouts of as many ranks are asked that."""
    if calls.reference.keys() != calls.target.keys():
        return False
    return all(
        _results(files.reference[file], calls.reference[file]) == _results(files.target[file], call) for file, call in calls.target.items()
    )


def _results(file: TraceFile, call: int) -> list[Any]:
    """What tells the results of a call from others; of a view, those of what it shows."""
    values = [edge.value for edge in file.edges_of(call) if edge.role == Role.OUTPUT]
    return [(_bits(file, value), file.dtype_name(value), file.shape(value)) for value in values]


def _bits(file: TraceFile, value: int) -> Any:
    """Of a result that holds no numbers (memory not yet written, a device without any) the reason; nothing equals one that was left out."""
    found = file.fingerprint(value)
    base = int(file.values.base[value])
    if found is None and base >= 0:
        shown = file.fingerprint(base)
        return object() if shown is None else (shown, file.text(int(file.values.view[value])))
    return found or (object() if file.has_bytes(value) else file.text(int(file.values.reason[value])) or object())


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
