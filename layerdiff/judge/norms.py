"""Whether a norm makes of what it is given what the reference's norm makes of it, told from two pairs of values alone.

A norm scales every row by a statistic of its own, so a difference that lies in small rows is magnified without bound, seen from the whole
value: beside one row of a thousand times their size (a massive activation), or beside a large mean that the norm takes away. What it may
hand on is told by running it. With n(x) = x / sqrt(mean(x^2) + eps), or the same of x - mean(x), its output is a n(x) + b; a and b, one a
channel, are fitted to the reference's own input and output, and so is an epsilon that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.classes import FP32_ROUNDOFF, NORM

Array = NDArray[Any]
Reals = NDArray[np.float64]
Form = Callable[[NDArray[np.float64], float], NDArray[np.float64]]
_FEW: Final = 4
"""Rows from which on a form is held against the reference itself; fewer rows fit any."""
_STEPS: Final = 16
"""How often an epsilon is taken nearer. Measured: seven from 0 to 1e-5 at a mean square of 4e-4, to float64's rounding."""
LEAST: Final = 1e-300
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
    known = as_rows(inputs, outputs)
    if known is None:
        return None
    x, given, made, own = known
    for form in (scaled, centred):
        summing = NORM.summing * FP32_ROUNDOFF * (cancels(x) if form is centred else 1.0)
        ours, allowed = (NORM.rounding * u + summing for u in (roundoffs[0], max(roundoffs)))
        for with_offset in (False, True):
            fitted = fitted_form(form, x, made, epsilon, with_offset=with_offset, until=ours)
            if fitted is None:
                continue
            factor, offset, own_epsilon = fitted
            meant = factor * form(given, own_epsilon) + offset
            error = relative(meant, own)
            if error <= allowed and _worst_row(meant, own) <= _ROW * allowed:
                return error, allowed
    return None


def as_rows(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Reals] | None:
    """The inputs, then the outputs, as rows; None where they are of other shapes, or not finite."""
    if len({x.shape for x in (*inputs, *outputs)}) > 1 or inputs[0].ndim < 1 or inputs[0].size == 0:
        return None
    rows = [one.reshape(-1, one.shape[-1]).astype(np.float64) for one in (*inputs, *outputs)]
    return rows if all(np.isfinite(one).all() for one in rows) else None


def scaled(x: Reals, epsilon: float) -> Reals:
    """An RMSNorm of rows, without weights."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + max(epsilon, LEAST)))


def centred(x: Reals, epsilon: float) -> Reals:
    """A LayerNorm of rows, without weights."""
    return scaled(x - x.mean(axis=1, keepdims=True), epsilon)


def square_of(form: Form, x: Reals) -> Reals:
    """What the epsilon is added to, of each row."""
    return np.asarray((x * x if form is scaled else np.square(x - x.mean(axis=1, keepdims=True))).mean(axis=1, keepdims=True))


def cancels(x: Reals) -> float:
    """How much the difference to the mean magnifies the rounding of a sum, in the worst row."""
    with np.errstate(all="ignore"):
        return max(1.0, float(np.nanmax(np.sqrt(np.mean(x * x, axis=1)) / x.std(axis=1), initial=1.0, where=x.std(axis=1) > 0)))


def fitted_form(form: Form, x: Reals, made: Reals, epsilon: float, *, with_offset: bool, until: float) -> tuple[Reals, Reals, float] | None:
    """Factor and offset of each channel, and an epsilon, by least squares; None where rows enough to tell do not meet them.

    From the epsilon that is known, or none, a nearer one is looked for as long as it fits better: its change makes
    -1/2 change / (mean square + epsilon) of each row (Gauss-Newton, by variable projection).
    """
    square = square_of(form, x)
    best: tuple[float, tuple[Reals, Reals, float]] | None = None
    for _ in range(_STEPS if len(x) >= _FEW else 1):
        normal = form(x, epsilon)
        factor, offset = _affine(normal, made, with_offset=with_offset)
        fits = factor * normal + offset
        off = relative(fits, made)
        if best is not None and not off < best[0]:
            break
        best = off, (factor, offset, epsilon)
        change = -0.5 * (fits - offset) / (square + max(epsilon, LEAST))
        own, level = _affine(normal, change, with_offset=with_offset)
        change = change - (own * normal + level)  # what neither factor nor offset can make
        with np.errstate(all="ignore"):
            step = float(np.sum((made - fits) * change) / np.sum(change * change))
        if not np.isfinite(step):
            break
        epsilon = max(epsilon + step, 0.0)
    return None if best is None or (len(x) >= _FEW and best[0] > until) else best[1]


def _affine(normal: Reals, made: Reals, *, with_offset: bool) -> tuple[Reals, Reals]:
    middle, level = (one.mean(axis=0) if with_offset else np.zeros(one.shape[1]) for one in (normal, made))
    with np.errstate(all="ignore"):
        factor = np.nan_to_num(np.sum((normal - middle) * (made - level), axis=0) / np.sum((normal - middle) ** 2, axis=0))
    return factor, level - factor * middle


def relative(meant: Reals, own: Reals) -> float:
    """Relative L2 error; infinite beside zeros."""
    size = float(np.linalg.norm(meant))
    return float(np.linalg.norm(own - meant)) / size if size > 0 else float("inf")


def _worst_row(meant: Reals, own: Reals) -> float:
    size = np.linalg.norm(meant, axis=1)
    with np.errstate(all="ignore"):
        off = np.linalg.norm(own - meant, axis=1) / size
    return float(np.max(np.where(size > 0, off, 0.0), initial=0.0))
