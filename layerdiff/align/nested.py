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
_BETTER: Final = 0.9
"""How much better a less plain reading must fit."""
_FURTHER: Final = 2.5
"""How much worse than a reading that was found one must fit at least, not to be tried: what it would have kept out is replaced too."""
_ROUNDING: Final = 1e-9
"""Relative error that sums of float64 may make."""
Readings = Callable[[int, Sequence[int]], Iterator[tuple[str, list[NDArray[np.intp]]]]]
Infer = Callable[[Array, Sequence[Array]], Placement]


def infer_nested(reference: Array, parts: Sequence[Array], readings: Readings, infer: Infer) -> Placement | None:
    """The grid reading that fits best, the plainest of equals; None where none fits.

    `readings`: of parts of these sizes along a dimension; `infer`: the placement inside one group. What cannot fit nearly as well as a
    reading that was found is not tried.
    """
    tried = [(groups, outer) for groups in _grids(len(parts)) for outer in _outer(reference, parts, groups, readings)]
    least = [_least_error(outer.part(reference, 0), [parts[rank] for rank in groups[0]]) for groups, outer in tried]
    found: dict[int, Placement] = {}
    reached = np.inf
    for number in sorted(range(len(tried)), key=lambda one: (least[one], one)):
        if np.isinf(least[number]) or least[number] > _FURTHER * reached + _ROUNDING:
            break
        placement = _with_inner(reference, parts, *tried[number], infer)
        if placement is not None and placement.error < FITS:
            found[number], reached = placement, min(reached, placement.error)
    best: Placement | None = None
    for number in sorted(found):
        if best is None or found[number].error < _BETTER * best.error:
            best = found[number]
    return best


def _least_error(whole: Array, parts: Sequence[Array]) -> float:
    """An error under which no grid reading can be, infinity where there is none: parts that hold each place once have the same sums."""
    once = [dim for dim in range(whole.ndim) if whole.shape[dim] > 1 and any(part.shape[dim] == 1 for part in parts)]
    held = sum(part.size for part in parts)
    if held < whole.size and not once:
        return np.inf  # places are left out; along a dimension of size one a part may stand for all
    if held != whole.size or not held or whole.dtype.kind != "f" or any(_uniform(whole, dim) for dim in once):
        return 0.0
    cut = tuple(dim for dim in range(whole.ndim) if any(part.shape[dim] != whole.shape[dim] for part in parts))
    each = whole.size // max(1, int(np.prod([whole.shape[dim] for dim in range(whole.ndim) if dim not in cut])))
    with np.errstate(all="ignore"):
        apart = np.sum(whole, axis=cut, dtype=np.float64) - np.sum([np.sum(part, axis=cut, dtype=np.float64) for part in parts], axis=0)
        size = float(np.sum(np.square(whole, dtype=np.float64)))
        least = (float(np.sum(np.square(apart))) / (each * size)) ** 0.5 if size > 0 else 0.0
    return least if np.isfinite(least) else 0.0


def _uniform(x: Array, dim: int) -> bool:
    """Whether `x` is the same at every place of a dimension."""
    return bool(np.array_equal(x, np.broadcast_to(np.take(x, [0], axis=dim), x.shape)))


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
    each: list[Placement] = []
    for i, group in enumerate(groups):
        one = infer(outer.part(reference, i), [parts[rank] for rank in group])
        if one.kind == "unknown" or not one.fits or (each and (one.kind, one.name) != (each[0].kind, each[0].name)):
            return None
        if outer.kind == one.kind == "replicated":
            return None  # said without groups
        if one.twice or not one.covers(outer.part_shape(reference.shape, i)):
            return None  # a grid leaves no place out, and holds none twice
        each.append(one)
    first = each[0]
    error = max(one.error for one in each)
    listed = " | ".join(", ".join(map(str, group)) for group in groups[:4]) + (" | ..." if len(groups) > 4 else "")
    inside = "the ranks of each group add up to it" if first.kind == "partial" else first.name
    over = "each group the whole" if outer.kind == "replicated" else f"groups {outer.name}"
    kind: Kind = "nested"
    name = f"{over}; inside, {inside} (groups {listed})"
    return Placement(kind, name, outer.dim, error=error, groups=groups, outer=outer, inner=replace(first, also=()))
