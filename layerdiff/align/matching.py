"""Places of a dimension matched one by one, by their numbers: where the reference's most resembles each slice of a part."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MATCHED: Final = 1 << 14
"""Places of a dimension that are matched one by one where no regular reading fits."""
_TAKEN_ONCE: Final = 1 << 11
"""Places up to which they are matched with none taken twice."""
_FEATURES: Final = 12
_AS_NEAR: Final = 1e-12
"""Of the size of two rows, how much nearer one may seem by rounding alone."""


def matched_places(reference: Array, part: Array, dim: int, *, once: bool = False) -> NDArray[np.intp] | None:
    """For each place of `part` along `dim` the place of the reference that resembles it most; None where that is too much work.

    Slices are compared by a few random projections; other dimensions must have the reference's sizes. `once`: no place is taken twice, the
    surest matches first, so that equal slices each get one.
    """
    size = reference.shape[dim]
    if size > MATCHED or part.shape[dim] > MATCHED or reference.size == 0:
        return None
    if part.size == 0:
        return np.empty(0, np.intp)
    inner = reference.size // size
    random = _projections(inner)

    def features(x: Array) -> NDArray[np.float64]:
        flat = np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1).astype(np.float64)
        return np.asarray(np.nan_to_num(flat, posinf=0.0, neginf=0.0) @ random)

    known, mine = features(reference), features(part)
    if once:
        return None if size > _TAKEN_ONCE or len(mine) > size else _each_once(known, mine)
    return _nearest(known, mine)


@lru_cache(maxsize=2)
def _projections(inner: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((inner, min(_FEATURES, inner)))


def _nearest(known: NDArray[np.float64], mine: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each row the nearest known one, the first of equals."""
    at = np.empty(len(mine), np.intp)
    sizes = np.square(known).sum(1)
    most = float(sizes.max(initial=0.0))
    for begin in range(0, len(mine), 256):
        own = mine[begin : begin + 256]
        apart = sizes - 2.0 * (own @ known.T)  # but for the size of the row itself
        least = apart.min(axis=1)
        at[begin : begin + 256] = np.argmin(apart, axis=1)
        near = apart <= (least + _AS_NEAR * (most + np.square(own).sum(1)))[:, None]
        for row in np.flatnonzero(near.sum(axis=1) > 1).tolist():  # as near as rounding tells
            some = np.flatnonzero(near[row])
            at[begin + row] = some[np.argmin(np.square(own[row] - known[some]).sum(-1))]
    return at


def _each_once(known: NDArray[np.float64], mine: NDArray[np.float64]) -> NDArray[np.intp]:
    apart = np.square(mine[:, None] - known[None]).sum(-1)
    at = np.empty(len(mine), np.intp)
    for row in np.argsort(apart.min(axis=1), kind="stable").tolist():
        at[row] = np.argmin(apart[row])
        apart[:, at[row]] = np.inf
    return at
