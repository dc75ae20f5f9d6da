"""exp as libraries compute it: exact, and the polynomial that torch's CPU kernels use for attention in 16 bits.

The fast one is off by 913 u of fp32 rms (2^-14), enough to move one probability in a hundred across a boundary of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from layerdiff.arithmetic.orders.variants.ranking import Array

Exponential = Callable[[Array], Array]
_LANES: Final = 16
"""Elements of a vector; what is left over at the end of a row goes through the exact exponential."""
_LOG2_E: Final = np.float32(1.44269504)
_LOWEST: Final = np.float32(-87.3365447)
"""log of the smallest normal number: what lies below becomes 0."""
_COEFFICIENTS: Final = tuple(
    np.float32(x) for x in (0.00010703434948458272, 0.30354260500649682, -0.22433836478672356, -0.079204240219773236)
)
"""c0 to c3 of Malossi, Ineichen, Bekas and Curioni, "Fast Exponential Computation on SIMD Architectures", as torch has them."""


def exact_exp(x: Array) -> Array:
    """exp in float64."""
    return np.asarray(np.exp(x))


def fast_exp(x: Array) -> Array:
    """2^(x log2 e) by a polynomial of degree 3 and a cast to the bits of a float32, elements [..., S]; -inf gives 0."""
    narrow = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        source = narrow * _LOG2_E
        rest = source - np.floor(source)
        c0, c1, c2, c3 = _COEFFICIENTS
        polynomial = _fused(rest, c3, c2)
        polynomial = _fused(rest, polynomial, c1)
        polynomial = _fused(rest, polynomial, c0)
        bits = _fused(np.float32(2.0**23), source - polynomial, np.float32(2.0**23 * 127))
        low = ~(narrow >= _LOWEST)
        made = np.where(low, np.float32(0.0), bits).astype(np.int32).view(np.float32)
    found = np.where(low, 0.0, made.astype(np.float64))
    left = x.shape[-1] % _LANES
    if left:
        found[..., -left:] = np.exp(x[..., -left:])
    return np.asarray(found)


def _fused(a: np.ndarray | np.float32, b: np.ndarray | np.float32, c: np.ndarray | np.float32) -> np.ndarray:
    return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(np.float32)
