"""Layers that run on no rank, and stages of a pipeline, or chunks of one, that hold the layers of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.global_numbers import split_number
from layerdiff.align.placements import relative_error
from layerdiff.diagnose.rank_values import EXACTLY, RankValues
from layerdiff.errors import TraceError
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.pairs.ranked import RankedTables
from layerdiff.judge.tables import Verdict
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Calls = Sequence[tuple[int, int]]
"""File of a rank, and call."""
_RULE: Final = "ranks: layers that no rank runs"
_SAME: Final = 0.1
"""Relative error up to which a layer is said to be given what another layer is given in the reference."""


@dataclass
class _List:
    """The layers of one list, by their numbers: the first row of each, and of those that no rank runs; all calls; and which run twice."""

    rows: dict[int, int] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    calls: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    twice: set[int] = field(default_factory=set)


def missing_layers(values: RankValues, tables: RankedTables) -> Iterator[Found]:
    """Layers that run on no rank; where others run twice, on inputs of their own, a stage that loaded the layers of another."""
    for before, layers in _lists(values, tables).items():
        if not layers.missing:
            continue
        numbers = sorted(layers.missing)
        row = layers.missing[numbers[0]]
        said, cause, evidence = f"{_listed(before, numbers)} on no rank", "layer-missing", dict[str, Any](layers=numbers)
        if layers.twice:
            cause = "pp-layer-offset"
            twice = {number: layers.calls[number] for number in sorted(layers.twice)}
            ranks = sorted({values.rank(file) for own in twice.values() for file, _ in own})
            where = "twice on rank" if len(ranks) == 1 else "on ranks"
            said += f", and {_listed(before, list(twice))} {where} {', '.join(map(str, ranks))}: "
            instead = _given_instead(values, row, {number: (layers.rows.get(number, -1), own) for number, own in twice.items()})
            if instead is None:
                said += "a stage holds the layers of another"
            else:
                number, files, error = instead
                of = sorted({values.rank(file) for file in files})
                many = f"rank {of[0]} runs" if len(of) == 1 else f"ranks {', '.join(map(str, of))} run"
                said += f"{many} {before}.{number} on what the reference gives {before}.{numbers[0]} (off by {error:.2g})"
                evidence |= {"instead": number, "residual": error, "ranks": of} | ({"rank": of[0]} if len(of) == 1 else {})
        at = int(values.sites["reference_call"][row]), -1
        yield Found(row, Local(at, "out", Verdict.DEFECT, said, float(len(numbers)), 0.0, _RULE, cause=cause, evidence=evidence))


def _lists(values: RankValues, tables: RankedTables) -> dict[str, _List]:
    """By the name of a list of layers what is wrong with the layers in it."""
    of_row: dict[int, list[tuple[int, int]]] = {}
    for call, row in tables.row_of.items():
        of_row.setdefault(row, []).append(call)
    stages = tables.stages.target
    parents = np.asarray(values.sites["parent"])
    gone = np.asarray(values.sites["target_call"]) < 0
    found: dict[str, _List] = {}
    for row in np.flatnonzero(np.asarray(values.sites["kind"]) == CallKind.MODULE).tolist():
        where = split_number(values.texts[int(values.sites["site"][row])] or "")
        if where is None or where[2]:
            continue
        layers = found.setdefault(where[0], _List())
        if values.sites["reference_call"][row] >= 0:
            layers.rows.setdefault(where[1], row)
        if gone[row]:
            if not (parents[row] >= 0 and gone[parents[row]] and _is_layer(values, int(parents[row]))):
                layers.missing.setdefault(where[1], row)
            continue
        calls = of_row.get(row, [])
        layers.calls.setdefault(where[1], []).extend(calls)
        again, apart = values.sites["reference_call"][row] < 0, len({stages[file] for file, _ in calls}) > 1
        if again or apart or any(_ranks_differ(values, pair) for pair in values.pairs_of(row, Role.INPUT)):
            layers.twice.add(where[1])
    return found


def _given_instead(values: RankValues, row: int, twice: Mapping[int, tuple[int, Calls]]) -> tuple[int, list[int], float] | None:
    """Which layer is run on what a missing one is given in the reference: its number, the files, and how far off; None where none is.

    `twice`: row and calls of layers that run twice.
    """
    given = _given(values, row)
    found: list[tuple[float, int, int]] = []
    for number, (its, calls) in twice.items() if given is not None else ():
        right = _given(values, its)
        for file, call in calls:
            own = _input(values.files.target[file], call)
            if given is None or own is None or own.shape != given.shape:
                continue
            error = relative_error(given, own)
            if error <= _SAME and (right is None or right.shape != own.shape or error < relative_error(right, own)):
                found.append((error, number, file))
    if not found:
        return None
    least, number, _ = min(found)
    files = [file for error, one, file in found if one == number and error <= max(2.0 * least, EXACTLY)]
    return number, files, least


def _given(values: RankValues, row: int) -> NDArray[np.float64] | None:
    """The first input of the reference's call of a row."""
    file, call = int(values.sites["reference_file"][row]), int(values.sites["reference_call"][row])
    return _input(values.files.reference[file], call) if row >= 0 and call >= 0 else None


def _input(file: TraceFile, call: int) -> NDArray[np.float64] | None:
    """The first input of a call as numbers; None where it is no float, or was not kept."""
    value = next((edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT), None)
    if value is None or not file.has_bytes(value):
        return None
    try:
        read = file.read(value)
    except TraceError:
        return None
    return read.astype(np.float64) if read.dtype.kind == "f" else None


def _ranks_differ(values: RankValues, pair: int) -> bool:
    """Whether ranks that hold the same places hold other numbers: the layers of one stage never do that."""
    placed = values.placed.get(pair)
    return placed is not None and placed.equal is False


def _is_layer(values: RankValues, row: int) -> bool:
    where = split_number(values.texts[int(values.sites["site"][row])] or "")
    return where is not None and not where[2]


def _listed(before: str, numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"{before}.{listed} {'runs' if len(numbers) == 1 else 'run'}"
