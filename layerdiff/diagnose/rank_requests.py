"""Requests of a batch that no rank runs, where ranks share them out: told by the ids of each, which are the reference's or they are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.judge.classes import EMBEDDING, module_class
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Ids = NDArray[np.int64]
"""Shape (requests, tokens)."""


def notices_of_requests(values: RankValues, row_of: Mapping[tuple[int, int], int]) -> Iterator[Notice]:
    """The first place at which ranks are given rows of the reference's ids alone, and some of these are on none.

    Asked of the root and of embeddings: what is chosen for a token, of experts say, is no request. `row_of`: by file and call of a rank.
    """
    inputs = np.flatnonzero((values.pairs["role"] == Role.INPUT) & (values.sites["kind"][values.pairs["site"]] == CallKind.MODULE))
    for pair in inputs.tolist():
        row = int(values.pairs["site"][pair])
        is_embedding = module_class(values.texts[int(values.sites["type"][row])], has_children=False) is EMBEDDING
        if values.sites["parent"][row] >= 0 and not is_embedding:
            continue
        whole = _reference(values, pair)
        told = None if whole is None else _requests(values, whole, pair, [at for at, one in row_of.items() if one == row])
        if whole is not None and told is not None:
            yield Notice("requests-missing", _statement(values, pair, len(whole), *told), defect=True)
            return


def _statement(values: RankValues, pair: int, count: int, of_ranks: dict[int, list[int]], missing: list[int]) -> str:
    held = np.concatenate([np.asarray(own, np.int64) for own in of_ranks.values()])
    twice = np.flatnonzero(np.bincount(held, minlength=count) > 1).tolist()
    runs = "; ".join(f"rank {rank} runs {_listed(own)}" for rank, own in list(of_ranks.items())[:4])
    more = f"; and {len(of_ranks) - 4} more" if len(of_ranks) > 4 else ""
    again = f", and {_listed(twice)} {'is' if len(twice) == 1 else 'are'} on several" if twice else ""
    at = f"{values.site(int(values.pairs['site'][pair]))} {values.texts[int(values.pairs['position'][pair])]}"
    some = "request" if len(missing) == 1 else "requests"
    return f"no rank runs {some} {_listed(missing)} of {count}, counted from 0{again}, by the ids at {at}: {runs}{more}"


def _requests(values: RankValues, whole: Ids, pair: int, calls: Sequence[tuple[int, int]]) -> tuple[dict[int, list[int]], list[int]] | None:
    """What each rank runs of the reference's requests, and those that no rank runs; None where that is not told, or none is missing.

    `calls`: of the ranks. What they are given in other calls of the same module counts, since a rank may run its requests in several.
    """
    numbers: dict[bytes, list[int]] = {}
    for number, ids in enumerate(whole):
        numbers.setdefault(ids.tobytes(), []).append(number)
    of_ranks: dict[int, list[int]] = {}
    for number, call in calls:
        file = values.files.target[number]
        for other in np.flatnonzero((file.calls.module == file.calls.module[call]) & (file.calls.kind == CallKind.MODULE)).tolist():
            for edge in file.edges_of(other):
                if edge.role != Role.INPUT or edge.position != values.texts[int(values.pairs["position"][pair])]:
                    continue
                if file.shape(edge.value)[1:] == (1,):  # a token that was chosen
                    continue
                ids = _read(file, edge.value)
                rows = None if ids is None or ids.shape[1] != whole.shape[1] else [numbers.get(row.tobytes()) for row in ids]
                if rows is None or None in rows:
                    return None
                of_ranks.setdefault(values.rank(number), []).extend(row[0] for row in rows if row)
    seen = {number for own in of_ranks.values() for number in own}
    missing = [number for own in numbers.values() if own[0] not in seen for number in own]
    return (of_ranks, sorted(missing)) if missing and of_ranks else None


def _reference(values: RankValues, pair: int) -> Ids | None:
    placed, parts = values.placed.get(pair), values.held.reference[pair]
    read = [_read(values.files.reference[file], value) for file, value in parts]
    known = [one for one in read if one is not None]
    if not known or len(known) < len(read):
        return None
    if len(known) == 1:
        return known[0]
    if placed is None or placed.ours is None or placed.ours.kind == "unknown":
        return None
    joined = np.asarray(placed.ours.joined(known, values.shape(pair)), np.int64)
    return joined if joined.ndim == 2 else None


def _read(file: TraceFile, value: int) -> Ids | None:
    """Several tokens each of several requests, or of one: a single token is that of many."""
    shape = file.shape(value)
    known = dtype_named(file.dtype_name(value))
    if len(shape) != 2 or shape[1] < 2 or known is None or known.kind != "integer" or not file.has_bytes(value):
        return None
    return np.ascontiguousarray(file.read(value), np.int64)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
