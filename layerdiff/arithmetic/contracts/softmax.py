"""softmax, log_softmax and logsumexp, shifted by the largest element.

The error of the sum is one draw for a whole row: it is counted twice over, so that one row alone does not convict.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from layerdiff.arithmetic.contract import Array, Contract, Spread, bind, grid_of
from layerdiff.arithmetic.contracts.elementwise import TRANSCENDENTAL
from layerdiff.arithmetic.contracts.reductions import ONE_SIGNED_BIAS, axes_of
from layerdiff.arithmetic.formats import FLOAT32, Format
from layerdiff.arithmetic.sums import ROUNDING_VARIANCE, gamma
from layerdiff.trace.arguments import Arguments

SHARED: Final = 2.0
"""Standard deviations allowed for an error that a whole row shares; the ladder's limit of 1.5 then stands for 3 of one draw."""


def denominator_sigma(count: int, accumulator: Format) -> float:
    """Relative sigma of a sum of `count` positive terms (F11: 0.42 u sqrt(K/3), and the bias), counted SHARED times."""
    return SHARED * accumulator.unit * float(np.hypot(np.sqrt(ROUNDING_VARIANCE * count / 3.0), ONE_SIGNED_BIAS * min(count, 4096) / 2.0))


def shifted(x: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """The row maximum (0 where it is infinite) and x minus it."""
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0) if not np.any(top == np.inf) else top
    return top, x - top


def log_of_sum(x: Array, axis: int | tuple[int, ...]) -> Array:
    """log(sum(exp(x))) with its axes kept; -inf for rows of -inf."""
    top, moved = shifted(x, axis)
    return np.asarray(top + np.log(np.exp(moved).sum(axis=axis, keepdims=True)))


def _named(arguments: Arguments) -> Arguments:
    """`half_to_float` of the inner operators stands where the outer ones take a dtype; neither matters in exact arithmetic."""
    return Arguments(arguments.args, {name: value for name, value in arguments.kwargs.items() if name != "half_to_float"})


def _softmax(arguments: Arguments) -> tuple[Array, ...]:
    x, dim, _ = bind(_named(arguments), ("self", "dim", "dtype"), dtype=None)
    with np.errstate(all="ignore"):
        top = np.max(x, axis=dim, keepdims=True)
        weights = np.exp(x - top)
        return (np.asarray(weights / weights.sum(axis=dim, keepdims=True)),)


def _safe_softmax(arguments: Arguments) -> tuple[Array, ...]:
    """A row of -inf alone gives zeros."""
    x, dim, _ = bind(_named(arguments), ("self", "dim", "dtype"), dtype=None)
    empty = np.all(x == -np.inf, axis=dim, keepdims=True)
    return (np.where(empty, 0.0, _softmax(arguments)[0]),)


def _softmax_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    """F14: exp's units, the rounding of x - max (u |x - max| relative), the sum's gamma."""
    x, dim, _ = bind(_named(arguments), ("self", "dim", "dtype"), dtype=None)
    u, count = accumulator.unit, x.shape[dim] if x.ndim else 1
    with np.errstate(all="ignore"):
        distance = np.abs(x - np.max(x, axis=dim, keepdims=True))
        distance = np.where(np.isfinite(distance), distance, 0.0)
        sigma = results[0] * np.hypot(denominator_sigma(count, accumulator), u * (TRANSCENDENTAL / 2.0 + distance / 2.0))
        bound = results[0] * (gamma(count, u) + u * (2.0 * TRANSCENDENTAL + 2.0 * distance))
        floor = accumulator.smallest_normal * (count + 1)  # exp of a very negative number may be flushed
    return (Spread(sigma + floor * (distance > 80), bound + floor * (distance > 80), count),)


def _log_softmax(arguments: Arguments) -> tuple[Array, ...]:
    x, dim, _ = bind(_named(arguments), ("self", "dim", "dtype"), dtype=None)
    with np.errstate(all="ignore"):
        moved = x - np.max(x, axis=dim, keepdims=True)
        return (np.asarray(moved - np.log(np.exp(moved).sum(axis=dim, keepdims=True))),)


def _log_softmax_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    """The sum's relative error is absolute in its logarithm; x - max and the last difference are rounded."""
    x, dim, _ = bind(_named(arguments), ("self", "dim", "dtype"), dtype=None)
    u, count = accumulator.unit, x.shape[dim] if x.ndim else 1
    with np.errstate(all="ignore"):
        top = np.max(x, axis=dim, keepdims=True)
        sizes = np.abs(x - top) + np.abs(results[0]) + np.abs(top + np.log(np.exp(x - top).sum(axis=dim, keepdims=True)))
        sizes = np.where(np.isfinite(sizes), sizes, 0.0)
        narrow = _row_constant(x) * (1.0 + np.abs(np.log(np.exp(x - top).sum(axis=dim, keepdims=True))))
    sigma = np.hypot(denominator_sigma(count, accumulator), u * (TRANSCENDENTAL / 2.0 + sizes / 2.0)) + narrow
    return (Spread(sigma, gamma(count, u) + u * (2.0 * TRANSCENDENTAL + 2.0 * sizes) + 2.0 * narrow, count),)


def _row_constant(x: Array) -> float:
    """The unit in which a kernel may keep a row's sum and its logarithm: the operands' own where they are narrow (torch's CPU does)."""
    grid = grid_of(x)
    return 0.0 if grid is FLOAT32 else grid.unit


def _logsumexp(arguments: Arguments) -> tuple[Array, ...]:
    x, dim, keepdim = bind(arguments, ("self", "dim", "keepdim"), keepdim=False)
    axes = axes_of(x, dim)
    with np.errstate(all="ignore"):
        found = log_of_sum(x, axes)
    return (found if keepdim else np.squeeze(found, axis=axes),)


def logsumexp_spread(x: Array, axes: Any, result: Array, accumulator: Format) -> Spread:
    """The spread of log(sum(exp(x))) over `axes`: the sum's relative error, and u of the size of the maximum."""
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    u = accumulator.unit
    sizes = np.where(np.isfinite(result), np.abs(result), 0.0)
    sigma = np.hypot(denominator_sigma(count, accumulator), u * (TRANSCENDENTAL / 2.0 + sizes))
    return Spread(sigma, gamma(count, u) + u * (2.0 * TRANSCENDENTAL + 2.0 * sizes), count)


def _logsumexp_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, dim, _ = bind(arguments, ("self", "dim", "keepdim"), keepdim=False)
    axes = axes_of(x, dim)
    found = logsumexp_spread(x, axes, results[0], accumulator)
    with np.errstate(all="ignore"):  # a composite: maximum, exp, sum and log are each rounded to the operands' dtype
        top = np.max(x, axis=axes).reshape(results[0].shape)
        narrow = _row_constant(x) * (4.0 + np.abs(results[0] - np.where(np.isfinite(top), top, 0.0)))
        narrow = np.where(np.isfinite(narrow), narrow, 0.0)
    return (Spread(found.sigma + narrow, found.bound + 2.0 * narrow, found.terms),)


CONTRACTS: Final = {
    "aten._softmax": Contract(_softmax, _softmax_spread),
    "aten.softmax": Contract(_softmax, _softmax_spread),
    "aten._safe_softmax": Contract(_safe_softmax, _softmax_spread),
    "aten._log_softmax": Contract(_log_softmax, _log_softmax_spread),
    "aten.log_softmax": Contract(_log_softmax, _log_softmax_spread),
    "aten.logsumexp": Contract(_logsumexp, _logsumexp_spread),
}
