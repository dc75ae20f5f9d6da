"""The ranks' logical values on the reference's own program: what each module handed on against what the program makes of what came in.

Local and exact as with one process, but for one thing: the ranks' own programs are not run, so what is computed is held against the
reference's program, within the rounding of the ranks' dtypes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import refilled
from layerdiff.errors import TraceError
from layerdiff.judge.exact import judge_exactly
from layerdiff.judge.found import Found
from layerdiff.judge.pairs.placed import Part, Placed
from layerdiff.judge.programs.constants import as_mask
from layerdiff.judge.tables import BY_THRESHOLDS, Columns, Texts
from layerdiff.replay.overlaid import Laid, Overlaid, boundaries
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

_MOST_ELEMENTS = 1 << 28
"""Elements of all values that are laid over a program at once; a larger comparison is judged by thresholds."""


def judge_logically(
    sites: dict[str, NDArray[Any]],
    pairs: Columns,
    texts: Texts,
    reference: TraceFile,
    targets: Sequence[TraceFile],
    ranks: Sequence[tuple[Part, ...]],
    placed: Mapping[int, Placed],
    trust: Collection[str] = (),
) -> Iterator[tuple[int, int, list[Found]]]:
    """Judge the module calls of a ranked comparison; fills their exact columns. Hands out (done, all, findings so far)."""
    modules = np.flatnonzero((sites["kind"] == CallKind.MODULE) & (sites["reference_call"] >= 0) & (sites["target_call"] >= 0))
    laid = _laid(sites, pairs, reference, targets, ranks, placed)
    if laid is None:
        return
    weights = set(np.unique(np.asarray(pairs["reference_value"])[np.asarray(pairs["role"]) == Role.WEIGHT]).tolist())
    overlaid = Overlaid(reference, laid, (boundaries(reference) | weights) - set(laid))
    own = {name: np.array(column) for name, column in sites.items()}
    own["target_call"] = own["reference_call"].copy()
    rows = np.flatnonzero(np.asarray(sites["reference_call"]) >= 0)  # of operators too: one of them is named
    yield from judge_exactly(own, pairs, texts, Both(reference, overlaid), rows, trust)
    known = np.setdiff1d(modules, _handing_on_otherwise(pairs, placed))  # of a value that the ranks have in two ways nothing was held
    for name in ("exact", "exact_measured", "exact_allowed", "exact_rule", "statement"):
        kept = np.asarray(sites["exact"])[known] == BY_THRESHOLDS if name == "exact" else slice(None)
        sites[name][known[kept]] = own[name][known[kept]]


def _handing_on_otherwise(pairs: Columns, placed: Mapping[int, Placed]) -> NDArray[np.int64]:
    """The rows of calls of which ranks hand on different values where they should hand on the same."""
    outputs = [pair for pair, where in placed.items() if where.equal is False and pairs["role"][pair] == Role.OUTPUT]
    return np.unique(np.asarray(pairs["site"])[outputs]).astype(np.int64)


def _laid(
    sites: Columns,
    pairs: Columns,
    reference: TraceFile,
    targets: Sequence[TraceFile],
    ranks: Sequence[tuple[Part, ...]],
    placed: Mapping[int, Placed],
) -> dict[int, Laid] | None:
    """By value of the reference the logical value of the ranks, without those that they have in two ways; None where it is too much.

    Without numbers of its own such a value is computed by the program, or what reads it is judged by thresholds.
    """
    kinds = np.asarray(sites["kind"])[np.asarray(pairs["site"])]
    found: dict[int, Laid] = {}
    seen: dict[int, tuple[Part, ...]] = {}
    torn: set[int] = set()
    total = 0
    for pair, where in placed.items():
        value, parts = int(pairs["reference_value"][pair]), ranks[pair]
        if kinds[pair] != CallKind.MODULE or value in torn or seen.get(value) == parts:
            continue
        shape = where.shape or reference.shape(value)
        if where.placement.kind == "unknown" or not where.placement.fits or not where.placement.covers(shape):
            continue
        if len(where.files) == 1 and where.placement.kind == "sharded":  # matched rows: of another value perhaps in another order
            continue
        if where.equal is False:  # ranks that should hold the same and do not: whose is it? where they part is said elsewhere
            torn.add(value)
            found.pop(value, None)
            continue
        parts = tuple(part for part in parts if part[0] in where.files)
        if not parts or not all(targets[file].has_bytes(one) for file, one in parts):
            continue
        try:
            made = _joined(reference, value, targets, parts, where)
        except TraceError:
            continue
        known = found.get(value)
        if known is None:
            found[value], seen[value] = made, ranks[pair]
            total += made.numbers.size
            if total > _MOST_ELEMENTS:
                return None
        elif known.dtype != made.dtype or not np.array_equal(known.numbers, made.numbers, equal_nan=made.numbers.dtype.kind == "f"):
            torn.add(value)
            del found[value]
    return found


def _joined(reference: TraceFile, value: int, targets: Sequence[TraceFile], parts: tuple[Part, ...], where: Placed) -> Laid:
    numbers = [targets[file].read(one) for file, one in where.standing(parts)]
    whole = where.placement.joined(numbers, where.shape or reference.shape(value))
    if where.ours is not None:  # what the reference filled it up with
        whole = refilled(where.ours, where.ours.divided(whole, 1), [reference.read(value)])[0]
    name = targets[parts[0][0]].dtype_name(parts[0][1])
    if "bool" in (name, reference.dtype_name(value)) and name != reference.dtype_name(value):  # the program reads a mask in its own way
        like = _as_kept(reference.read(value), reference.dtype_name(value))
        return Laid(reference.dtype_name(value), as_mask(_as_kept(np.asarray(whole), name), like))
    return Laid(name, np.asarray(whole))


def _as_kept(numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
    return numbers.astype(np.bool_) if dtype == "bool" else numbers
