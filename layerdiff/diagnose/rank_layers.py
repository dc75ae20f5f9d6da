"""Layers that run on no rank, and stages of a pipeline that hold the layers of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from layerdiff.align.stages import split_number
from layerdiff.diagnose.rank_values import RULE, RankValues
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.tables import Verdict
from layerdiff.trace.schema import CallKind, Role


def missing_layers(values: RankValues) -> Iterator[Found]:
    """Layers that run on no rank; where others run on several with inputs of their own, a stage that loaded the layers of another."""
    on_none: dict[str, dict[int, int]] = {}
    on_two: dict[str, dict[int, list[int]]] = {}
    held: dict[int, set[int]] = {}
    for pair in range(len(values.pairs["site"])):
        held.setdefault(int(values.pairs["site"][pair]), set()).update(file for file, _ in values.held.target[pair])
    parents = np.asarray(values.sites["parent"])
    gone = np.asarray(values.sites["target_call"]) < 0
    for row in np.flatnonzero(np.asarray(values.sites["kind"]) == CallKind.MODULE).tolist():
        where = split_number(values.texts[int(values.sites["site"][row])] or "")
        if where is None or where[2]:
            continue
        if gone[row] and not (parents[row] >= 0 and gone[parents[row]] and _is_layer(values, int(parents[row]))):
            on_none.setdefault(where[0], {}).setdefault(where[1], row)
        elif len(held.get(row, ())) > 1 and any(_ranks_differ(values, pair) for pair in values.pairs_of(row, Role.INPUT)):
            on_two.setdefault(where[0], {}).setdefault(where[1], sorted(held[row]))
    for before, layers in on_none.items():
        twice = on_two.get(before, {})
        numbers = sorted(layers)
        said = f"{_listed(before, numbers)} on no rank"
        cause, row = "layer-missing", layers[numbers[0]]
        if twice:
            cause = "pp-layer-offset"
            ranks = sorted({values.rank(file) for files in twice.values() for file in files})
            said += f", and {_listed(before, sorted(twice))} on ranks {', '.join(map(str, ranks))}: a stage holds the layers of another"
        calls = int(values.sites["reference_call"][row]), -1
        yield Found(
            row, Local(calls, "out", Verdict.DEFECT, said, float(len(numbers)), 0.0, RULE, cause=cause, evidence={"layers": numbers})
        )


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
