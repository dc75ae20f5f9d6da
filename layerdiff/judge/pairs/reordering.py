"""Batches of which the target has the requests in another order, as a server has that sorts them: told by what the roots were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import FITS
from layerdiff.align.placements import relative_error
from layerdiff.errors import TraceError
from layerdiff.judge.tables import Texts
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.enclosing import outermost
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.reordered import Reordered, Requests
from layerdiff.trace.schema import CallKind, Role

Columns = Mapping[str, NDArray[Any]]
_LONGEST: Final = 1 << 24
"""Bytes of ids that are read."""


@dataclass(frozen=True)
class Sorted:
    """A root of which the target has the requests in another order: `order[i]`, which of the reference's is its request i."""

    site: str
    order: tuple[int, ...]


def in_the_targets_order(
    pairs: Columns, sites: Columns, texts: Texts, files: Both[tuple[TraceFile, ...]]
) -> tuple[Both[tuple[TraceFile, ...]], tuple[Sorted, ...]]:
    """The files, the reference's requests in the target's order, and where they were in another."""
    orders: dict[tuple[int, int], dict[int, Requests]] = {}
    found: list[Sorted] = []
    last: dict[int, NDArray[np.intp]] = {}
    roots = (sites["kind"] == CallKind.MODULE) & (sites["parent"] < 0) & (sites["reference_call"] >= 0)
    inputs = np.flatnonzero(roots[pairs["site"]] & (pairs["role"] == Role.INPUT))
    for number, row in enumerate(np.flatnonzero(roots).tolist()):
        here, there = int(sites["reference_file"][row]), int(sites["target_file"][row])
        own = inputs[pairs["site"][inputs] == row].tolist()
        both = Both(files.reference[here], files.target[there])
        given = [] if not last and _same_bits(pairs, both, own) else list(_given(pairs, texts, both, own))
        if not given:
            continue
        lengths = {ids.reference.shape[1] for ids in given}
        masked = any((texts[int(pairs["position"][pair])] or "").endswith("attention_mask") for pair in own)
        begins = min(lengths) > 1 and (number == 0 or (masked and len(lengths) == 1))
        order = _order(given, last, begins)
        last = {} if order is None else {order.size: order}
        if order is None:
            continue
        told = all(np.array_equal(ids.reference[order], ids.target) for ids in given)
        requests = Requests(min(lengths), frozenset(lengths - {1}), order, told)
        orders.setdefault((here, there), {})[int(sites["reference_call"][row])] = requests
        found.append(Sorted(texts[int(sites["site"][row])] or "", tuple(order.tolist())))
    reference = list(files.reference)
    for (here, there), of in orders.items():
        handed = _handed(pairs, sites, (here, there), of)
        as_they_are = _as_they_are(Both(files.reference[here], files.target[there]), handed)
        if as_they_are is None:
            return files, ()
        reference[here] = Reordered(files.reference[here], of, as_they_are)
    return Both(tuple(reference), files.target), tuple(found)


@dataclass(frozen=True)
class _Handed:
    """A pair of values that a module is given or hands on, and whether the run itself returns it."""

    values: Both[int]
    requests: Requests
    returned: bool


def _handed(pairs: Columns, sites: Columns, numbers: tuple[int, int], of: Mapping[int, Requests]) -> Iterator[_Handed]:
    """What modules hand on in these steps, each pair once; what the run returns first."""
    files = np.stack([sites["reference_file"], sites["target_file"]], axis=1)
    rows = (sites["kind"] == CallKind.MODULE) & (files == numbers).all(axis=1)
    parents, calls = np.asarray(sites["parent"]), np.asarray(sites["reference_call"])
    top = outermost(parents)
    returned = (parents[pairs["site"]] < 0) & (pairs["role"] == Role.OUTPUT)
    chosen = np.flatnonzero(rows[pairs["site"]] & (pairs["role"] != Role.WEIGHT))
    seen: set[Both[int]] = set()
    for pair in sorted(chosen.tolist(), key=lambda pair: not returned[pair]):
        requests = of.get(int(calls[top[pairs["site"][pair]]]))
        both = Both(int(pairs["reference_value"][pair]), int(pairs["target_value"][pair]))
        if requests is not None and both not in seen:
            seen.add(both)
            yield _Handed(both, requests, bool(returned[pair]))


def _as_they_are(files: Both[TraceFile], handed: Iterator[_Handed]) -> set[int] | None:
    """Values of the reference that have no requests, by their numbers: tables, which are the same in both runs.

    None where some have what neither order explains, and only values are compared: tokens of an expert, in an order of their own.
    """
    by_values = any(CallKind.OPERATOR not in np.asarray(file.calls.kind) for file in files)
    found: set[int] = set()
    for one in handed:
        requests = one.requests
        shapes = [file.shape(value) for file, value in zip(files, one.values, strict=True)]
        sure = requests.are_requests(shapes[0]) or (one.returned and requests.axis(shapes[0]) is not None)
        if shapes[0] != shapes[1] or requests.are_tokens(shapes[0]) or (sure and (len(shapes[0]) > 2 or not by_values)):
            continue
        if not all(_is_number(file, value) for file, value in zip(files, one.values, strict=True)):
            continue
        try:
            ours, theirs = (file.read(value) for file, value in zip(files, one.values, strict=True))
        except TraceError:
            continue
        error = relative_error(requests.sorted(ours), theirs)
        if not sure and (as_it_is := relative_error(ours, theirs)) <= error:
            found.add(one.values.reference)
            error = as_it_is
        if by_values and requests.told and error >= FITS:
            return None
    return found


def _same_bits(pairs: Columns, files: Both[TraceFile], own: Sequence[int]) -> bool:
    prints = [
        [file.fingerprint(int(pairs[f"{side}_value"][pair])) for pair in own]
        for side, file in zip(("reference", "target"), files, strict=True)
    ]
    return prints[0] == prints[1] and None not in prints[0]


def _is_number(file: TraceFile, value: int) -> bool:
    dtype = file.dtype(value)
    return dtype is not None and dtype.kind in ("float", "integer", "boolean") and file.has_bytes(value) and file.count(value) > 0


def _given(pairs: Columns, texts: Texts, files: Both[TraceFile], own: Sequence[int]) -> Iterator[Both[NDArray[np.int64]]]:
    """The ids, masks and positions of a root: a row a request. None where one was not kept, or has another number of requests."""
    values = [Both(int(pairs["reference_value"][pair]), int(pairs["target_value"][pair])) for pair in own]
    kinds = [dtype_named(texts[int(pairs["reference_dtype"][pair])] or "") for pair in own]
    tables = [
        both
        for both, kind in zip(values, kinds, strict=True)
        if kind is not None and kind.kind in ("integer", "boolean") and len(files.reference.shape(both.reference)) == 2
    ]
    shapes = [(file.shape(value)) for both in tables for file, value in zip(files, both, strict=True)]
    if len({shape[:1] for shape in shapes}) != 1 or shapes[0][0] < 2 or shapes[0::2] != shapes[1::2]:
        return
    if any(int(file.values.nbytes[value]) > _LONGEST for both in tables for file, value in zip(files, both, strict=True)):
        return
    try:
        read = [Both(files.reference.read(both.reference), files.target.read(both.target)) for both in tables]
    except TraceError:
        return
    yield from (both.map(lambda ids: ids.astype(np.int64)) for both in read)


def _order(given: Sequence[Both[NDArray[np.int64]]], last: Mapping[int, NDArray[np.intp]], begins: bool) -> NDArray[np.intp] | None:
    """For each request of the target which of the reference's it is, by all that they were given; None where they are in one order.

    `last`: of the step before. `begins`: whether requests begin here. Those that go on have that order: other tokens are a fault.
    """
    ours, theirs = (np.concatenate(side, axis=1) for side in zip(*given, strict=True))
    before = last.get(len(ours))
    if before is not None and np.array_equal(ours[before], theirs):
        return before
    if np.array_equal(ours, theirs):
        return None
    sorting = [np.lexsort(side.T[::-1]) for side in (ours, theirs)]
    if begins and np.array_equal(ours[sorting[0]], theirs[sorting[1]]):
        order = np.empty(len(ours), np.intp)
        order[sorting[1]] = sorting[0]
        return order
    return None if begins else before
