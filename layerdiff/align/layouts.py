"""Two layouts of one logical tensor: what the ranks of each hold of it, told from the numbers of both.

Neither is known to be whole. Each reading of the first that its shapes allow makes a tensor, and the second is placed against that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import Fillings, cut_to, infer_filled, leading
from layerdiff.align.matching import MATCHED
from layerdiff.align.placement import FITS, PAD, Placement
from layerdiff.align.placements import APART, as_well, infer, readings, relative_error

Array = NDArray[Any]
_NEARER: Final = 0.25
"""How much better than rank by rank another reading must fit, where weights say that two layouts are one."""
RANK_BY_RANK: Final = "each rank's part beside the same rank's"


def infer_both(
    ours: Sequence[Array], theirs: Sequence[Array], likely: Placement | None = None, same_layout: bool | None = None
) -> tuple[Placement, Array, Placement]:
    """The placements of two layouts of one logical tensor, and that tensor as the first has it.

    Each reading of the first that its shapes allow makes a tensor; of those that the second fits best the plainest is taken. Where the
    layouts are one, every reading fits: then each rank's part is laid beside the same rank's. `same_layout`: None where that is not known.
    """
    beside = None if same_layout is False else _rank_by_rank(ours, theirs)
    if beside is not None and beside[0].error < FITS:
        return beside
    found: list[tuple[float, Any, Any, Any]] = []
    for placement in _own_readings(ours):
        sizes = list(ours[0].shape)
        if placement.kind == "sharded":
            sizes[placement.dim] = int(max(at.max(initial=-1) for at in placement.positions)) + 1
        whole = placement.joined(ours, tuple(sizes))
        if placement.kind == "partial":
            whole = whole.astype(ours[0].dtype)
        other = infer(whole, theirs, likely)
        score = np.inf if other.kind == "unknown" or not other.fits else other.error
        if placement.name == APART and (other.adds_up or other.is_filled):  # zeros of others make that a sum, any part its start
            score = np.inf
        found.append((score, placement, whole, other))
    if any(score < FITS and one[2].kind != "nested" for score, *one in found):  # a grid adds up to many a wrong tensor too
        found = [one for one in found if one[3].kind != "nested"]
    if any(score < FITS and one[0].name != APART for score, *one in found):  # one rank's value leaves out what the others hold
        found = [one for one in found if one[1].name != APART]
    least = min(score for score, *_ in found)
    fitting = [one for score, *one in found if score <= as_well(least)]
    placement, whole, other = min(fitting, key=lambda one: _oddity(one[2], one[1].shape))  # of equals the first
    if beside is not None and same_layout and (not least < _NEARER * beside[0].error or _oddity(other, whole.shape)):
        return beside
    if not least < FITS:  # then as the shapes alone have it
        plain = [one for _, *one in found if one[0].reading == one[2].reading == "contiguous" and one[2].dim == one[0].dim]
        if plain:
            return plain[0][0], plain[0][1], plain[0][2]
    return placement, whole, other


def infer_both_filled(ours: Sequence[Array], theirs: Sequence[Array], fillings: Fillings) -> tuple[Placement, Array, Placement] | None:
    """As `infer_both`, of a value with a dimension that one side filled up; None where no reading fits."""
    for placement in _own_readings(ours):
        sizes = list(ours[0].shape)
        if placement.kind == "sharded":
            sizes[placement.dim] = int(max(at.max(initial=-1) for at in placement.positions)) + 1
        whole = np.asarray(placement.joined(ours, tuple(sizes)))
        filled = infer_filled(whole, theirs, fillings)
        if filled is None:
            continue
        if filled[0] is None:
            return placement, whole, filled[1]
        count = int(filled[0].positions[0].max()) + 1
        own = cut_to(placement, ours, filled[0].dim, count)
        if own is not None:
            return own, leading(whole, filled[0].dim, count), filled[1]
    return None


def _oddity(placement: Placement, shape: tuple[int, ...]) -> int:
    """How far a reading is from a plain one: a grid, and what was matched place by place, fit many a wrong tensor too."""
    if placement.outer is not None and placement.inner is not None:
        return 2 + _oddity(placement.inner, placement.outer.part_shape(shape, 0))
    return int(placement.kind == "sharded" and not placement.reading) + int(not placement.covers(shape))


def _rank_by_rank(ours: Sequence[Array], theirs: Sequence[Array]) -> tuple[Placement, Array, Placement] | None:
    """Each rank's part beside the same rank's; None where they have other shapes, or are all alike."""
    alike = [np.array_equal(part, ours[0], equal_nan=part.dtype.kind == "f") for part in ours[1:]]
    if len(ours) < 2 or all(alike) or not ours[0].ndim or [part.shape for part in ours] != [part.shape for part in theirs]:
        return None
    differing = [dim for dim in range(ours[0].ndim) if len({part.shape[dim] for part in ours}) > 1]
    if len(differing) > 1:
        return None
    error = relative_error(np.concatenate([part.reshape(-1) for part in ours]), np.concatenate([part.reshape(-1) for part in theirs]))
    dim = differing[0] if differing else ours[0].ndim - 1
    edges = np.cumsum([0, *(part.shape[dim] for part in ours)])
    positions = tuple(np.arange(start, stop, dtype=np.intp) for start, stop in pairwise(edges.tolist()))
    placement = Placement("sharded", RANK_BY_RANK, dim, positions, error)
    return placement, placement.joined(ours, (*ours[0].shape[:dim], int(edges[-1]), *ours[0].shape[dim + 1 :])), placement


def _own_readings(parts: Sequence[Array]) -> Iterator[Placement]:
    """What the values of some ranks may be together, the plainest first."""
    alike = len({part.shape for part in parts}) == 1
    if alike and all(np.array_equal(part, parts[0], equal_nan=part.dtype.kind == "f") for part in parts[1:]):
        yield Placement("replicated", "replicated")
        return
    if alike and parts[0].dtype.kind in "fc":
        yield Placement("partial", "partial: the ranks add up to it")
    for dim in range(parts[0].ndim):
        if len({part.shape[:dim] + part.shape[dim + 1 :] for part in parts}) == 1:
            sizes = [part.shape[dim] for part in parts]
            for name, at in readings(sum(sizes), sizes):
                yield Placement("sharded", f"sharded along {dim}, {name}", dim, tuple(at), reading=name)
            filled = [_filled(part, dim) for part in parts]
            if filled != sizes and any(filled):
                edges = np.cumsum([0, *filled])
                at = [np.full(size, PAD, np.intp) for size in sizes]
                for own, first, count in zip(at, edges.tolist(), filled, strict=False):
                    own[:count] = np.arange(first, first + count)
                name = "contiguous, each part padded with zeros"
                yield Placement("sharded", f"sharded along {dim}, {name}", dim, tuple(at), reading=name)
            merged = _merged(parts, dim)
            if merged is not None:
                yield Placement("sharded", f"sharded along {dim}, parts of several ranks merged", dim, merged, reading="merged")
    yield Placement("replicated", APART)


def _merged(parts: Sequence[Array], dim: int) -> tuple[NDArray[np.intp], ...] | None:
    """Places along a dimension where slices of the same bits are one, as heads of keys are that several ranks hold; None where none are."""
    total = sum(part.shape[dim] for part in parts)
    if total > MATCHED or not any(part.size for part in parts):
        return None
    known: dict[bytes, int] = {}
    ahead = [np.ascontiguousarray(np.moveaxis(part, dim, 0)) for part in parts]
    rows = [part.reshape(part.shape[0], part.size // max(1, part.shape[0])) for part in ahead]
    found = tuple(np.array([known.setdefault(row.tobytes(), len(known)) for row in own], np.intp) for own in rows)
    return found if len(known) < total else None


def _filled(part: Array, dim: int) -> int:
    """The places along a dimension up to the last that holds anything but zeros."""
    there = np.flatnonzero(np.any(part != 0, axis=tuple(other for other in range(part.ndim) if other != dim)))
    return int(there[-1]) + 1 if there.size else 0
