"""Which calls are around a call, and which of them encloses all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def around(parents: NDArray[Any], call: int) -> Iterator[int]:
    """The calls around a call, the innermost first. `parents`: by call the one around it, negative for none."""
    while (call := int(parents[call])) >= 0:
        yield call


def root_of(parents: NDArray[Any], call: int) -> int:
    """The outermost call around one, itself where there is none. `parents`: as in `around`."""
    *_, root = call, *around(parents, call)
    return root


def outermost(parents: ArrayLike) -> NDArray[np.int64]:
    """By row the outermost row around it, itself where there is none. `parents`: by row the one around it, negative for none."""
    above = np.asarray(parents)
    top = np.arange(len(above), dtype=np.int64)
    while np.any(inside := above[top] >= 0):
        top[inside] = above[top[inside]]
    return top
