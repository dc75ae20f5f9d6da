"""Bit equality of two values of one dtype: the first question asked of every pair, and for most the last.

Blocks are 1 MB, what a reader hands out fastest; the answer of each is one pass over 64-bit words
into a buffer that is used again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.blocks import Blocks, side_by_side

BLOCK_BYTES: Final = 1 << 20


def same_bits(reference: Blocks, target: Blocks) -> bool:
    """Whether both have the same dtype and the same bits. Stops at the first block that differs.

    Raises ValueError where they do not hold equally many elements.
    """
    if reference.dtype.name != target.dtype.name:
        return False
    unequal = np.empty(BLOCK_BYTES // 8, bool)
    for _, ours, theirs in side_by_side(reference, target, BLOCK_BYTES // reference.dtype.itemsize):
        if _differ(ours, theirs, unequal):
            return False
    return True


def _differ(reference: NDArray[Any], target: NDArray[Any], buffer: NDArray[np.bool_]) -> bool:
    ours, theirs = reference.view(np.uint8), target.view(np.uint8)
    whole = ours.size // 8 * 8
    words = buffer[: whole // 8]
    np.not_equal(ours[:whole].view(np.uint64), theirs[:whole].view(np.uint64), out=words)
    return bool(words.any()) or ours[whole:].tobytes() != theirs[whole:].tobytes()
