"""The collectives of a trace held against each other, without a reference: the same on every rank, and each result what was put in makes.

What is said stands at a call of one file (`Told`); the table of sites is no business of this. One finding a collective, whatever number
of ranks got it wrong, so that a fault of the whole group is not said once a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from layerdiff.errors import TraceError
from layerdiff.judge.collectives.messages import unmatched_messages
from layerdiff.judge.collectives.moved import MOVING, Piece, expected, moved, pieces_to
from layerdiff.judge.collectives.rounds import Parting, Round, rounds_of
from layerdiff.judge.collectives.sums import PARTIAL_SUMS, Outcome, reduced
from layerdiff.judge.issued import Issued, bits, issued, listed
from layerdiff.judge.local import Local
from layerdiff.judge.tables import Verdict
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import POINT_TO_POINT

FINDING: Final = (Verdict.PRECISION, Verdict.UNEXPLAINED, Verdict.DEFECT, Verdict.BROKEN)
ORDER_RULE: Final = "all ranks of a group issue the same collectives in the same order"
WAIT_RULE: Final = "a result is used after somebody waited for it"
_REDUCING: Final = ("c10d.all_reduce", "c10d.reduce", "c10d.reduce_scatter")
_SAME_EVERYWHERE: Final = ("c10d.all_reduce", "c10d.all_gather", "c10d.broadcast")
USED: Final = '"used_pending"'
_SHOWN: Final = 3


@dataclass(frozen=True)
class Told:
    """A finding, or a notice, at a call of one file of the trace. `local.calls` is (-1, call)."""

    file: int
    local: Local

    @property
    def call(self) -> int:
        """The call's row in its file."""
        return self.local.calls[1]


@dataclass(frozen=True)
class Checked:
    """What the checks say. `outcomes`: of every collective, by (file, call)."""

    outcomes: Mapping[tuple[int, int], Outcome]
    told: tuple[Told, ...]
    backend: tuple[Told, ...]
    """Notices of how the backend adds, the same in every sum of a dtype."""


def collective_findings(files: Sequence[TraceFile]) -> list[Told]:
    """What the collectives of a trace's files say without a reference: findings and notices, each at a call."""
    return list(check_collectives(files).told)


def check_collectives(files: Sequence[TraceFile]) -> Checked:
    """All checks of collectives (docs/parallel.md). Files of one rank more than once are children of a process: the first counts."""
    first: dict[int, int] = {}
    for number, file in enumerate(files):
        if file.rank is not None:
            first.setdefault(file.rank, number)
    every = [one for number in first.values() for one in issued(files[number], number)]
    cut_short = [rank for rank, number in first.items() if not files[number].complete]
    rounds, partings = rounds_of(every, cut_short)
    outcomes: dict[tuple[int, int], Outcome] = {}
    told: list[Told] = [_parted(parting) for parting in partings]
    judged = [(one, _judged(one, files, first)) for one in rounds]
    judged, backend = _of_the_backend(judged)
    for one, outcome in judged:
        for part in one.parts:
            outcomes[part.file, part.call] = outcome
        if outcome.verdict in FINDING:
            told.append(_told(one, outcome))
    messages, missing = unmatched_messages([one for one in every if one.operator in POINT_TO_POINT], files, set(first), set(cut_short))
    outcomes |= messages
    told += [Told(call.file, _local(call, outcome, cause)) for call, outcome, cause in missing]
    for call in every:
        outcomes.setdefault((call.file, call.call), Outcome(Verdict.NOT_COMPARABLE, "the ranks part before it"))
    told += _unfinished(every, cut_short)
    told += _used_pending(files, first)
    return Checked(outcomes, tuple(told), tuple(backend))


def _of_the_backend(judged: list[tuple[Round, Outcome]]) -> tuple[list[tuple[Round, Outcome]], list[Told]]:
    """Partial sums in a dtype are how the backend adds it, unless another sum of that dtype was added in fp32: said once, and no finding.

    What a backend accumulates in is nowhere declared; only a sum that is worse than its neighbours is one that lost something.
    """
    dtypes = [one.parts[0].said[0][0] if one.parts[0].said else "" for one, _ in judged]
    wide = {dtype for dtype, (_, outcome) in zip(dtypes, judged, strict=True) if outcome.evidence.get(PARTIAL_SUMS) == "float32"}
    found: list[tuple[Round, Outcome]] = []
    firsts: dict[str, list[tuple[Round, Outcome]]] = {}
    for dtype, (one, outcome) in zip(dtypes, judged, strict=True):
        if outcome.verdict == Verdict.PRECISION and dtype not in wide:
            firsts.setdefault(dtype, []).append((one, outcome))
            within = Verdict.ORDER_EXACT if "order" in outcome.evidence else Verdict.ORDER_CONSISTENT
            outcome = replace(outcome, verdict=within, statement=None, rule=outcome.rule + f", partial sums in {dtype}", kind="")
        found.append((one, outcome))
    notices = []
    for dtype, some in firsts.items():
        one, outcome = some[0]
        said = f"every sum over ranks in {dtype} that tells ({len(some)}) rounds each partial sum to {dtype}: {outcome.statement}"
        notices.append(Told(one.parts[0].file, _notice(one.parts[0], "collective-precision", said)))
    return found, notices


def _local(call: Issued, outcome: Outcome, cause: str | None, **evidence: Any) -> Local:
    shown = {"group": str(call.group).removeprefix("group "), "sequence": call.sequence, **outcome.evidence, **evidence}
    shown["ranks"] = list(outcome.ranks or call.group.ranks)
    return Local(
        (-1, call.call),
        outcome.position,
        outcome.verdict,
        outcome.statement or "",
        outcome.measured,
        outcome.allowed,
        outcome.rule,
        cause=cause,
        kind=outcome.kind,
        evidence=shown,
    )


def _told(one: Round, outcome: Outcome) -> Told:
    at = next((part for part in one.parts if part.rank in outcome.ranks), one.parts[0])
    return Told(at.file, _local(at, outcome, None if outcome.verdict == Verdict.PRECISION else "collective-mismatch"))


def _parted(parting: Parting) -> Told:
    ranks = () if parting.rank is None else (parting.rank,)
    outcome = Outcome(Verdict.DEFECT, parting.statement, rule=ORDER_RULE, position="call", ranks=ranks, measured=1.0)
    issued_by = {str(rank): str(call) for rank, call in parting.calls.items()}
    local = _local(parting.at, outcome, "collective-order", issued=issued_by)
    return Told(parting.at.file, replace(local, evidence={**local.evidence, "sequence": parting.sequence}))


# one collective


def _judged(one: Round, files: Sequence[TraceFile], first: Mapping[int, int]) -> Outcome:
    """What is said of one collective that all recorded ranks issued alike."""
    operator = one.parts[0].operator
    if operator == "c10d.barrier":
        return Outcome(Verdict.NOT_COMPARABLE, "a barrier moves no data")
    if operator not in _REDUCING and operator not in MOVING:
        return Outcome(Verdict.NOT_COMPARABLE, f"{operator} is not checked")
    for part in one.parts:
        if part.ended != "finished":
            what = f"raised {part.why}" if part.ended == "raised" else "did not finish before the recording ended"
            return Outcome(Verdict.NOT_COMPARABLE, f"on rank {part.rank} it {what}")
    try:
        if one.absent:
            missing = [rank for rank in one.absent if rank not in first]
            why = f"rank {listed(missing)} has no file here" if missing else f"rank {listed(list(one.absent))} recorded no such call"
            differing = _different_bits(one, files)
            return differing or Outcome(Verdict.NOT_COMPARABLE, f"{why}: what it put in is not known")
        found = _reductions(one, files) if operator in _REDUCING else _movements(one, files)
        wrong = found.verdict in (Verdict.DEFECT, Verdict.BROKEN, Verdict.NOT_COMPARABLE)
        return found if wrong else _different_bits(one, files) or found
    except TraceError as error:
        return Outcome(Verdict.NOT_COMPARABLE, str(error))


def _different_bits(one: Round, files: Sequence[TraceFile]) -> Outcome | None:
    """That ranks which must hold the same do not; None where they do, or need not."""
    if one.parts[0].operator not in _SAME_EVERYWHERE or len({len(part.outputs) for part in one.parts}) > 1:
        return None
    classes: dict[Any, list[int]] = {}
    for part in one.parts:
        file = files[part.file]
        classes.setdefault(tuple(file.fingerprint(value) or ("unknown", value) for value in part.outputs), []).append(part.rank)
    if len(classes) < 2 or any(print_[0] == "unknown" for key in classes for print_ in key):
        return None
    most = max(classes.values(), key=len)
    others = [rank for ranks in classes.values() if ranks is not most for rank in ranks]
    alone = tuple(others) if len(most) > len(others) else ()
    groups = "; ".join(f"rank {listed(ranks)}" for ranks in classes.values())
    said = f"the ranks did not get the same bits: {len(classes)} different results ({groups})"
    return Outcome(Verdict.DEFECT, said, float(len(classes) - 1), 0.0, "all ranks get the same bits", ranks=alone)


def _reductions(one: Round, files: Sequence[TraceFile]) -> Outcome:
    """The results of a reduction, each distinct one once; the worst, and what is wrong with which rank."""
    parts, ranks = one.parts, [part.rank for part in one.parts]
    operator, op = parts[0].operator, parts[0].op
    if op is None or op == "premul_sum":
        return Outcome(Verdict.NOT_COMPARABLE, "which reduction it is was not recorded" if op is None else "premul_sum is not checked")
    getting = [at for at, part in enumerate(parts) if operator != "c10d.reduce" or part.rank == part.destination]
    found: list[tuple[list[int], Outcome]] = []
    if operator == "c10d.reduce_scatter":
        for at in getting:
            found += [([ranks[at]], outcome) for outcome in _scattered(one, files, at)]
    else:
        count = min(len(part.inputs) for part in parts)
        for i in range(count):
            inputs = [files[part.file].read(part.inputs[i]).reshape(-1) for part in parts]
            classes: dict[Any, list[int]] = {}
            for at in getting:
                part = parts[at]
                if i < len(part.outputs):
                    print_ = files[part.file].fingerprint(part.outputs[i])
                    classes.setdefault(print_ or at, []).append(at)
            for members in classes.values():
                part = parts[members[0]]
                got = files[part.file].read(part.outputs[i]).reshape(-1)
                who = ranks[members[0]] if len(members) == 1 else -1
                outcome = reduced(inputs, got, files[part.file].dtype_name(part.outputs[i]), op, ranks, who)
                found.append(([ranks[at] for at in members], replace(outcome, position=f"out[{i}]")))
    return _worst(found, len(getting))


def _scattered(one: Round, files: Sequence[TraceFile], at: int) -> Iterator[Outcome]:
    """The part of a reduce_scatter that the rank of number `at` got, of each tensor."""
    parts, mine = one.parts, one.parts[at]
    ranks, count = [part.rank for part in parts], len(parts)
    file = files[mine.file]
    for i, value in enumerate(mine.outputs):
        inputs = []
        for part in parts:
            if part.layout == "list":
                given = [files[part.file].read(part.inputs[at]).reshape(-1)] if len(part.inputs) == count else []
            else:
                whole = files[part.file].read(part.inputs[i]).reshape(-1) if i < len(part.inputs) else np.empty(0)
                given = [np.split(whole, count)[at]] if len(whole) and len(whole) % count == 0 else []
            inputs += given
        if len(inputs) < count:
            yield Outcome(Verdict.NOT_COMPARABLE, "what was put in does not divide into a part for each rank")
        else:
            got = file.read(value).reshape(-1)
            yield replace(reduced(inputs, got, file.dtype_name(value), mine.op or "sum", ranks, mine.rank), position=f"out[{i}]")


def _movements(one: Round, files: Sequence[TraceFile]) -> Outcome:
    parts = one.parts
    inputs = [[bits(files[part.file], value) for value in part.inputs] for part in parts]
    rows = [[(files[part.file].shape(value) or (1,))[0] for value in part.inputs] for part in parts]
    if parts[0].operator == "c10d.all_to_all":
        sent = [
            pieces_to(part, given, lengths, len(parts)) or list(given) for part, given, lengths in zip(parts, inputs, rows, strict=True)
        ]
    else:
        sent = inputs
    every = [Piece(giver, piece) for giver, given in enumerate(sent) for piece in given]
    found: list[tuple[list[int], Outcome]] = []
    getting = [at for at, part in enumerate(parts) if part.outputs and part.destination in (None, part.rank)]
    for at in getting:
        pieces = expected(parts, inputs, rows, at)
        if pieces is None:
            found.append(([parts[at].rank], Outcome(Verdict.NOT_COMPARABLE, "what was put in does not divide into a piece for each rank")))
            continue
        got = [bits(files[parts[at].file], value) for value in parts[at].outputs]
        joined = (
            np.concatenate(got) if len({piece.dtype for piece in got}) == 1 else np.concatenate([piece.view(np.uint8) for piece in got])
        )
        found.append(([parts[at].rank], moved(pieces, joined, every, parts, at)))
    return _worst(found, len(getting))


def _worst(found: Sequence[tuple[list[int], Outcome]], getting: int) -> Outcome:
    """One outcome of those of all ranks: the worst, and where several are wrong, all of them in its words."""
    if not found:
        return Outcome(Verdict.NOT_COMPARABLE, "nothing that came out was recorded")
    wrong = [(ranks, outcome) for ranks, outcome in found if outcome.verdict in (Verdict.DEFECT, Verdict.BROKEN)]
    if not wrong:
        unknown = [outcome for _, outcome in found if outcome.verdict == Verdict.NOT_COMPARABLE]
        return unknown[0] if unknown else max((outcome for _, outcome in found), key=lambda one: (one.verdict, one.measured))
    worst = max((outcome for _, outcome in wrong), key=lambda one: (one.verdict, one.measured))
    ranks = tuple(dict.fromkeys(rank for some, _ in wrong for rank in some))
    statements = list(dict.fromkeys(_on(some, outcome, getting) for some, outcome in wrong))
    more = f"; and {len(statements) - _SHOWN} more" if len(statements) > _SHOWN else ""
    return replace(worst, statement="; ".join(statements[:_SHOWN]) + more, ranks=ranks)


def _on(ranks: Sequence[int], outcome: Outcome, getting: int) -> str:
    said = outcome.statement or ""
    return said if len(ranks) == getting or f"rank {ranks[0]}" in said[:20] else f"rank {listed(list(ranks))}: {said}"


# what was never waited for


def _unfinished(every: Sequence[Issued], cut_short: Sequence[int]) -> Iterator[Told]:
    """Notices: collectives that raised, or that nobody waited for, by group and kind; a run that hung ends in one."""
    groups: dict[Any, list[Issued]] = {}
    known: dict[Any, list[Issued]] = {}
    for one in every:
        known.setdefault((one.group, one.sequence), []).append(one)
        if one.ended != "finished":
            groups.setdefault((one.group, one.ended), []).append(one)
    for (_, ended), calls in groups.items():
        first = min(calls, key=lambda one: one.sequence)
        ranks = sorted({one.rank for one in calls if one.sequence == first.sequence})
        done = sorted({one.rank for one in known[first.group, first.sequence] if one.ended == "finished"})
        if ended == "raised":
            kind, said = "collective-failed", f"number {first.sequence} of {first.group} failed on rank {listed(ranks)}: {first.why}"
        else:
            kind = "collective-not-waited"
            what = "had not finished when the recording ended" if first.rank in cut_short else "was never waited for"
            said = f"number {first.sequence} of {first.group} {what} on rank {listed(ranks)}: its result is not known"
        more = f"; {len(calls) - len(ranks)} later ones neither" if len(calls) > len(ranks) else ""
        beside = f"; rank {listed(done)} finished it" if done else ""
        yield Told(first.file, _notice(first, kind, f"{first.name} {said}{beside}{more}"))


def _notice(call: Issued, kind: str, statement: str) -> Local:
    return Local((-1, call.call), "out[0]", Verdict.NOT_COMPARABLE, statement, 0.0, 0.0, WAIT_RULE, kind=kind, notice=True)


def _used_pending(files: Sequence[TraceFile], first: Mapping[int, int]) -> Iterator[Told]:
    """Values that were used before anybody waited for the collective that writes them; the first use of each, all ranks together."""
    found: dict[Any, tuple[Told, list[int]]] = {}
    for rank, number in first.items():
        file = files[number]
        details = np.asarray(file.calls.detail)
        noted = [text for text in np.unique(details).tolist() if USED in (file.text(text) or "")]
        seen: set[Any] = set()
        for call in np.flatnonzero(np.isin(details, noted)).tolist():
            for use in _uses(file, call):
                if (use["group"], use["sequence"]) in seen:
                    continue
                seen.add((use["group"], use["sequence"]))
                told = Told(number, _pending(file, call, use))
                key = (file.site(call), int(file.calls.step[call]), int(file.calls.occurrence[call]), use["group"], use["sequence"])
                found.setdefault((*key, told.local.notice), (told, []))[1].append(rank)
    for told, ranks in found.values():
        yield replace(told, local=replace(told.local, evidence={**told.local.evidence, "ranks": ranks}))


def _uses(file: TraceFile, call: int) -> Iterator[dict[str, Any]]:
    detail = file.json(int(file.calls.detail[call]))
    uses = detail.get("used_pending") if isinstance(detail, dict) else None
    for use in uses if isinstance(uses, list) else []:
        if isinstance(use, dict) and isinstance(use.get("group"), str) and type(use.get("sequence")) is int:
            yield use


def _pending(file: TraceFile, call: int, use: Mapping[str, Any]) -> Local:
    row = use.get("call")
    issued_at = file.site(row) if type(row) is int and 0 <= row < len(file.calls) else "a call that was not recorded"
    lucky = use.get("completed") is True
    ending = "it was complete by then, which nothing made sure of" if lucky else "it was still being written"
    said = f"uses the result of {issued_at} (number {use['sequence']} of group {use['group']}) before anybody waited for it: {ending}"
    return Local(
        (-1, call),
        "in",
        Verdict.NOT_COMPARABLE if lucky else Verdict.DEFECT,
        said,
        0.0 if lucky else 1.0,
        0.0,
        WAIT_RULE,
        cause=None if lucky else "collective-not-waited",
        kind="collective-not-waited" if lucky else "",
        evidence={"group": use["group"], "sequence": use["sequence"], "collective": issued_at},
        notice=lucky,
    )
