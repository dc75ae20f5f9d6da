"""Masks: what a very negative number, -inf and `False` have in common.

An additive mask forbids a position with -inf or with the lowest finite number of some dtype; a boolean
mask with False. They are one meaning, whichever a run uses, and no part of any norm. In float16 only the
lowest number itself counts, and only against -inf or another dtype's forbidden value: activations come near it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.blocks import Blocks, side_by_side
from layerdiff.trace.dtypes import Dtype

_BLOCK: Final = 1 << 16
_FORBIDDEN: Final = {  # ranges of numbers that mean "forbidden": from the lowest number of a dtype to half of it
    "float64": ((-np.inf, -0.5 * float(np.finfo(np.float64).max)), (-(2.0**128), -(2.0**127) * (1 - 2.0**-8))),
    "float32": ((-np.inf, -(2.0**127) * (1 - 2.0**-8)),),  # half of bfloat16's lowest, which a cast mask holds
    "bfloat16": ((-np.inf, -(2.0**127) * (1 - 2.0**-8)),),
    "float16": ((-np.inf, -65504.0),),  # no less: activations do reach half of it
}
HIGHEST_FORBIDDEN: Final = -65504.0
"""A value above this forbids nothing in any dtype."""


def forbidden(x: NDArray[Any], dtype: Dtype) -> NDArray[np.bool_]:
    """Which decoded elements of a value of `dtype` mean "forbidden" in an additive mask."""
    low, *others = _FORBIDDEN.get(dtype.name, ((-np.inf, -np.inf),))
    found: NDArray[np.bool_] = x <= low[1]
    for least, most in others:
        found |= (x >= least) & (x <= most)
    return found


def both_forbidden(reference: NDArray[Any], target: NDArray[Any], dtypes: tuple[Dtype, Dtype]) -> NDArray[np.bool_]:
    """Which elements are forbidden on both sides, however each side writes it."""
    both = forbidden(reference, dtypes[0]) & forbidden(target, dtypes[1])
    if dtypes[0].name == dtypes[1].name == "float16":
        both &= ~(np.isfinite(reference) & np.isfinite(target))
    return both


def compare_masks(boolean: Blocks, additive: Blocks) -> tuple[int, int, int] | None:
    """A boolean mask against a float one. True attends; or hides, where that makes all of the two agree: both are in use.

    Answers (elements that differ, the first of them or -1, elements that attend in `boolean`).

    None where the float is no additive mask, only zeros and forbidden elements, or where it is all
    zeros and does not agree with the booleans, so that it may as well be numbers.
    """
    differ, first, attend, count, some_forbidden = 0, -1, 0, 0, False
    for start, allowed, bits in side_by_side(boolean, additive, _BLOCK):
        x = additive.dtype.decode(bits)
        closed = forbidden(x, additive.dtype)
        if not np.all(closed | (x == 0)):
            return None
        unequal = (allowed != 0) == closed
        here = int(np.count_nonzero(unequal))
        if here and first < 0:
            first = start + int(np.argmax(unequal))
        differ += here
        attend += int(np.count_nonzero(allowed))
        count += closed.size
        some_forbidden = some_forbidden or bool(closed.any())
    if differ == count and some_forbidden:
        return 0, -1, count - attend
    return None if differ and not some_forbidden else (differ, first, attend)


def lowest_is_forbidden(minimum: float, dtype: str) -> bool:
    """Whether the lowest finite element of a value of the dtype with this name forbids a position."""
    return any(least <= minimum <= most for least, most in _FORBIDDEN.get(dtype, ()))
