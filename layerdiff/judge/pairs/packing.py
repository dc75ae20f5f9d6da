"""In which forms the two runs have the values of each step: what is filled up, batches that one has without their padding, and the one
token of each request that one has alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import Forms
from layerdiff.align.filling import NOTHING_FILLED, Fillings
from layerdiff.align.forms import is_turned, without_ones
from layerdiff.align.packing import Packing, nearest_places, packed
from layerdiff.errors import TraceError
from layerdiff.judge.tables import Columns
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.enclosing import root_of
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role
from layerdiff.trace.tokens import Tokens

Array = NDArray[Any]
_LONGEST: Final = 1 << 24
"""Bytes of ids that are read."""
_LARGEST: Final = 1 << 30
"""Bytes of a value by which tokens are told from each other."""
_TELLING: Final = 1024
"""Numbers of each token that are looked at."""
_FEWEST: Final = 4


@dataclass(frozen=True)
class Ends:
    """The tokens of a step that one run has alone, one of each request."""

    row: Packing
    last: bool
    """Whether they are the last ones."""
    first: bool


@dataclass(frozen=True)
class Step:
    """What is told of a pair of steps.

    Attributes:
        packing: where the tokens of each are in the other.
        ends: the tokens that one run has alone, one of each request, by what is nearest to them.
        further: the same of steps that are one, where it is known.
    """

    packing: Packing | None
    ends: Ends | None
    further: tuple[Packing, ...] = ()


class FormsOfSteps:
    """The forms of the steps of two traces. `steps`: by the target's file and root call."""

    def __init__(self, files: Both[tuple[TraceFile, ...]], steps: Mapping[tuple[int, int], Step], fillings: Fillings) -> None:
        self._files = files
        self._of = {
            root: Forms(fillings, step.packing, step.further if step.ends is None else (step.ends.row,)) for root, step in steps.items()
        }
        self._plain = Forms(fillings)
        self.steps = steps

    def at(self, file: int, call: int) -> Forms:
        """Those of a call of the target's file of that number."""
        if not self._of or call < 0:
            return self._plain
        return self._of.get((file, root_of(self._files.target[file].calls.parent, call)), self._plain)


def forms_of_steps(
    sites: Columns,
    pairs: Columns,
    files: Both[tuple[TraceFile, ...]],
    fillings: Fillings = NOTHING_FILLED,
    candidates: Iterable[int] | None = None,
) -> FormsOfSteps:
    """The forms of all steps that a table of sites pairs, of one process with one.

    `candidates`: the pairs of values by which it is told which token of each request one run has; those of two shapes if None.
    """
    if candidates is None:
        candidates = np.flatnonzero((pairs["reference_shape"] != pairs["target_shape"]) & (pairs["role"] != Role.WEIGHT)).tolist()
    by_root: dict[tuple[int, int], list[int]] = {}
    for pair in candidates:
        site = int(pairs["site"][pair])
        there, call = int(sites["target_file"][site]), int(sites["target_call"][site])
        if call >= 0 and sites["kind"][site] == CallKind.MODULE:
            by_root.setdefault((there, root_of(files.target[there].calls.parent, call)), []).append(pair)
    found: dict[tuple[int, int], Step] = {}
    paired = (sites["kind"] == CallKind.MODULE) & (sites["reference_call"] >= 0) & (sites["target_call"] >= 0)
    for row in np.flatnonzero(paired & (sites["parent"] < 0)).tolist():
        here, there = int(sites["reference_file"][row]), int(sites["target_file"][row])
        both = Both(files.reference[here], files.target[there])
        calls = Both(int(sites["reference_call"][row]), int(sites["target_call"][row]))
        if any(int(file.calls.parent[call]) >= 0 for file, call in zip(both, calls, strict=True)):
            continue
        told = of_batches(both, calls)
        if told is not None:
            found[there, calls.target] = told
            continue
        values = [
            Both(int(pairs["reference_value"][pair]), int(pairs["target_value"][pair])) for pair in by_root.get((there, calls.target), ())
        ]
        packing = _packing(both, calls) or _turned(both, calls, values)
        ends = _ends(both, calls, values) if values else None
        if packing is not None or ends is not None:
            found[there, calls.target] = Step(packing, ends)
    return FormsOfSteps(files, found, fillings)


def of_batches(files: Both[TraceFile], calls: Both[int]) -> Step | None:
    """Where the tokens of steps that are one, and have other requests, are in the other run's; None of other steps."""
    known = [file.roots[call].tokens for file, call in zip(files, calls, strict=True) if isinstance(file, Joined) and call in file.roots]
    tokens = next((one for one in known if one is not None), None)
    if tokens is None:
        return None
    side = "target" if tokens.target.batch[0] > 1 else "reference"
    batch, row = (tokens.reference, tokens.target)[:: 1 if side == "reference" else -1]
    every = batch.batch, batch.numbers, (batch.ends.size, 1), batch.ends
    ways = ((lead, ours, theirs) for lead, ours in (every[:2], every[2:]) for theirs in (row.numbers, row.ends))
    whole, *ends = (_beside(side, lead, ours, theirs) for lead, ours, theirs in ways)
    places = _for_all(side, batch, row)
    return Step(whole, None, tuple(one for one in (*ends, places) if one is not None))


def _for_all(side: str, batch: Tokens, row: Tokens) -> Packing | None:
    """Where things are that all requests have alike, such as positions; None where requests lie otherwise."""
    requests, width = batch.batch
    numbers = batch.numbers.reshape(requests, width)
    columns = np.flatnonzero(numbers[0] >= 0)
    if requests < 2 or row.numbers.size != requests * columns.size or (row.numbers < 0).any():
        return None
    if np.any((numbers >= 0) != (numbers[0] >= 0)) or np.any(np.diff(numbers[:, columns]) != 1):
        return None
    return Packing(side, (1, width), columns, np.arange(columns.size), columns.size)


def _beside(side: str, lead: tuple[int, int], ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> Packing | None:
    """Where the tokens of two values are that both have; None where they have none."""
    common = np.intersect1d(ours, theirs)
    common = common[common >= 0]
    places, lines = (np.searchsorted(np.sort(x), common) for x in (ours, theirs))
    places, lines = np.argsort(ours, kind="stable")[places], np.argsort(theirs, kind="stable")[lines]
    return Packing(side, lead, places, lines, theirs.size) if common.size else None


def _ends(files: Both[TraceFile], calls: Both[int], values: Sequence[Both[int]]) -> Ends | None:
    """Which token of each request one run has alone, told from the smallest values that have it in one and all in the other."""
    for side, other in (("reference", "target"), ("target", "reference")):
        batch: TraceFile = getattr(files, side)
        row: TraceFile = getattr(files, other)
        counts = _mask(batch, getattr(calls, side))
        if counts is None:
            ids = next((x for x in _whole_numbers(batch, getattr(calls, side)) if x.ndim == 2), None)
            counts = None if ids is None else np.ones(ids.shape, bool)
        if counts is None or counts.shape[1] < 2 or not counts.any(axis=1).all():
            continue
        shape, requests = (counts.shape[0], counts.shape[1]), np.arange(counts.shape[0])
        last = requests * shape[1] + shape[1] - 1 - np.argmax(counts[:, ::-1], axis=1)
        first = requests * shape[1] + np.argmax(counts, axis=1)
        assumed = Packing(side, shape, last)
        fitting = [both for both in values if assumed.same(*(file.shape(value) for file, value in zip(files, both, strict=True)))]
        for both in sorted(fitting, key=lambda both: int(files.target.values.nbytes[both.target])):
            whole, part = _lines(batch, getattr(both, side), counts.size), _lines(row, getattr(both, other), shape[0])
            if whole is None or part is None:
                continue
            if _goes_on(row, getattr(calls, other), getattr(both, other), counts):
                continue
            places = nearest_places(whole, part, np.isin(np.arange(counts.size), last))
            if places is not None and np.array_equal(np.sort(places // shape[1]), requests):
                return Ends(Packing(side, shape, places), set(places) == set(last.tolist()), set(places) == set(first.tolist()))
            break
    return None


def _goes_on(file: TraceFile, root: int, value: int, counts: NDArray[np.bool_]) -> bool:
    """Whether modules of a root make something of all tokens after a value: it is what an expert was given then, and no end."""
    edges = file.edges
    parents, kinds = file.calls.parent, file.calls.kind
    first = np.full(len(file.values), len(edges), np.int64)
    np.minimum.at(first, np.asarray(edges.value), np.arange(len(edges)))
    later = np.flatnonzero((first[edges.value] > first[value]) & (edges.role == Role.OUTPUT) & (edges.call >= root))
    for edge in later.tolist():
        call = int(edges.call[edge])
        if int(parents[call]) < 0 and call != root:
            if kinds[call] == CallKind.MODULE:
                return False  # the next step
            continue
        shape = file.shape(int(edges.value[edge]))
        if kinds[call] == CallKind.MODULE and (shape[:2] == counts.shape or shape[:1] in ((counts.size,), (int(counts.sum()),))):
            return True
    return False


def _lines(file: TraceFile, value: int, count: int) -> Array | None:
    """The floats of a value as so many lines, of each as many as tell it from others; None where they were not kept."""
    kind = dtype_named(file.dtype_name(value))
    if kind is None or kind.kind != "float" or not file.has_bytes(value) or int(file.values.nbytes[value]) > _LARGEST:
        return None
    try:
        lines = file.read(value).reshape(count, -1)[:, :_TELLING].astype(np.float64)
    except TraceError:
        return None
    return lines if lines.shape[1] >= _FEWEST else None


def _packing(files: Both[TraceFile], calls: Both[int]) -> Packing | None:
    for side, other in (("reference", "target"), ("target", "reference")):
        batch: TraceFile = getattr(files, side)
        mask = _mask(batch, getattr(calls, side))
        ours = [x for x in _whole_numbers(batch, getattr(calls, side)) if x.ndim == 2 and (mask is None or x.shape == mask.shape)]
        rows = [x for x in _whole_numbers(getattr(files, other), getattr(calls, other)) if without_ones(x.shape) == (x.size,)]
        for ids, row in product(sorted(ours, key=_distinct, reverse=True), rows):
            counts = np.ones(ids.shape, bool) if mask is None else mask
            if np.array_equal(ids.reshape(-1), row.reshape(-1)):
                return None  # the row is the batch
            places = None if row.shape == ids.shape else packed(ids, counts, row.reshape(-1))
            if places is not None:
                return Packing(side, (ids.shape[0], ids.shape[1]), places)
    return None


def _turned(files: Both[TraceFile], calls: Both[int], values: Sequence[Both[int]]) -> Packing | None:
    """The tokens of a batch of which one run has the positions before the requests; None where no value says so by its shape."""
    shapes = [tuple(file.shape(value) for file, value in zip(files, both, strict=True)) for both in values]
    leads = {(ours[:2], theirs[:2]) for ours, theirs in shapes if is_turned(ours, theirs)}
    given = [{x.shape for x in _whole_numbers(file, call) if x.ndim == 2} for file, call in zip(files, calls, strict=True)]
    for ours, theirs in sorted(leads):
        sides = [side for side, lead, shapes in zip(("reference", "target"), (ours, theirs), given, strict=True) if lead in shapes]
        if not sides and any(given):
            continue  # other dimensions than those of tokens
        side, batch = (sides or ["reference"])[0], theirs if sides == ["target"] else ours
        mask = next((mask for file, call in zip(files, calls, strict=True) if (mask := _mask(file, call)) is not None), None)
        if mask is not None and mask.shape == batch[::-1]:
            mask = mask.T
        counts = mask if mask is not None and mask.shape == batch else np.ones(batch, bool)
        lines = np.flatnonzero(counts.T)
        places = np.arange(counts.size).reshape(batch).T.reshape(-1)[lines]
        return Packing(side, batch, places, None if counts.all() else lines, counts.size, batch[::-1])
    return None


def _distinct(ids: Array) -> int:
    """Tokens tell requests from each other, where positions are the same for all."""
    return int(np.unique(ids).size)


def _mask(file: TraceFile, call: int) -> NDArray[np.bool_] | None:
    """Shape (requests, positions): where a root was told that there is a token; None where it was told nothing."""
    for edge in file.edges_of(call):
        if edge.role == Role.INPUT and edge.position.endswith("attention_mask") and len(file.shape(edge.value)) == 2:
            try:
                return np.asarray(file.read(edge.value) != 0)
            except TraceError:
                return None
    return None


def _whole_numbers(file: TraceFile, call: int) -> Iterable[Array]:
    """The inputs of a root that may be ids."""
    for edge in file.edges_of(call):
        kind = dtype_named(file.dtype_name(edge.value))
        if edge.role != Role.INPUT or kind is None or kind.kind != "integer" or edge.position.endswith("attention_mask"):
            continue
        if file.has_bytes(edge.value) and int(file.values.nbytes[edge.value]) <= _LONGEST:
            try:
                yield np.asarray(file.read(edge.value))
            except TraceError:
                continue
