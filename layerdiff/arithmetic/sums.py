"""How far a sum may lie from the exact one: the closed form for any order, and the actual prefix sums.

Numbers of the formulas: F1 is the bound of Higham and Mary (2019) with the tree as high as it can be, gamma_h(u) sum|p|.
F3 is the variance of a rounding tree, c u^2 sum(s_v^2) over its inner nodes, with c = 0.18 the mean square of the relative
error of round to nearest for a log-uniform significand, (1/3)(3/(8 ln 2)). F4 is F3 in closed form for terms in an
exchangeable order: prefix sums are a Brownian bridge from 0 to y, so sum(s_k^2) = K (y^2/3 + V/6), V = sum(p^2).
F4 is an upper envelope for blocked, pairwise and split sums; it is too small where the large terms come first.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import Format

ROUNDING_VARIANCE: Final = 0.18
"""E[delta^2] / u^2 of one rounding to nearest: (1/3) * 3 / (8 ln 2) = 0.1803. Measured: z = 1.00 in the tests."""
ROUNDING_SIGMA: Final = ROUNDING_VARIANCE**0.5
VALID_BELOW: Final = 0.25
"""Where K times u of the accumulator is this or more, errors are no small perturbations and no statistic holds."""


def gamma(height: float, unit: float) -> float:
    """gamma_h = h u / (1 - h u), the relative bound of h roundings in sequence; (1 + u)^h - 1, which holds for every h u, from 1/2 on."""
    product = height * unit
    return product / (1.0 - product) if product < 0.5 else math.expm1(min(height * math.log1p(unit), 700.0))


def sum_sigma(y: NDArray[Any], squares: NDArray[Any], terms: int, accumulator: Format, *, products: bool = True) -> NDArray[np.float64]:
    """F4: the standard deviation of a sum of `terms` terms.

    Args:
        y: the exact sums.
        squares: V, the sums of the squared terms.
        terms: K.
        accumulator: the format that every partial sum is rounded to.
        products: whether the terms are products that are rounded themselves (adds 0.18 u^2 V).

    Returns:
        float64, absolute; 0 where all terms are 0, else with a floor of K smallest subnormals.
    """
    variance = terms * (np.square(y) / 3.0 + squares / 6.0) + (squares if products else 0.0)
    sigma = ROUNDING_SIGMA * accumulator.unit * np.sqrt(variance)
    return np.where(squares > 0, sigma + terms * accumulator.smallest_subnormal, 0.0)


def sum_bound(sizes: NDArray[Any], terms: int, accumulator: Format, *, products: bool = True) -> NDArray[np.float64]:
    """F1: the deterministic bound over every order, gamma_h sum|p| with h = K (K - 1 without products).

    inf where the sum of sizes passes the accumulator's largest number: then an infinite partial sum is arithmetic too.
    """
    height = terms if products else max(terms - 1, 0)
    bound = gamma(height, accumulator.unit) * sizes + height * accumulator.smallest_normal * (sizes > 0)
    return np.where(sizes > accumulator.largest, np.inf, bound)


def prefix_sigma(terms: NDArray[Any], accumulator: Format) -> NDArray[np.float64]:
    """F3: the standard deviation of sums along the last axis, from their actual prefix sums, in order and in reverse.

    Args:
        terms: [n, K], in the order in which they lie in memory.

    Returns:
        float64 [n]: the larger of the two directions.
    """
    forward = np.cumsum(terms, axis=-1)
    backward = forward[..., -1:] - forward
    larger = np.maximum(np.square(forward).sum(-1), np.square(backward).sum(-1) + np.square(forward[..., -1]))
    variance = larger + np.square(terms).sum(-1)
    return np.asarray(ROUNDING_SIGMA * accumulator.unit * np.sqrt(variance))
