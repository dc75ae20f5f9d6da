"""Dimensions that one side filled up at the end: a vocabulary of 97 ids whose weights have 128 rows, so that they divide well.

Which sizes are filled up is told by weights alone, whose leading places must agree (judge/pairs/filling.py); what is computed of
them then has such a dimension too, and is compared at the places that both have. What the filling does to anything else is judged
where it does it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import FITS, PAD, Placement, places_of
from layerdiff.align.placements import infer, relative_error

Array = NDArray[Any]
WHOLE: Final = "the whole on each rank, filled up at the end"
_OURS: Final = "filled up at the end"


@dataclass(frozen=True)
class Fillings:
    """Sizes of a dimension on the two sides, (reference, target), of which the larger is the smaller one filled up."""

    sizes: frozenset[tuple[int, int]] = frozenset()

    def common(self, ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, int] | None:
        """The one dimension in which two shapes differ, and the places of it that both have; None where they differ otherwise."""
        if len(ours) != len(theirs):
            return None
        differing = [dim for dim, sizes in enumerate(zip(ours, theirs, strict=True)) if sizes[0] != sizes[1]]
        if len(differing) != 1 or (ours[differing[0]], theirs[differing[0]]) not in self.sizes:
            return None
        return differing[0], min(ours[differing[0]], theirs[differing[0]])

    def beside(self, ours: Array, theirs: Array) -> tuple[Array, Array]:
        """Two values at the places that both have; as they are where none is filled up."""
        common = self.common(ours.shape, theirs.shape)
        return (ours, theirs) if common is None else (leading(ours, *common), leading(theirs, *common))

    def without(self, x: Array, side: str, others: Container[int]) -> Array:
        """A value of one side without what fills it up; `others`: sizes that the other side has too, which are no filling."""
        for ours, theirs in self.sizes:
            own, other = (ours, theirs) if side == "reference" else (theirs, ours)
            for dim in range(x.ndim if own > other and own not in others else 0):
                if x.shape[dim] == own:
                    x = leading(x, dim, other)
        return x


NOTHING_FILLED: Final = Fillings()


def leading(x: Array, dim: int, count: int) -> Array:
    """The first places along a dimension."""
    return x[(slice(None),) * dim + (slice(0, count),)]


def infer_filled(reference: Array, parts: Sequence[Array], fillings: Fillings) -> tuple[Placement | None, Placement] | None:
    """How the ranks hold a value with a dimension that one side filled up; None where none fits.

    First how the reference holds what counts of it, where it is the reference that is filled up, else None.
    """
    for dim, count, other in _filled(reference.shape, fillings):
        if other > count:
            if all(part.shape == (*reference.shape[:dim], other, *reference.shape[dim + 1 :]) for part in parts):
                at = _with_filling(np.arange(count, dtype=np.intp), other)
                error = max(relative_error(reference, leading(part, dim, count)) for part in parts)
                if error < FITS or _exact(reference):
                    return None, Placement("sharded", f"sharded along {dim}, {WHOLE}", dim, (at,) * len(parts), error, reading=WHOLE)
            continue
        placement = infer(leading(reference, dim, other), parts)
        if placement.kind != "unknown" and placement.fits and (placement.error < FITS or _exact(reference)):
            at = _with_filling(np.arange(other, dtype=np.intp), count)
            return Placement("sharded", f"sharded along {dim}, {_OURS}", dim, (at,), 0.0, reading=_OURS), placement
    return None


def cut_to(placement: Placement, parts: Sequence[Array], dim: int, count: int) -> Placement | None:
    """How parts hold the first `count` places of what they hold by `placement`; None where that is no reading along one dimension."""
    if placement.kind == "replicated" and placement.dim < 0:
        at = [_with_filling(np.arange(count, dtype=np.intp), part.shape[dim]) for part in parts]
        return Placement("sharded", f"sharded along {dim}, {WHOLE}", dim, tuple(at), placement.error, reading=WHOLE)
    if placement.kind != "sharded" or placement.dim != dim:
        return None
    positions = tuple(np.where(at < count, at, PAD) for at in placement.positions)
    return replace(placement, name=f"{placement.name}, {_OURS}", positions=positions)


def refilled(placement: Placement, logical: Sequence[Array], own: Sequence[Array], ranks: Sequence[int] | None = None) -> list[Array]:
    """What a side holds of a logical tensor (`logical`), with what fills it up as it is there (`own`): the tensor has nothing for that.

    `ranks`: whose parts they are, where they are not all.
    """
    found = []
    for part, recorded, rank in zip(logical, own, range(len(own)) if ranks is None else ranks, strict=True):
        held = (placement.positions[rank] != PAD).reshape((1,) * placement.dim + (-1,) + (1,) * (part.ndim - placement.dim - 1))
        found.append(np.where(held, part, recorded))
    return found


def places_beside(ours: Array, theirs: Sequence[Array], dim: int) -> int:
    """Of the places along `dim` how many lead both, where the ranks' parts lie one after the other; 0 where they do not agree there.

    Ranks that hold equally many have zeros at the end, fewer than there are ranks.
    """
    laid = np.concatenate(theirs, axis=dim)
    count = min(ours.shape[dim], laid.shape[dim])
    rest = leading(laid, dim, count)
    for _ in range(len(theirs) - 1):
        last = places_of(rest, np.array([count - 1], np.intp), dim)
        if last.any() or count < 2:
            break
        count -= 1
        rest = leading(laid, dim, count)
    return count if relative_error(leading(ours, dim, count), rest) < FITS else 0


def _exact(x: Array) -> bool:
    """Whole numbers and truth values: a wrong one is wrong, wherever it lies."""
    return x.dtype.kind not in "fc"


def _filled(shape: Sequence[int], fillings: Fillings) -> Iterator[tuple[int, int, int]]:
    """(dimension, its size in the reference, and in the target) of what may be filled up."""
    for dim, size in enumerate(shape):
        for ours, theirs in sorted(fillings.sizes):
            if size == ours:
                yield dim, ours, theirs


def _with_filling(at: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    return np.concatenate([at, np.full(size - at.size, PAD, np.intp)])
