"""`outermost`: the call that encloses all others around a call."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def outermost(parents: ArrayLike) -> NDArray[np.int64]:
    """By row the outermost row around it, itself where there is none. `parents`: by row the one around it, negative for none."""
    around = np.asarray(parents)
    top = np.arange(len(around), dtype=np.int64)
    while np.any(inside := around[top] >= 0):
        top[inside] = around[top[inside]]
    return top
