"""Keys of several whole numbers as one, so that a million calls pair in one sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.sides import Both

Rows = NDArray[np.int64]
_MOST: Final = 2**62


def codes(columns: Sequence[Both[Rows]]) -> Both[Rows]:
    """One number a row, equal where all columns (whole numbers, 0 or more) are equal, on both sides."""
    split = columns[0].reference.size
    code, limit = np.concatenate(list(columns[0])), 1
    for column in columns:
        both = np.concatenate(list(column))
        width = int(both.max(initial=0)) + 1
        if limit == 1:
            code, limit = both, width
            continue
        if limit * width > _MOST:
            known, code = np.unique(code, return_inverse=True)
            limit = known.size
        code, limit = code.reshape(-1) * width + both, limit * width
    return Both(code[:split], code[split:])


def order_within(code: Rows) -> Rows:
    """How many earlier rows have the same code. Shape as `code`."""
    by_code = np.argsort(code, kind="stable")
    ordered = code[by_code]
    first = np.ones(code.size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    place = np.arange(code.size) - np.repeat(starts, np.diff(np.append(starts, code.size)))
    found = np.empty(code.size, np.int64)
    found[by_code] = place
    return found


def match(code: Both[Rows]) -> tuple[Rows, Rows]:
    """Rows of equal code, each code at most once a side: (rows of the reference, rows of the target), in the target's order."""
    _, reference, target = np.intersect1d(code.reference, code.target, assume_unique=True, return_indices=True)
    order = np.argsort(target, kind="stable")
    return reference[order].astype(np.int64), target[order].astype(np.int64)
