"""Where the error of a sum sits: along its terms, along the axes of its result, and as a factor of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.folded import Folded
from layerdiff.arithmetic.orders.analysis import Profile, TermRange
from layerdiff.arithmetic.term_ranges import shares_of_terms

Array = NDArray[np.float64]
STRETCHES: Final = 64
FEWEST: Final = 8
NOISE: Final = 0.05
"""Noise of c up to which a stretch is worth showing by itself."""
_EDGES: Final = np.linspace(-12.0, 12.0, 50)
_MOST_OF_IT: Final = 0.5
_FEW_PLACES: Final = 0.05


def term_ranges(parts: Folded) -> tuple[TermRange, ...]:
    """How much of each stretch of the terms is missing (-1) or counted twice (+1): c = sum (x^T E w^T)_kk / sum |x_k|^2 |w_k|^2.

    `noise` is the standard deviation of c where the error is noise of its size, rms(E) / sqrt(sum |x_k|^2 |w_k|^2).
    """
    error = parts.error / parts.scale
    share, weight = shares_of_terms(parts, error)
    share = share * weight
    size = float(np.sqrt(np.mean(np.square(error)))) if error.size else 0.0
    count = min(STRETCHES, parts.terms)
    while True:  # as many stretches as the noise of each allows to be told apart
        edges = np.unique(np.linspace(0, parts.terms, count + 1).astype(int))
        heavy = np.add.reduceat(weight, edges[:-1])
        noise = size / np.sqrt(np.where(heavy > 0, heavy, np.inf))
        if count <= FEWEST or float(np.median(noise)) <= NOISE:
            break
        count = max(FEWEST, count // 2)
    made = np.add.reduceat(share, edges[:-1]) / np.where(heavy > 0, heavy, np.inf)
    return tuple(TermRange(*at) for at in zip(edges[:-1].tolist(), edges[1:].tolist(), made.tolist(), noise.tolist(), strict=True))


def slope_of(error: Array, y: Array) -> tuple[float, float] | None:
    """The error as a factor of the result, by least squares, and its t; None where there is no error or no result."""
    power = float(np.sum(np.square(y)))
    if power == 0.0 or not np.any(error) or error.size < 3:
        return None
    slope = float(np.sum(error * y)) / power
    rest = float(np.sum(np.square(error - slope * y))) / (error.size - 1)
    return slope, slope / (rest / power) ** 0.5 if rest > 0 else float("inf")


def histogram_of(z: Array) -> tuple[tuple[float, int], ...]:
    """Counts of signed z in 49 bins from -12 to 12, what lies beyond in the outermost; (left edge, count)."""
    counts, _ = np.histogram(np.clip(z, -12.0, 12.0), _EDGES)
    return tuple((float(edge), int(count)) for edge, count in zip(_EDGES[:-1], counts, strict=True))


def profiles_of(squares: Array, axes: Sequence[str]) -> tuple[Profile, ...]:
    """Shares of all squared error along each axis of the result; an axis with fewer than 2 places is left out.

    An axis is said to be concentrated where half of the error or more lies at 5 % of its places or fewer (one at least).
    """
    total = float(squares.sum())
    found = []
    for axis, name in enumerate(axes):
        places = squares.shape[axis]
        if places < 2 or total <= 0 or not np.isfinite(total):
            continue
        shares = squares.sum(tuple(other for other in range(squares.ndim) if other != axis)) / total
        best = np.argsort(-shares, kind="stable")
        most = max(1, int(_FEW_PLACES * places))
        needed = int(np.searchsorted(np.cumsum(shares[best]), _MOST_OF_IT)) + 1
        concentrated = needed <= most < places
        where = ", ".join(str(int(place)) for place in np.sort(best[: min(needed, 4)])) + (", ..." if needed > 4 else "")
        held = float(shares[best[:needed]].sum())
        statement = (
            f"{held:.0%} of the error lies at {needed} of {places} places: {where}"
            if concentrated
            else f"spread over the {places} places ({needed} of them hold half)"
        )
        edges = np.unique(np.linspace(0, places, min(STRETCHES, places) + 1).astype(int))
        pooled = np.add.reduceat(shares, edges[:-1])
        found.append(Profile(name, tuple(float(share) for share in pooled), concentrated, statement))
    return tuple(found)
