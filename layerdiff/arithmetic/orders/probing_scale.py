"""`Scale`: what a probe is made of: the mask M, the unit, and how many units are counted exactly; chosen for a dtype, and tried out.

M must be so large that a unit beside it is lost in any accumulator, and a count of units must come out unrounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import format_named
from layerdiff.errors import LayerdiffError

Floats = NDArray[np.float64]
Sums = Callable[[Floats], Floats]
"""The sums in question: terms of shape (probes, terms) to sums of shape (probes,). Each row must be added in the same order."""

TOLERANCE: Final = 0.3
"""How far a count may be from a whole number: a mean is rounded after it was divided."""
_RANDOM: Final = 4


class ProbeError(LayerdiffError):
    """No summation tree can be found: says what was seen, and what would help."""


@dataclass(frozen=True)
class Scale:
    """What a probe is made of.

    Attributes:
        mask: M, a power of two; adding units to it changes nothing.
        unit: what the other terms are, a power of two.
        most: how many units one probe may hold, for their sum to be exact wherever it is kept.
        factor: what the result is multiplied by to give the sum: the number of terms of a mean.
    """

    mask: float
    unit: float
    most: int
    factor: float = 1.0


def scale_for(terms: str, result: str | None = None, *, factor: float = 1.0) -> Scale:
    """The scale for terms of one float dtype and a result of another (None: the same), by torch's names.

    `factor` is what a result is multiplied by to give the sum.

    The unit is 1 and M far above 2^53 units where the range allows; in float16 they are its smallest number and 2^15, which are lost
    in an accumulator of up to 24 bits.
    Raises ProbeError for dtypes that are no floats, or too narrow.
    """
    kinds = [format_named(terms), format_named(result or terms)]
    wide, out = kinds
    if wide is None or out is None:
        raise ProbeError(f"A sum of {terms} cannot be probed: it must be of floats.")
    exact = 1 << min(out.significand_bits, 24)
    if wide.largest >= 2.0**120:
        reach = 600 if min(wide.largest, out.largest) > 2.0**700 else 100
        unit = 1.0
        return Scale(2.0**reach, unit, exact, factor)
    mask = 2.0 ** int(np.floor(np.log2(wide.largest)))
    unit = max(wide.smallest_subnormal, 2.0 ** np.ceil(np.log2(out.smallest_subnormal * factor * (2.0 if factor != 1.0 else 1.0))))
    lost = int(mask * 2.0**-25 / unit)
    if lost < 4:
        raise ProbeError(
            f"A sum of {terms} cannot be probed: from {unit:.1e} to {mask:g} its numbers reach too little for an accumulator of 24 bits "
            "to lose the small beside the large. Probe the same kernel in a wider dtype."
        )
    return Scale(mask, float(unit), min(exact, lost), factor)


def counted(sums: Sums, terms: int, scale: Scale) -> Scale:
    """`scale` with the largest power of two as `most` up to which units alone are counted exactly; found by halving.

    Raises ProbeError where not even a few are: the callable is no sum of its terms, or its small numbers are taken for zero.
    """
    most = 1 << (min(scale.most, max(terms, 2)) - 1).bit_length()
    while True:
        held = _held(terms, min(most, scale.most)) * scale.unit
        got = np.asarray(sums(held), np.float64) * (scale.factor / scale.unit)
        if np.all(np.isfinite(got)) and np.all(np.abs(got - np.count_nonzero(held, axis=1)) < TOLERANCE):
            return replace(scale, most=min(most, scale.most))
        if most <= 2:
            break
        most //= 2
    if not np.any(got):
        raise ProbeError(
            f"Terms of {scale.unit:g} add up to 0: this device takes numbers that small for zero, and no larger ones can be lost beside "
            f"{scale.mask:g}. Probe the same kernel in a wider dtype."
        )
    raise ProbeError(f"This is no plain sum of its terms: {np.count_nonzero(held[0])} terms of {scale.unit:g} make {got[0]:.6g} units.")


def _held(terms: int, most: int) -> Floats:
    """Ones on every run of `most` terms, and on some odd numbers of terms at random, which a narrow accumulator does not hold."""
    runs = -(-terms // most)
    held = np.zeros((runs + (_RANDOM if terms > 2 else 0), terms))
    for row in range(runs):
        held[row, row * most : (row + 1) * most] = 1.0
    random = np.random.default_rng(0)
    odd = (min(most, terms) - 1) | 1
    for row in range(runs, len(held)):
        held[row, random.choice(terms, min(odd, terms), replace=False)] = 1.0
    return held
