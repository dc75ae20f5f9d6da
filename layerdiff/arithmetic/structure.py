"""The tests that name a fault, in order: a coarser result, a factor, lower precision, a range of the sum, the side it came from.

None of them acquits. All but the last name a fault only where the recorded result, taken with it, is within what arithmetic
makes; the side (Gram tests) is named by a correlation, and says no more than that. Named summation orders are another rung:
they belong before these, beside `own`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.factors import common_factor
from layerdiff.arithmetic.folded import Folded, folded, sampled
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, round_to
from layerdiff.arithmetic.gram import side
from layerdiff.arithmetic.lower_precision import narrow_accumulator, rounded_operands
from layerdiff.arithmetic.orders.summing import Product
from layerdiff.arithmetic.residual import Explanation, Residual
from layerdiff.arithmetic.term_ranges import term_range

_FEW: Final = 20
"""Elements that a name needs at least."""


def explanation_for(residual: Residual, product: Product | None) -> Explanation | None:
    """The first explanation that holds, or None; `product` is the matrix product inside the call, where there is one."""
    if int(residual.live.sum()) < _FEW:
        return None
    found = _coarser(residual) or _factor(residual, residual.exact, np.zeros(()), "the result")
    if found is not None or product is None:
        return found
    whole = folded(residual, product)
    if whole is None:
        return None
    residual, parts = sampled(residual, whole)
    rest = residual.exact - parts.unfold(parts.product())
    added = bool(np.any(np.abs(rest) > 1e-9 * np.abs(residual.exact)))
    return (
        (_factor(residual, residual.exact - rest, rest, "the product") if added else None)
        or (_factor(residual, rest, residual.exact - rest, "what is added to the product") if added else None)
        or rounded_operands(residual, parts)
        or term_range(residual, parts)
        or _last(residual, parts)
    )


def _last(residual: Residual, parts: Folded) -> Explanation | None:
    """The side that the error came from; where it came from neither, an accumulator of 16 bits."""
    found = side(parts)
    return found if isinstance(found, Explanation) else narrow_accumulator(residual, parts, found)


def _coarser(residual: Residual) -> Explanation | None:
    """A result of fp32 that lies on the grid of a 16-bit format, and is the exact one rounded to that."""
    if residual.format.name != "float32":
        return None
    recorded = residual.recorded[residual.live]
    for format in (BFLOAT16, FLOAT16):
        if np.array_equal(round_to(recorded, format), recorded) and residual.explained_by(residual.exact, format):
            statement = f"All {recorded.size} elements are the exact result rounded to {format.name}."
            return Explanation("precision", f"{_short(format.name)}-result", statement, {"format": format.name})
    return None


def _factor(residual: Residual, part: NDArray[np.float64], rest: NDArray[np.float64], name: str) -> Explanation | None:
    found = common_factor(residual, part, rest)
    if found is None:
        return None
    low, high, count = found
    factor = 0.5 * (low + high)
    statement = f"{name[0].upper()}{name[1:]} is taken {factor:.9g} times: one factor explains all of {count} elements."
    return Explanation("defect", "scale", statement, {"factor": factor, "factor_low": low, "factor_high": high, "part": name})


def _short(name: str) -> str:
    return {"bfloat16": "bf16", "float16": "fp16"}[name]
