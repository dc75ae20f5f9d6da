"""Weights that ranks hold otherwise than the reference: rows of another weight, a part that others have too, numbers of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import RANK_BY_RANK
from layerdiff.align.matching import matched_places
from layerdiff.diagnose.rank_values import APART, HOLDS, Array, RankValues
from layerdiff.judge.found import Found
from layerdiff.judge.pairs.placed import Placed
from layerdiff.trace.schema import Role

_ROUNDED: Final = 2.0**-8
"""How far off one rank's part of a weight may be in another dtype than the others': rounding to bfloat16 makes half of it at most."""
_OFF: Final = "ranks: how far a rank's part of a weight is off"
_LEFT: Final = "ranks: places of a weight that no rank holds"


def misplaced_weights(values: RankValues) -> Iterator[Found]:
    """Weights that no reading puts together: a rank that holds part of another weight, or what another rank has already."""
    told: set[tuple[int, int]] = set()
    for pair in np.flatnonzero(values.pairs["role"] == Role.WEIGHT).tolist():
        placed, row = values.placed.get(pair), int(values.pairs["site"][pair])
        key = int(values.sites["site"][row]), int(values.pairs["position"][pair])
        if placed is None or placed.placement.kind != "sharded" or key in told:
            continue
        apart = placed.placement.name == RANK_BY_RANK and placed.placement.error > HOLDS
        if placed.placement.fits and not apart and placed.placement.covers(values.shape(pair)):
            continue
        found = _of_another(values, row, pair, placed) or _held_twice(values, row, pair, placed)
        if found is not None:
            told.add(key)
            yield found


def weights_of_one_rank(values: RankValues, told: Sequence[Found]) -> Iterator[Found]:
    """Weights of which one rank alone holds other numbers than its part of the reference's; those in `told` are left out."""
    known = {(one.row, one.local.value) for one in told}
    seen: set[tuple[int, int]] = set()
    for pair in np.flatnonzero(values.pairs["role"] == Role.WEIGHT).tolist():
        placed, row = values.placed.get(pair), int(values.pairs["site"][pair])
        key = int(values.sites["site"][row]), int(values.pairs["position"][pair])
        name = values.texts[key[1]] or "weight"
        if placed is None or key in seen or (row, name) in known or len(placed.errors) < 2:
            continue
        seen.add(key)
        *others, most = sorted(placed.errors)
        if not (most > _ROUNDED and others[-1] <= HOLDS and most > APART * others[-1]):
            continue
        index = placed.errors.index(most)
        rank = values.rank(placed.files[index])
        said = f"holds another {name} than its part of the reference's, by {most:.2g} of it; those of the other ranks agree"
        yield values.local(row, pair, None, said, most, _ROUNDED, _OFF, rank=rank)


def _of_another(values: RankValues, row: int, pair: int, placed: Placed) -> Found | None:
    """A part that is made of rows of the weights of other modules beside this one."""
    parts = values.parts(pair)
    dims = range(parts[0].ndim) if parts is not None and placed.placement.name == RANK_BY_RANK else (placed.placement.dim,)
    for dim in dims if parts is not None else ():
        found = _rows_of_another(values, row, pair, placed, dim)
        if found is not None:
            return found
    return None


def _rows_of_another(values: RankValues, row: int, pair: int, placed: Placed, dim: int) -> Found | None:
    parts = values.parts(pair) or []
    mine = values.texts[int(values.pairs["position"][pair])]
    beside = [one for one in np.flatnonzero(values.sites["parent"] == values.sites["parent"][row]).tolist() if one != row]
    for rank, (part, error) in enumerate(zip(parts, placed.errors, strict=False)):
        if not error > HOLDS:
            continue
        for one in beside:
            for other in values.pairs_of(one, Role.WEIGHT):
                whole = values.laid(other, dim)
                if values.texts[int(values.pairs["position"][other])] != mine or whole is None or whole.ndim != part.ndim:
                    continue
                if any(whole.shape[d] != part.shape[d] for d in range(part.ndim) if d != dim):
                    continue
                at = matched_places(whole, part, dim)
                if at is None:
                    continue
                same = _same_slices(whole, part, at, dim)
                if int(same.sum()) >= max(1, at.size // 4):
                    ranges = f"{int(at[same].min())} to {int(at[same].max())}"
                    held = f"{values.site(one)}.{mine}"
                    own = values.rank(placed.files[rank])
                    said = f"rank {own} holds rows {ranges} of {held} here: fused weights were cut as one block"
                    return values.local(row, pair, "tp-fused-shard", said, float(error), rule=_OFF, rank=own, holds=held)
    return None


def _held_twice(values: RankValues, row: int, pair: int, placed: Placed) -> Found | None:
    """Parts that several ranks hold while others are on none."""
    if placed.placement.name == RANK_BY_RANK:
        return _another_ranks(values, row, pair, placed)
    held = np.concatenate(placed.placement.positions)
    whole = values.whole(pair)
    left = 0 if whole is None else whole.shape[placed.placement.dim] - np.unique(held[held >= 0]).size
    if not placed.placement.fits or left <= 0 or held.size == np.unique(held).size:
        return None
    said = f"ranks hold the same part, and {left} places are on no rank: {placed.placement.name}"
    return values.local(row, pair, "tp-duplicate-shard", said, float(left), 0.0, _LEFT, places_on_no_rank=left)


def _another_ranks(values: RankValues, row: int, pair: int, placed: Placed) -> Found | None:
    """Of one layout twice: a rank that holds what another holds in the reference's run."""
    parts = values.parts(pair) or []
    for dim in range(parts[0].ndim if parts else 0):
        whole = values.laid(pair, dim)
        edges = np.cumsum([0, *(part.shape[dim] for part in parts)])
        for rank, (part, error) in enumerate(zip(parts, placed.errors, strict=False)):
            at = matched_places(whole, part, dim) if whole is not None and error > HOLDS else None
            if whole is None or at is None:
                continue
            same = _same_slices(whole, part, at, dim)
            others = same & ((at < edges[rank]) | (at >= edges[rank + 1]))
            if int(others.sum()) < max(1, at.size // 4):
                continue
            other = values.rank(placed.files[int(np.searchsorted(edges, at[others][0], side="right")) - 1])
            said = f"rank {values.rank(placed.files[rank])} holds {int(others.sum())} of {at.size} slices of rank {other}'s part"
            return values.local(row, pair, "tp-duplicate-shard", said, float(error), rule=_OFF, rank=values.rank(placed.files[rank]))
    return None


def _same_slices(whole: Array, part: Array, at: NDArray[np.intp], dim: int) -> NDArray[np.bool_]:
    """Which slices of a part are those of the whole at these places, in another dtype perhaps."""
    theirs, mine = (np.moveaxis(x, dim, 0).reshape(at.size, -1) for x in (np.take(whole, at, axis=dim), part))
    return np.asarray(np.linalg.norm(theirs - mine, axis=1) <= HOLDS * np.linalg.norm(theirs, axis=1))
