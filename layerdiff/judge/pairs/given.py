"""`given_to`: what the steps of a run are given, by whichever of a root's inputs are positions, or by the cache that it is handed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.judge.pairs.cached import cached, counted
from layerdiff.judge.pairs.requests import Given
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]
LONGEST: Final = 1 << 24
"""Bytes of ids that are read."""
_MOST_POSITIONS: Final = 4
"""Inputs that are tried as positions."""


def given_to(file: TraceFile, steps: Sequence[tuple[int, Array]]) -> Iterator[list[Given]]:
    """What steps are given, by whichever input may be positions, or by what a cache holds that goes from step to step; without any, and by
    what any other state may hold, at last. `steps`: the root call of each, and its tokens."""
    inputs = [{edge.position: edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT} for call, _ in steps]
    masks = [_read(file, own.get(next((at for at in own if at.endswith("attention_mask")), ""))) for own in inputs]
    results = [_results(file, call, ids) for call, ids in steps]
    common = set(inputs[0]).intersection(*inputs)
    likely = sorted(common, key=lambda position: ("position_ids" not in position, "position" not in position, position))
    for position in [one for one in likely if all(_is_whole(file, own[one]) for own in inputs)][:_MOST_POSITIONS]:
        places = [_read(file, own.get(position)) for own in inputs]
        made = [_as_given(ids, mask, x, own) for (_, ids), mask, x, own in zip(steps, masks, places, results, strict=True)]
        known = [one for one in made if one is not None]
        if len(known) == len(made) and any(one.positions is not None for one in known):
            yield known
    made = [_as_given(ids, mask, None, own) for (_, ids), mask, own in zip(steps, masks, results, strict=True)]
    plain = [one for one in made if one is not None]
    calls = [call for call, _ in steps]
    every = list(cached(file, calls, [len(ids) for _, ids in steps]))
    grows = [*counted(file, calls), *(sizes for sizes in every if len({size for size in sizes if size}) > 1)]
    for sizes in (*dict.fromkeys(grows), None, *(one for one in every if one not in grows)):
        yield plain if sizes is None else [_behind(one, count) for one, count in zip(plain, sizes, strict=True)]


def _behind(given: Given, count: int) -> Given:
    return given if given.before is not None else replace(given, before=np.full(len(given.ids), count))


def _as_given(ids: Array, mask: Array | None, positions: Array | None, results: int) -> Given | None:
    """None where the positions are none of these tokens."""
    if mask is not None and (mask.ndim != 2 or len(mask) != len(ids) or mask.shape[1] < ids.shape[1]):
        mask = None
    if positions is not None:
        if (
            positions.shape[-1:] != ids.shape[1:]
            or positions.size not in (ids.size, ids.shape[1])
            or np.array_equal(positions.reshape(-1), ids.reshape(-1))
        ):
            return None
        positions = np.broadcast_to(positions.reshape(-1, ids.shape[1]), ids.shape)
    if mask is None:
        return Given(ids, np.ones(ids.shape, bool), None, positions, results)
    seen = np.count_nonzero(mask[:, : mask.shape[1] - ids.shape[1]], axis=1)
    return Given(ids, mask[:, mask.shape[1] - ids.shape[1] :] != 0, seen, positions, results)


def _results(file: TraceFile, call: int, ids: Array) -> int:
    """How many tokens a root hands on results of, as it does of the last ones; of all where nothing tells."""
    for edge in file.edges_of(call):
        dtype, shape = file.dtype(edge.value), file.shape(edge.value)
        if edge.role != Role.OUTPUT or dtype is None or dtype.kind != "float" or len(shape) not in (2, 3):
            continue
        lines = shape[0] * shape[1] if len(shape) == 3 else shape[0]
        if lines % len(ids) == 0 and lines <= ids.size and (len(shape) == 2 or shape[0] in (1, len(ids))):
            return lines
    return int(ids.size)


def _is_whole(file: TraceFile, value: int) -> bool:
    dtype = file.dtype(value)
    return dtype is not None and dtype.kind == "integer"


def _read(file: TraceFile, value: int | None) -> Array | None:
    """A value of whole numbers; None of another, and of one that was not kept."""
    dtype = None if value is None else file.dtype(value)
    if value is None or dtype is None or dtype.kind not in ("integer", "boolean") or int(file.values.nbytes[value]) > LONGEST:
        return None
    try:
        return file.read(value).astype(np.int64)
    except TraceError:
        return None
