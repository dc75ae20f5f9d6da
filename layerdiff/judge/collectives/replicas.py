"""Values that ranks must hold alike: a module that is given the same bits as on another rank, with the same weights, makes the same.

Most values of equal shape on two ranks may differ: shards, partial sums, slices of a sequence. So nothing is claimed of a value by
itself, and nothing of a module that may do its rank's part: only leaf modules of a known class count, whose result has the shape that
the class gives it, with no collective inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from layerdiff.errors import TraceError
from layerdiff.judge.classes import ACTIVATION, EMBEDDING, FP32_ROUNDOFF, LINEAR, NORM, ModuleClass, module_class
from layerdiff.judge.collectives.agreement import USED, Told
from layerdiff.judge.collectives.replicas_part import Norm, parting
from layerdiff.judge.collectives.sums import Outcome
from layerdiff.judge.issued import listed
from layerdiff.judge.local import Local
from layerdiff.judge.tables import Verdict
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, CallStatus, Role

PART: Final = "replicas-part"
"""Kind of the notice where ranks part for good."""
RULE: Final = "the same inputs and weights make the same bits on every rank"
_CLAIMED: Final = (EMBEDDING, NORM, LINEAR, ACTIVATION)
_WITH_WEIGHTS: Final = (EMBEDDING, NORM, LINEAR)
_NO_PRODUCT: Final = "conv"
"""Of LINEAR: the shape of its result is not told from its weight alone."""
_Values = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Call:
    """A module call of one rank, as its fingerprints have it; None where one is not known."""

    file: int
    rank: int
    call: int
    place: tuple[str, int, int, str]
    inputs: _Values | None
    weights: int | None
    outputs: _Values | None
    own_weights: _Values | None
    leaf: bool


def check_replicas(files: Sequence[TraceFile]) -> tuple[dict[tuple[int, int], Outcome], list[Told]]:
    """What is said of every module call, by (file, call), and the findings and notices, the first rank's call for each place."""
    first: dict[int, int] = {}
    for number, file in enumerate(files):
        if file.rank is not None:
            first.setdefault(file.rank, number)
    places: dict[tuple[str, int, int, str], list[_Call]] = {}
    for rank, number in first.items():
        for one in _calls(files[number], number, rank):
            places.setdefault(one.place, []).append(one)
    outcomes: dict[tuple[int, int], Outcome] = {}
    told: list[Told] = []
    for calls in places.values():
        for outcome, some, finding in _place(calls, files):
            outcomes |= {(one.file, one.call): outcome for one in some}
            if finding is not None:
                told.append(finding)
    return outcomes, [*_first_of_each_site(told, files), *_parted(list(places.values()), len(first))]


def _parted(places: Sequence[Sequence[_Call]], ranks: int) -> Iterator[Told]:
    """A notice where all ranks part for good, in the first step in which they do."""
    steps: dict[int, list[Norm]] = {}
    for calls in places:
        one = calls[0]
        norm = one.leaf and module_class(one.place[3], has_children=False) is NORM
        known = norm and len(calls) == ranks and all(each.inputs and each.own_weights for each in calls)
        if known and len({each.own_weights for each in calls}) == 1:
            same = len({each.inputs for each in calls}) == 1
            steps.setdefault(one.place[1], []).append(Norm(one.place[0], one.place[1], same, one.file, one.call))
    for norms in steps.values():
        found = parting(norms)
        if found is not None:
            at, said = found
            local = Local((-1, at.call), "in[0]", Verdict.NOT_COMPARABLE, said, 0.0, 0.0, RULE, kind=PART, notice=True)
            yield Told(at.file, local)
            return


def _calls(file: TraceFile, number: int, rank: int) -> Iterator[_Call]:
    calls = file.calls
    modules = np.asarray(calls.kind) == CallKind.MODULE
    parents = np.asarray(calls.parent)
    inside = np.bincount(parents[(parents >= 0) & (np.asarray(calls.kind) != CallKind.OPERATOR)], minlength=len(calls)) > 0
    prints = _prints(file)
    at = {call: _edges(file, call, prints) for call in np.flatnonzero(modules).tolist()}
    weights: dict[int, int | None] = {}
    for call in reversed(list(at)):  # children stand behind their parents
        own = at[call][Role.WEIGHT]
        mine = None if own is None else hash((own, weights.get(call, 0)))
        if call in weights and weights[call] is None:
            mine = None
        weights[call] = mine
        parent = int(parents[call])
        if parent in at:
            known = weights.get(parent, 0)
            weights[parent] = None if known is None or mine is None else hash((known, mine))
    for call, values in at.items():
        # what was used before its collective was complete is recorded as it was afterwards, and not as it was read
        returned = int(calls.status[call]) == CallStatus.RETURNED and USED not in (file.text(int(calls.detail[call])) or "")
        place = (file.site(call), int(calls.step[call]), int(calls.occurrence[call]), file.text(int(calls.type[call])) or "")
        outputs = values[Role.OUTPUT] if returned else None
        yield _Call(number, rank, call, place, values[Role.INPUT], weights[call], outputs, values[Role.WEIGHT], not bool(inside[call]))


def _prints(file: TraceFile) -> list[Any]:
    """Of each value what two ranks must have alike, where its bits are known."""
    return [
        None if (print_ := file.fingerprint(value)) is None else (file.dtype_name(value), file.shape(value), print_)
        for value in range(len(file.values))
    ]


def _edges(file: TraceFile, call: int, prints: Sequence[Any]) -> dict[int, _Values | None]:
    found: dict[int, list[tuple[str, Any]]] = {Role.INPUT: [], Role.OUTPUT: [], Role.WEIGHT: []}
    unknown: set[int] = set()
    for edge in file.edges_of(call):
        if prints[edge.value] is None:
            unknown.add(edge.role)
        found.setdefault(edge.role, []).append((edge.position, prints[edge.value]))
    return {role: None if role in unknown else tuple(sorted(values)) for role, values in found.items()}


def _place(calls: Sequence[_Call], files: Sequence[TraceFile]) -> Iterator[tuple[Outcome, Sequence[_Call], Told | None]]:
    """The calls of one place by what they are given, and what is said of those that are given the same."""
    given: dict[Any, list[_Call]] = {}
    for one in calls:
        known = one.inputs and one.outputs and one.weights is not None
        given.setdefault((one.inputs, one.weights) if known else ("unknown", one.rank), []).append(one)
    for key, some in given.items():
        if len(some) < 2:
            why = "its bits are not known" if key[0] == "unknown" else "no other rank was given the same"
            yield Outcome(Verdict.NOT_COMPARABLE, f"{why}: nothing to hold it against"), some, None
        elif len({one.outputs for one in some}) == 1:
            yield Outcome(Verdict.IDENTICAL, rule=RULE), some, None
        else:
            yield _differing(some, files)
    told = _other_weights(calls)
    if told is not None:
        yield Outcome(Verdict.NOT_COMPARABLE, told.local.statement), calls, told


def _differing(some: Sequence[_Call], files: Sequence[TraceFile]) -> tuple[Outcome, Sequence[_Call], Told | None]:
    first = some[0]
    kind = module_class(first.place[3], has_children=not first.leaf)
    if not all(_is_claimed(one, kind, files[one.file]) for one in some):
        said = "given the same, it makes something else on each rank: it may do its rank's part"
        return Outcome(Verdict.NOT_COMPARABLE, said), some, None
    classes: dict[_Values | None, list[int]] = {}
    for one in some:
        classes.setdefault(one.outputs, []).append(one.rank)
    most = max(classes.values(), key=len)
    others = [rank for ranks in classes.values() if ranks is not most for rank in ranks]
    odd = next(one for one in some if one.rank == others[0])
    plain = next(one for one in some if one.rank == most[0])
    ranks = others if len(most) > len(others) else [one.rank for one in some]
    groups = " and ".join(f"rank {listed(held)}" for held in list(classes.values())[:4])
    head = f"given the same inputs and weights, {groups} make different results"
    if "drop" in first.place[3].lower():
        said = f"{head}: each rank draws its own random numbers"
        return Outcome(Verdict.NOT_COMPARABLE, said), some, _notice(odd, "rng-differs-per-rank", said, ranks)
    measured, allowed, what = _apart(plain, odd, files, kind)
    if measured is None or measured <= allowed:
        said = f"{head}, {what}"
        outcome = Outcome(
            Verdict.ORDER_CONSISTENT if measured is not None else Verdict.NOT_COMPARABLE, said, measured or 0.0, allowed, RULE
        )
        return outcome, some, _notice(odd, "replicas-differ", said, ranks)
    local = Local(
        (-1, odd.call), _position(plain, odd), Verdict.DEFECT, f"{head}, {what}", measured, allowed, RULE, cause="replicas-differ",
        evidence={"ranks": ranks},
    )  # fmt: skip
    return Outcome(Verdict.IDENTICAL, rule=RULE), some, Told(odd.file, local)


def _is_claimed(one: _Call, kind: ModuleClass, file: TraceFile) -> bool:
    """Whether this module computes the same everywhere: a leaf of a known class, with its weights, and a result of its class's shape."""
    if not one.leaf or kind not in _CLAIMED or _NO_PRODUCT in one.place[3].lower() or "parallel" in one.place[3].lower():
        return False
    shapes: dict[int, list[tuple[int, ...]]] = {Role.INPUT: [], Role.OUTPUT: [], Role.WEIGHT: []}
    for edge in file.edges_of(one.call):
        shapes.setdefault(edge.role, []).append(file.shape(edge.value))
    if len(shapes[Role.OUTPUT]) != 1 or not shapes[Role.INPUT]:
        return False
    coming, out = shapes[Role.INPUT][0], shapes[Role.OUTPUT][0]
    if kind in _WITH_WEIGHTS and not shapes[Role.WEIGHT]:
        return False
    if kind is LINEAR or kind is EMBEDDING:
        matrix = next((shape for shape in shapes[Role.WEIGHT] if len(shape) == 2), None)
        if matrix is None:
            return False
        return out == ((*coming[:-1], matrix[0]) if kind is LINEAR else (*coming, matrix[1]))
    return out == coming


def _apart(plain: _Call, odd: _Call, files: Sequence[TraceFile], kind: ModuleClass) -> tuple[float | None, float, str]:
    """Relative L2 difference of two results, what rounding may make of it, and both in words; None where no bytes were kept."""
    values = []
    for one in (plain, odd):
        values.append(next(edge.value for edge in files[one.file].edges_of(one.call) if edge.role == Role.OUTPUT))
    dtypes = [files[one.file].dtype(value) for one, value in zip((plain, odd), values, strict=True)]
    unit = max((dtype.unit_roundoff or 0.0 if dtype is not None else 0.0) for dtype in dtypes)
    allowed = 2.0 * (kind.rounding * unit + kind.summing * FP32_ROUNDOFF)
    try:
        ours, theirs = (files[one.file].read(value).astype(np.float64) for one, value in zip((plain, odd), values, strict=True))
    except TraceError:
        return None, allowed, "by how much is not known: no bytes were kept"
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(ours))
        apart = float(np.linalg.norm(theirs - ours))
    differing = int(np.count_nonzero(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))))
    measured = apart / size if size > 0 else (float("inf") if apart > 0 else 0.0)
    if not np.isfinite(measured):
        measured = float("inf")
    place = "within rounding" if measured <= allowed else "more than rounding"
    return measured, allowed, f"{place}: {differing} of {ours.size} elements, {measured:.2g} relative"


def _position(plain: _Call, odd: _Call) -> str:
    return next((a[0] for a, b in zip(plain.outputs or (), odd.outputs or (), strict=False) if a != b), "out")


def _other_weights(calls: Sequence[_Call]) -> Told | None:
    """A norm that is given the same on all ranks, and has other weights of the same shape: a norm of a replicated value is replicated."""
    first = calls[0]
    if len(calls) < 2 or module_class(first.place[3], has_children=not first.leaf) is not NORM or not all(one.leaf for one in calls):
        return None
    if not first.inputs or any(one.inputs != first.inputs or not one.own_weights for one in calls):
        return None
    alike = {tuple((name, print_[:2]) for name, print_ in one.own_weights or ()) for one in calls}
    if len(alike) > 1 or len({one.own_weights for one in calls}) == 1:
        return None
    ranks = [one.rank for one in calls if one.own_weights != first.own_weights]
    odd = next(one for one in calls if one.rank == ranks[0])
    said = f"it is given the same on rank {listed([one.rank for one in calls])}, and its weights are not the same on rank {listed(ranks)}"
    return _notice(odd, "replicas-differ", said, ranks)


def _notice(one: _Call, kind: str, statement: str, ranks: Sequence[int]) -> Told:
    local = Local(
        (-1, one.call), "out", Verdict.NOT_COMPARABLE, statement, 0.0, 0.0, RULE, kind=kind, notice=True, evidence={"ranks": list(ranks)}
    )
    return Told(one.file, local)


def _first_of_each_site(told: Sequence[Told], files: Sequence[TraceFile]) -> list[Told]:
    """Of each site and kind the first, with how many calls say the same."""
    groups: dict[Any, list[Told]] = {}
    for one in told:
        groups.setdefault((files[one.file].site(one.call), one.local.kind, one.local.notice), []).append(one)
    return [group[0] if len(group) == 1 else replace(group[0], local=_counted(group[0].local, len(group))) for group in groups.values()]


def _counted(local: Local, count: int) -> Local:
    evidence: Mapping[str, Any] = {**local.evidence, "calls": count}
    return replace(local, evidence=evidence)
