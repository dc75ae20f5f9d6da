"""Integers and booleans, exactly: differences as unsigned 64-bit numbers, in which no difference of two 64-bit integers wraps."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.dtypes import Dtype

INTEGER_BLOCK: Final = 1 << 15
EXACT_KINDS: Final = ("integer", "boolean")


def exact(bits: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """Elements as int64, or uint64 where the dtype is that; True is 1 whatever its bits."""
    if dtype.kind == "boolean":
        bits = bits != 0
    return bits if bits.dtype == np.uint64 else bits.astype(np.int64)


def distances(reference: NDArray[Any], target: NDArray[Any]) -> NDArray[np.float64]:
    """|target - reference| of two arrays as `exact` makes them, each rounded once to float64."""
    if reference.dtype == target.dtype:
        most, least = np.maximum(reference, target), np.minimum(reference, target)
        apart: NDArray[np.float64] = (most.view(np.uint64) - least.view(np.uint64)).astype(np.float64)
        return apart
    signed, unsigned = (reference, target) if reference.dtype == np.int64 else (target, reference)
    negative = signed < 0
    size = signed.view(np.uint64)
    above = (np.maximum(size, unsigned) - np.minimum(size, unsigned)).astype(np.float64)
    below = (~size + np.uint64(1)).astype(np.float64) + unsigned.astype(np.float64)
    apart = np.where(negative, below, above)
    return apart


def unequal(reference: NDArray[Any], target: NDArray[Any]) -> NDArray[np.bool_]:
    """Which elements differ, exactly, whatever the signedness of the two."""
    if reference.dtype == target.dtype:
        same_kind: NDArray[np.bool_] = reference != target
        return same_kind
    signed = reference if reference.dtype == np.int64 else target
    found: NDArray[np.bool_] = (reference.view(np.uint64) != target.view(np.uint64)) | (signed < 0)
    return found
