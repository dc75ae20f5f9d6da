"""Weights that one side filled up at the end, as a vocabulary is so that it divides well: told from their numbers, before the rest is read.

A weight that is shorter on one side in one dimension, and agrees with the other's leading places. What is beyond is in one run only: it
is not compared, and whatever it does is seen where it does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import Fillings, leading, places_beside
from layerdiff.align.placement import FITS
from layerdiff.align.placements import relative_error
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.placed import Part
from layerdiff.judge.tables import Texts
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]


@dataclass(frozen=True)
class Filled:
    """A weight that one side filled up: the places that each side has of one dimension, all ranks together."""

    name: str
    sizes: Both[int]


def filled_weights(
    pairs: Mapping[str, NDArray[Any]],
    sites: Mapping[str, NDArray[Any]],
    texts: Texts,
    files: Both[tuple[TraceFile, ...]],
    parts_of: Both[list[tuple[Part, ...]]] | None = None,
) -> tuple[Filled, ...]:
    """The weights that are filled up on one side. `parts_of`: by pair, where ranks are compared."""
    found: dict[str, Filled] = {}
    for pair in np.flatnonzero(np.asarray(pairs["role"]) == Role.WEIGHT).tolist():
        site = int(pairs["site"][pair])
        position = texts[int(pairs["position"][pair])] or ""
        name = f"{texts[int(sites['site'][site])] or ''}.{position}".lstrip(".")
        if name in found:
            continue
        parts = _parts(pairs, sites, pair, site) if parts_of is None else Both(parts_of.reference[pair], parts_of.target[pair])
        sizes = _sizes(files, parts)
        if sizes is not None:
            found[name] = Filled(name, sizes)
    return tuple(found.values())


def _parts(pairs: Mapping[str, NDArray[Any]], sites: Mapping[str, NDArray[Any]], pair: int, site: int) -> Both[tuple[Part, ...]]:
    """Of a pair of single files."""
    own = [((int(sites[f"{side}_file"][site]), int(pairs[f"{side}_value"][pair])),) for side in ("reference", "target")]
    return Both(*own)


def fillings_of(filled: Sequence[Filled]) -> Fillings:
    """The sizes that are filled up."""
    return Fillings(frozenset((one.sizes.reference, one.sizes.target) for one in filled))


def _sizes(files: Both[tuple[TraceFile, ...]], parts: Both[tuple[Part, ...]]) -> Both[int] | None:
    """The places that count, and those that there are, of each side; None where neither is filled up, or nothing tells."""
    shapes = Both(*([side[file].shape(value) for file, value in own] for side, own in zip(files, parts, strict=True)))
    dim = _differing(shapes)
    if dim is None:
        return None
    if not all(side[file].has_bytes(value) for side, own in zip(files, parts, strict=True) for file, value in own):
        return None
    try:
        values = Both(*(_once([side[file].read(value) for file, value in own]) for side, own in zip(files, parts, strict=True)))
    except TraceError:
        return None
    if any(one.dtype.kind not in "f" for side in values for one in side):
        return None
    ours = values.reference[0] if len(values.reference) == 1 else np.concatenate(values.reference, axis=dim)
    size, theirs = ours.shape[dim], values.target[0].shape[dim]
    if all(one.shape == values.target[0].shape for one in values.target) and theirs != size:
        count = min(size, theirs)  # the whole of it on each rank
        if all(relative_error(leading(ours, dim, count), leading(one, dim, count)) < FITS for one in values.target):
            return Both(size, theirs)
    if len(values.target) == 1:
        return None
    count, total = places_beside(ours, values.target, dim), sum(one.shape[dim] for one in values.target)
    if not count or total == size:
        return None
    return Both(size, total if total > size else count)


def _once(parts: list[Array]) -> list[Array]:
    """One of each where all are held equally often: by copies of a model, of all of it or of its parts."""
    distinct: list[Array] = []
    times: list[int] = []
    for part in parts:
        at = next((i for i, one in enumerate(distinct) if one.shape == part.shape and np.array_equal(one, part)), None)
        if at is None:
            distinct.append(part)
            times.append(1)
        else:
            times[at] += 1
    return distinct if len(set(times)) == 1 else parts


def _differing(shapes: Both[list[tuple[int, ...]]]) -> int | None:
    """The one dimension in which what there is of a weight may be filled up; None where shapes alone say that it is not."""
    every = [*shapes.reference, *shapes.target]
    dims = len(every[0]) if every else 0
    if not shapes.reference or not shapes.target or any(len(shape) != dims for shape in every):
        return None
    differing = [dim for dim in range(dims) if len({shape[dim] for shape in every}) > 1]
    if len(differing) != 1:
        return None
    ours, theirs = ([shape[differing[0]] for shape in side] for side in shapes)
    if sum(ours) == sum(theirs):
        return None
    if sum(theirs) > sum(ours) and len(set(theirs)) == 1 and len(theirs) > 1 and sum(ours) % theirs[0] == 0:
        return None  # several ranks hold each part, as heads of keys
    return differing[0]
