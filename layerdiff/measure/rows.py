"""The difference of two exact values, by rows: what tells another computation from rounding.

A row is the last dimension. Its figure is max |r - t| over the root mean square of the target's row, floored at a thousandth of the
tensor's median row, so that rows of zeros do not make a mountain of nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FLOOR: Final = 1e-3


@dataclass(frozen=True)
class RowDifference:
    """The worst row."""

    figure: float
    """inf where a side is all zero and the other is not, where classes of non-finite elements differ, and where integers differ."""
    worst: int
    """Flat row-major index of the element, -1 for none."""
    max_abs: float
    rows: int
    """How many rows are over 1e-9."""


def row_difference(reference: NDArray[Any], target: NDArray[Any]) -> RowDifference:
    """The difference of two arrays of one shape: float64, or integers and booleans, which compare exactly."""
    if reference.shape != target.shape:
        raise ValueError(f"shapes {reference.shape} and {target.shape} have no difference by rows")
    if not reference.size:
        return RowDifference(0.0, -1, 0.0, 0)
    if reference.dtype.kind not in "fc" or target.dtype.kind not in "fc":
        wrong = reference != target
        count = int(np.count_nonzero(wrong))
        return RowDifference(float("inf") if count else 0.0, int(np.argmax(wrong)) if count else -1, float(count), count)
    finite = np.isfinite(reference) & np.isfinite(target)
    with np.errstate(all="ignore"):
        same = (reference == target) | (np.isnan(reference) & np.isnan(target))
        off = np.where(finite, np.abs(reference - target), np.where(same, 0.0, np.inf))
        width = reference.shape[-1] if reference.ndim else 1
        off = off.reshape(-1, width)
        r, t = (np.where(finite, np.abs(x), 0.0).reshape(-1, width) for x in (reference, target))
        top = t.max(axis=1)  # so that no square overflows, or vanishes
        rms = top * np.sqrt(np.square(t / np.where(top > 0, top, 1.0)[:, None]).mean(axis=1))
        whole = float(np.median(rms))
        scale = np.maximum(rms, FLOOR * whole)
        row = off.max(axis=1)
        figures = np.where(row > 0, np.where(scale > 0, row / np.where(scale > 0, scale, 1.0), np.inf), 0.0)
        if not t.any() or not r.any():  # an all-zero side compares exactly
            figures = np.where(row > 0, np.inf, 0.0)
    at = int(np.argmax(figures))
    figure = float(figures[at])
    worst = at * width + int(np.argmax(off[at])) if figure > 0 else -1
    return RowDifference(figure, worst, float(off[at].max()), int(np.count_nonzero(figures > 1e-9)))
