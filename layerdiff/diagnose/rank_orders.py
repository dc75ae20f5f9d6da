"""In which order the ranks hold what they are given and hand on: two inputs of one call in two orders, a part of other places, a value in
another order than the reference's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.matching import matched_places
from layerdiff.align.placement import FITS, Placement
from layerdiff.align.placements import APART as RANKS_DIFFER
from layerdiff.align.placements import relative_error
from layerdiff.diagnose.rank_values import RankValues, size_of
from layerdiff.judge.found import Found
from layerdiff.trace.schema import Role

_MOVED: Final = 0.125
"""Share of the places that are elsewhere in a value that is said to be in another order: one row may resemble its neighbour."""
_ORDERS: Final = "ranks: orders in which the inputs of one call lie"


def two_orders(values: RankValues, row: int) -> Found | None:
    """Inputs of one call whose parts lie in different orders: positions of contiguous parts for tokens in zigzag order."""
    lies: dict[tuple[int, ...], dict[str, list[int]]] = {}
    for pair in values.pairs_of(row, Role.INPUT):
        placed = values.placed.get(pair)
        if placed is None or not placed.placement.reading or not placed.placement.fits or placed.placement.also:
            continue
        lies.setdefault(_sizes(values, pair, placed.placement), {}).setdefault(placed.placement.reading, []).append(pair)
    for sizes, orders in lies.items():
        if len(orders) < 2:
            continue
        first, other = sorted(orders, key=lambda order: orders[order][0])[:2]  # what is computed comes before what it is given beside it
        names = [values.texts[int(values.pairs["position"][orders[order][0]])] for order in (first, other)]
        said = (
            f"{names[1]} lies {other} over the ranks and {names[0]} {first}, along {sizes[0]} places of each: "
            f"what a rank is given of the one is not of the places that it holds of the other"
        )
        told = {names[0]: first, names[1]: other}
        return values.local(row, orders[other][0], "cp-position-ids", said, float(len(orders)), 1.0, _ORDERS, orders=told)
    return None


def held_twice(values: RankValues) -> Iterator[int]:
    """Rows of the calls that are given a value of which ranks hold the same part, while another part is on none."""
    inputs = np.flatnonzero(np.asarray(values.pairs["role"]) == Role.INPUT).tolist()
    yield from dict.fromkeys(int(values.pairs["site"][pair]) for pair in inputs if _is_held_twice(values, pair))


def _is_held_twice(values: RankValues, pair: int) -> bool:
    placed = values.placed.get(pair)
    if placed is None or placed.placement.kind != "sharded" or placed.placement.reading or not placed.placement.fits:
        return False
    held = np.concatenate(placed.placement.positions)
    return bool(np.unique(held).size < held.size) and not placed.placement.covers(values.shape(pair))


def _sizes(values: RankValues, pair: int, placement: Placement) -> tuple[int, ...]:
    """How long the dimension is along which a value is cut, and each rank's part."""
    return values.shape(pair)[placement.dim], *(at.size for at in placement.positions)


def places_of_others(values: RankValues, row: int) -> Found | None:
    """An input of which a rank holds the part of another's places: positions that each rank counts from zero."""
    inputs = values.pairs_of(row, Role.INPUT)
    for pair in (one for one in inputs if _is_held_twice(values, one)):
        placed, whole, parts = values.placed[pair], values.whole(pair), values.parts(pair)
        for other in inputs:
            beside = values.placed.get(other)
            if beside is None or not beside.placement.reading or not beside.placement.fits or whole is None or parts is None:
                continue
            if _sizes(values, other, beside.placement) != _sizes(values, pair, placed.placement):
                continue
            for rank, (has, right) in enumerate(zip(placed.placement.positions, beside.placement.positions, strict=True)):
                if relative_error(np.take(whole, right, axis=placed.placement.dim), parts[rank]) < FITS:
                    continue
                names = [values.texts[int(values.pairs["position"][one])] for one in (pair, other)]
                said = (
                    f"rank {values.rank(placed.files[rank])} is given {names[0]} of places {_listed(has)}, and {names[1]} of places "
                    f"{_listed(right)}: what a rank is given of the one is not of the places that it holds of the other"
                )
                told = {names[0]: placed.placement.name, names[1]: beside.placement.reading}
                return values.local(row, pair, "cp-position-ids", said, 2.0, 1.0, _ORDERS, orders=told)
    return None


def _listed(at: NDArray[np.intp]) -> str:
    return ", ".join(f"{run[0]} to {run[-1]}" for run in np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)[:4])


def moved(values: RankValues, row: int) -> Found | None:
    """A value that is the reference's in another order along one dimension: parts gathered or given in another order."""
    asked = [(row, pair) for pair in values.pairs_of(row, Role.OUTPUT)]
    for one in values.inside(row):
        asked = [*[(one, pair) for pair in values.pairs_of(one, Role.INPUT)], *asked]
    asked.sort(key=lambda at: (at[0] == row, at[0]))
    for one, pair in asked:
        if not float(values.pairs["rel_l2"][pair]) > 0.1:
            continue
        whole, target, placed = values.whole(pair), values.joined(pair), values.placed.get(pair)
        if whole is None or target is None or whole.shape != target.shape or (placed is not None and placed.placement.name == RANKS_DIFFER):
            continue
        for dim in range(whole.ndim):
            if whole.shape[dim] < 2:
                continue
            at = matched_places(whole, target, dim)
            if at is None:
                continue
            there = np.array([bool(np.any(np.take(target, place, axis=dim))) for place in range(at.size)])
            found = np.take(whole, at, axis=dim)
            keep = np.flatnonzero(there)
            elsewhere = np.count_nonzero(at[keep] != keep)
            in_place = elsewhere < max(2, _MOVED * keep.size)
            if in_place or np.unique(at[keep]).size < keep.size:  # or no order of the reference's
                continue
            size = size_of(np.take(target, keep, axis=dim))
            residual = size_of(np.take(target - found, keep, axis=dim)) / size if size > 0 else np.inf
            if residual <= values.holds and keep.size >= 2:
                runs = _runs(at, there)
                position = values.texts[int(values.pairs["position"][pair])]
                empty = int(at.size - keep.size)
                gap = f", and {empty} places hold nothing" if empty else ""
                said = f"{position} is the reference's in another order along dimension {dim}: {runs}{gap}"
                cause = "parts-shifted" if empty else "sequence-order"
                return values.local(one, pair, cause, said, residual, dim=dim, order=runs)
    return None


def _runs(at: NDArray[np.intp], there: NDArray[np.bool_]) -> str:
    """`places 0 to 11 hold 12 to 23, 12 to 23 hold 0 to 11`."""
    texts = []
    start = 0
    for place in range(1, at.size + 1):
        if place == at.size or at[place] != at[place - 1] + 1 or there[place] != there[place - 1]:
            if there[start]:
                texts.append(f"{start} to {place - 1} hold {at[start]} to {at[place - 1]}")
            start = place
    return "places " + ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")
