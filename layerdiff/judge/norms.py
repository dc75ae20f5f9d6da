"""Whether a norm makes of what it is given what the reference's norm makes of it, told from two pairs of values alone.

A norm scales every row by a statistic of its own, so a difference that lies in small rows is magnified without bound, seen from the whole
value: beside one row of a thousand times their size (a massive activation), or beside a large mean that the norm takes away. What it may
hand on is told by running it. With n(x) = x / sqrt(mean(x^2) + eps), or the same of x - mean(x), its output is a n(x) + b; a and b, one a
channel, are fitted to the reference's own input and output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.classes import FP32_ROUNDOFF, NORM

Array = NDArray[Any]
Reals = NDArray[np.float64]
_FEW: Final = 4
"""Rows from which on a form is held against the reference itself; fewer rows fit any."""
_LEAST: Final = 1e-300
"""Of a row of zeros the mean square, where no epsilon is known."""
_ROW: Final = 4.0
"""How many times further off one row may be than all of them may."""


def local_error(
    inputs: Sequence[Array], outputs: Sequence[Array], epsilon: float, roundoffs: Sequence[float]
) -> tuple[float, float] | None:
    """(relative L2 error of the target's output to the reference's norm of its input, what is allowed); None where it is another.

    `inputs`, `outputs`: the reference's and the target's, all of one shape, normalised along the last axis. `epsilon`: the reference's.
    `roundoffs`: of both sides.
    """
    if len({x.shape for x in (*inputs, *outputs)}) > 1 or inputs[0].ndim < 1 or inputs[0].size == 0:
        return None
    x, given, made, own = (one.reshape(-1, one.shape[-1]).astype(np.float64) for one in (*inputs, *outputs))
    if not all(np.isfinite(one).all() for one in (x, given, made, own)):
        return None
    for form in (_scaled, _centred):
        normal = form(x, epsilon)
        summing = NORM.summing * FP32_ROUNDOFF * (_cancels(x) if form is _centred else 1.0)
        ours, allowed = (NORM.rounding * u + summing for u in (roundoffs[0], max(roundoffs)))
        for factor, offset in _affine(normal, made):
            fits = factor * normal + offset
            if len(x) >= _FEW and _relative(fits, made) > ours:
                continue
            meant = factor * form(given, epsilon) + offset
            error = _relative(meant, own)
            if error <= allowed and _worst_row(meant, own) <= _ROW * allowed:
                return error, allowed
    return None


def _scaled(x: Reals, epsilon: float) -> Reals:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + max(epsilon, _LEAST)))


def _centred(x: Reals, epsilon: float) -> Reals:
    return _scaled(x - x.mean(axis=1, keepdims=True), epsilon)


def _cancels(x: Reals) -> float:
    """How much the difference to the mean magnifies the rounding of a sum, in the worst row."""
    with np.errstate(all="ignore"):
        return max(1.0, float(np.nanmax(np.sqrt(np.mean(x * x, axis=1)) / x.std(axis=1), initial=1.0, where=x.std(axis=1) > 0)))


def _affine(normal: Reals, made: Reals) -> Iterator[tuple[Reals, Reals]]:
    """Factor and offset of each channel, by least squares: without an offset, and with one."""
    with np.errstate(all="ignore"):
        yield np.nan_to_num(np.sum(normal * made, axis=0) / np.sum(normal * normal, axis=0)), np.zeros(normal.shape[1])
        middle, level = normal.mean(axis=0), made.mean(axis=0)
        factor = np.nan_to_num(np.sum((normal - middle) * (made - level), axis=0) / np.sum((normal - middle) ** 2, axis=0))
    yield factor, level - factor * middle


def _relative(meant: Reals, own: Reals) -> float:
    size = float(np.linalg.norm(meant))
    return float(np.linalg.norm(own - meant)) / size if size > 0 else float("inf")


def _worst_row(meant: Reals, own: Reals) -> float:
    size = np.linalg.norm(meant, axis=1)
    with np.errstate(all="ignore"):
        off = np.linalg.norm(own - meant, axis=1) / size
    return float(np.max(np.where(size > 0, off, 0.0), initial=0.0))
