"""Is a weight the reference's, quantised? By its dequantised values: as far off as round-to-nearest at some width makes, and no more.

A fitted ratio that is clearly better than identity is another scale and no quantisation; so is an error that is larger than twice
that of round-to-nearest at the width and grouping that fit best.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WIDTHS: Final = (8, 4)
GROUPS: Final = (128, 64, 32)
_AT_MOST: Final = 2.0
"""Times the error of round-to-nearest."""
_ROWS: Final = 8


def quantised_width(reference: Array, target: Array) -> str | None:
    """`int8 by rows`, `int4 by groups of 32`, ...: how the target is the reference quantised; None where it is not.

    Both float64 of one shape, two dimensions or more. The error of round-to-nearest with a step s is s / sqrt(12).
    """
    if reference.ndim < 2 or reference.shape != target.shape or not (np.isfinite(reference).all() and np.isfinite(target).all()):
        return None
    r, t = reference.reshape(-1, reference.shape[-1]), target.reshape(-1, target.shape[-1])
    off = float(np.sqrt(np.mean(np.square(t - r))))
    size = float(np.sum(np.square(r)))
    if off == 0.0 or size == 0.0:
        return None
    ratio = float(np.sum(r * t)) / size
    if float(np.sqrt(np.mean(np.square(t - ratio * r)))) < 0.5 * off:
        return None
    for width in WIDTHS:
        for name, blocks in _groupings(r, t):
            steps = np.abs(blocks[0]).max(axis=1) / (2 ** (width - 1) - 1)
            expected = float(np.sqrt(np.mean(np.square(steps)) / 12.0))
            if off <= _AT_MOST * expected and _few_levels(blocks[1], width):
                return f"int{width} by {name}"
    return None


def _groupings(r: Array, t: Array) -> list[tuple[str, tuple[Array, Array]]]:
    found = [("rows", (r, t)), ("columns", (r.T, t.T)), ("tensor", (r.reshape(1, -1), t.reshape(1, -1)))]
    for group in GROUPS:
        if r.shape[1] > group and r.shape[1] % group == 0:
            found.append((f"groups of {group}", (r.reshape(-1, group), t.reshape(-1, group))))
    return found


def _few_levels(blocks: Array, width: int) -> bool:
    """Whether the values of each block lie on a grid of 2^width steps: more different values than half of what there are would not."""
    chosen = blocks[np.linspace(0, len(blocks) - 1, min(_ROWS, len(blocks))).astype(int)]
    for block in chosen:
        levels = np.unique(block)
        if levels.size > 2**width:
            return False
        gaps = np.diff(levels)
        gaps = gaps[gaps > 1e-3 * np.abs(block).max()] if gaps.size else gaps
        if gaps.size and not _on_grid(gaps, float(np.abs(block).max()), width):
            return False
    return True


def _on_grid(gaps: Array, largest: float, width: int) -> bool:
    """Whether gaps are whole multiples of one step: the largest value over a number of codes near the width's."""
    for top in (2 ** (width - 1) - 1, 2 ** (width - 1), 2**width - 1):
        multiples = gaps / (largest / top)
        if np.all(np.abs(multiples - np.round(multiples)) < 0.05 * np.maximum(1.0, multiples * 0.05)):
            return True
    step = float(gaps.min())
    multiples = gaps / step
    return bool(np.all(np.abs(multiples - np.round(multiples)) < 0.1) and largest / step <= 2**width)
