"""Messages of two ranks: every send has its receive, in order, and what arrives is what was sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np

from layerdiff.errors import TraceError
from layerdiff.judge.collectives.sums import Outcome
from layerdiff.judge.issued import Issued, bits
from layerdiff.judge.tables import Verdict
from layerdiff.trace.reader import TraceFile

RULE: Final = "what arrives is what was sent"
PAIR_RULE: Final = "every send has its receive"
_Way = tuple[str, int | None, int | None, int]
"""Group, sender, receiver, tag."""


def unmatched_messages(
    calls: Sequence[Issued], files: Sequence[TraceFile], there: Collection[int], cut_short: Collection[int]
) -> tuple[dict[tuple[int, int], Outcome], list[tuple[Issued, Outcome, str]]]:
    """What is said of every send and receive, by (file, call), and the findings: (call, outcome, cause).

    The n-th send from one rank to another with one tag belongs to the n-th receive there. `there`: ranks that have a file;
    `cut_short`: ranks whose recording is incomplete.
    """
    outcomes: dict[tuple[int, int], Outcome] = {
        (one.file, one.call): Outcome(Verdict.NOT_COMPARABLE, "it did not finish") for one in calls if one.ended != "finished"
    }
    found: list[tuple[Issued, Outcome, str]] = []
    for way, (given, taken) in messages(calls).items():
        for send, receive in zip(given, taken, strict=False):
            outcome = _held(send, receive, files)
            outcomes[send.file, send.call] = outcomes[receive.file, receive.call] = outcome
            if outcome.verdict == Verdict.DEFECT:
                found.append((receive, outcome, "collective-mismatch"))
        left = [one for one in given[len(taken) :] or taken[len(given) :] if one.ended == "finished"]  # what failed or hung is said itself
        if left:
            outcome, is_fault = _alone(left[0], way, len(left), there, cut_short)
            for one in left:
                outcomes[one.file, one.call] = Outcome(Verdict.NOT_COMPARABLE, outcome.statement)
            if is_fault:
                found.append((left[0], outcome, "collective-order"))
    return outcomes, found


def messages(calls: Iterable[Issued]) -> dict[_Way, tuple[list[Issued], list[Issued]]]:
    """The sends and the receives of each way, in order."""
    found: dict[_Way, tuple[list[Issued], list[Issued]]] = {}
    for one in calls:
        if one.operator == "c10d.send":
            found.setdefault((one.group.name, one.rank, one.destination, one.tag), ([], []))[0].append(one)
        elif one.operator == "c10d.recv":
            found.setdefault((one.group.name, one.source, one.rank, one.tag), ([], []))[1].append(one)
    return found


def _held(send: Issued, receive: Issued, files: Sequence[TraceFile]) -> Outcome:
    if receive.ended != "finished":
        return Outcome(Verdict.NOT_COMPARABLE, f"the receive on rank {receive.rank} did not finish")
    if len(send.inputs) != len(receive.outputs):
        return Outcome(Verdict.NOT_COMPARABLE, "not all of it was recorded")
    try:
        for given, got in zip(send.inputs, receive.outputs, strict=True):
            ours, theirs = bits(files[send.file], given), bits(files[receive.file], got)
            who = f"rank {receive.rank} got from rank {send.rank}"
            if ours.dtype != theirs.dtype or len(ours) != len(theirs):
                said = f"{who} {len(theirs)} elements, and {len(ours)} were sent"
                return Outcome(Verdict.DEFECT, said, 1.0, 0.0, RULE, ranks=(receive.rank,))
            wrong = int(np.count_nonzero(ours != theirs))
            if wrong:
                said = f"{who} other bits than were sent, in {wrong} of {len(ours)} elements (sent at {send.site})"
                return Outcome(Verdict.DEFECT, said, float(wrong), 0.0, RULE, ranks=(receive.rank,))
    except TraceError as error:
        return Outcome(Verdict.NOT_COMPARABLE, str(error))
    return Outcome(Verdict.IDENTICAL, rule=RULE)


def _alone(one: Issued, way: _Way, count: int, there: Collection[int], cut_short: Collection[int]) -> tuple[Outcome, bool]:
    """Messages without their other end; a fault where that end's rank was recorded whole."""
    sent = one.operator == "c10d.send"
    other = way[2] if sent else way[1]
    what = f"{'send to' if sent else 'receive from'} rank {other}"
    if other is None or other not in there:
        why = "the sender is not known" if other is None else f"rank {other} has no file here"
        return Outcome(Verdict.NOT_COMPARABLE, f"{what}: {why}"), False
    missing = "receive" if sent else "send"
    more = f" ({count} in all)" if count > 1 else ""
    said = f"rank {one.rank}'s {what} has no {missing} on rank {other}{more}"
    outcome = Outcome(Verdict.DEFECT, said, float(count), 0.0, PAIR_RULE, position="call", ranks=(other,))
    return outcome, not {one.rank, other} & set(cut_short)
