"""Placements of ranks that form a grid: groups that share a part of a value, and hold it among themselves in a way of their own.

Ranks that cut weights lie beside ranks that have another part of the batch: a value is then cut in two dimensions, or is a sum inside
each group of a part. Both are a placement over groups of ranks, and one inside each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import FITS, Kind, Placement

Array = NDArray[Any]
_OUTER: Final = ("contiguous", "strided", "zigzag")
Readings = Callable[[int, Sequence[int]], Iterator[tuple[str, list[NDArray[np.intp]]]]]
Infer = Callable[[Array, Sequence[Array]], Placement]


def infer_nested(reference: Array, parts: Sequence[Array], readings: Readings, infer: Infer) -> Placement | None:
    """The grid reading that fits best, the plainest of equals; None where none fits.

    `readings`: of parts of these sizes along a dimension; `infer`: the placement inside one group.
    """
    best: tuple[float, Placement] | None = None
    for groups in _grids(len(parts)):
        for outer in _outer(reference, parts, groups, readings):
            found = _with_inner(reference, parts, groups, outer, infer)
            if found is not None and found.error < FITS and (best is None or found.error < 0.9 * best[0]):
                best = found.error, found
    return None if best is None else best[1]


def _grids(ranks: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Groups of neighbours, and groups of every n-th rank."""
    for width in range(2, ranks // 2 + 1):
        if ranks % width == 0:
            count = ranks // width
            yield tuple(tuple(range(first, first + width)) for first in range(0, ranks, width))
            yield tuple(tuple(range(first, ranks, count)) for first in range(count))


def _outer(reference: Array, parts: Sequence[Array], groups: Sequence[Sequence[int]], readings: Readings) -> Iterator[Placement]:
    """How the groups may share a value: each has the whole of it, or a part along one dimension."""
    count = len(groups)
    yield Placement("replicated", "replicated")
    for dim in range(reference.ndim):
        sizes = {part.shape[dim] for part in parts}
        if reference.shape[dim] % count or sizes != {reference.shape[dim] // count}:
            continue
        for name, at in readings(reference.shape[dim], [reference.shape[dim] // count] * count):
            if name in _OUTER:
                yield Placement("sharded", f"sharded along {dim}, {name}", dim, tuple(at), reading=name)


def _with_inner(
    reference: Array, parts: Sequence[Array], groups: tuple[tuple[int, ...], ...], outer: Placement, infer: Infer
) -> Placement | None:
    each = [infer(outer.part(reference, i), [parts[rank] for rank in group]) for i, group in enumerate(groups)]
    first = each[0]
    if any(one.kind != first.kind or one.name != first.name or one.kind == "unknown" or not one.fits for one in each):
        return None
    if outer.kind == first.kind == "replicated":
        return None  # said without groups
    shapes = [outer.part_shape(reference.shape, i) for i in range(len(groups))]
    if any(one.twice or not one.covers(shape) for one, shape in zip(each, shapes, strict=True)):
        return None  # a grid leaves no place out, and holds none twice
    error = max(one.error for one in each)
    listed = " | ".join(", ".join(map(str, group)) for group in groups[:4]) + (" | ..." if len(groups) > 4 else "")
    inside = "the ranks of each group add up to it" if first.kind == "partial" else first.name
    over = "each group the whole" if outer.kind == "replicated" else f"groups {outer.name}"
    kind: Kind = "nested"
    name = f"{over}; inside, {inside} (groups {listed})"
    return Placement(kind, name, outer.dim, error=error, groups=groups, outer=outer, inner=replace(first, also=()))
