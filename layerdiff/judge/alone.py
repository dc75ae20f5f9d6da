"""One trace of many ranks as a table of sites without a reference: a row for every module call and every collective of every rank.

Other operators have a row only where something is said of them. There are no pairs of values: what decides a row is what the ranks
say of each other, kept in the exact columns as for operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.collectives.agreement import FINDING, Told, check_collectives, collective_findings
from layerdiff.judge.collectives.replicas import PART, check_replicas
from layerdiff.judge.collectives.sums import Outcome
from layerdiff.judge.found import Found
from layerdiff.judge.pairs.pairing import Tables, calls_of, handed_state, interned
from layerdiff.judge.tables import Columns, Texts, Verdict
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind

_UNKNOWN = Outcome(Verdict.NOT_COMPARABLE, "nothing of another rank to hold it against")


def ranks_alone(files: Sequence[TraceFile]) -> tuple[dict[str, NDArray[Any]], Columns, Texts, list[Found]]:
    """Sites, pairs (none), texts, and what was found of the files of one trace."""
    checked = check_collectives(files)
    replicas, of_replicas = check_replicas(files)
    told, outcomes = [*checked.told, *checked.backend, *of_replicas], {**replicas, **checked.outcomes}
    tables = Tables()
    row_of: dict[tuple[int, int], int] = {}
    for number, file in enumerate(files):
        _add_file(tables, file, number, {one.call for one in told if one.file == number}, row_of)
    sites, pairs = tables.columns()
    for at, row in row_of.items():
        outcome = outcomes.get(at, _UNKNOWN)
        sites["exact"][row] = int(Verdict.ORDER_CONSISTENT if outcome.verdict in FINDING else outcome.verdict)
        if outcome.verdict != Verdict.NOT_COMPARABLE:
            sites["exact_measured"][row], sites["exact_allowed"][row] = outcome.measured, outcome.allowed
            sites["exact_rule"][row] = tables.texts.intern(outcome.rule)
        sites["statement"][row] = tables.texts.intern(outcome.statement)
    return sites, pairs, tables.texts, found_at_rows(told, row_of)


def ranks_together(files: Sequence[TraceFile]) -> list[Told]:
    """What the ranks of one trace say of each other: findings and notices, but for those that a reference makes idle."""
    return [*collective_findings(files), *(one for one in check_replicas(files)[1] if one.local.kind != PART)]


def _add_file(tables: Tables, file: TraceFile, number: int, named: set[int], row_of: dict[tuple[int, int], int]) -> None:
    calls, described, texts = file.calls, calls_of(file), tables.texts
    kinds = np.asarray(calls.kind)
    operators, handed = interned(texts, file, calls.operator), handed_state(file)
    wanted = (kinds == CallKind.MODULE) | (kinds == CallKind.COLLECTIVE)
    wanted[list(named)] = True
    for call in np.flatnonzero(wanted).tolist():
        above = int(calls.parent[call])
        row_of[number, call] = len(tables.sites)
        tables.sites.append(
            (
                texts.intern(described.site[call]),
                kinds[call],
                texts.intern(described.type[call]),
                operators[call],
                calls.step[call],
                calls.occurrence[call],
                -1 if file.rank is None else file.rank,
                row_of.get((number, above), -1),
                handed[call],
                0,
                number,
                -1,
                call,
                int(Verdict.PENDING),
                -1,
            )
        )


def found_at_rows(told: Sequence[Told], row_of: Mapping[tuple[int, int], int]) -> list[Found]:
    """Findings at the rows of a table of sites; `row_of` by (file, call). What stands at no row is left out."""
    return [Found(row_of[one.file, one.call], one.local) for one in told if (one.file, one.call) in row_of]
