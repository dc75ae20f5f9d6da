"""Sums and what is made of them over dimensions: sum, mean, prod, norms, the largest and the smallest.

One-signed sums on a coarse grid are biased (ties to even on shared grids): sums allow for it, by what was measured.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import EXACT, Array, Contract, ContractError, Spread, bind, dtype_kind, grid_of
from layerdiff.arithmetic.contracts.copies import as_kind, nothing
from layerdiff.arithmetic.formats import FLOAT32, Format
from layerdiff.arithmetic.orders.summing import Summing, of_terms
from layerdiff.arithmetic.sums import gamma, prefix_sigma, sum_bound, sum_sigma
from layerdiff.trace.arguments import Arguments

ONE_SIGNED_BIAS: Final = 0.03
"""Mean error of an addition, in u of the partial sum, where all terms have one sign and lie on a coarse grid. Measured for
sequential fp32 sums of squares of bf16 numbers, K = 4096: -63 u of the sum, 0.031 u a step (tests/arithmetic)."""


def axes_of(x: Array, dim: Any) -> tuple[int, ...]:
    """The reduced axes, counted from 0: all of them for None and for an empty list, as torch has it.

    Raises ContractError for an axis that `x` does not have.
    """
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(x.ndim))
    listed = dim if isinstance(dim, (list, tuple)) else [dim]
    if x.ndim == 0:
        return ()
    if any(not -x.ndim <= axis < x.ndim for axis in listed):
        raise ContractError(f"A reduction over dimensions {list(listed)} of a tensor with {x.ndim}.")
    return tuple(axis % x.ndim for axis in listed)


def count_of(x: Array, axes: tuple[int, ...]) -> int:
    """How many elements are reduced to one."""
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def reduced_sum_spread(terms: Array, y: Array, axes: tuple[int, ...], keepdim: bool, accumulator: Format) -> Spread:
    """The spread of terms.sum(axes): F4, F1, and the bias of one-signed sums."""
    count = count_of(terms, axes)
    squares = np.square(terms).sum(axes, keepdims=keepdim)
    sizes = np.abs(terms).sum(axes, keepdims=keepdim)
    sigma = sum_sigma(y, squares, count, accumulator, products=False)
    sigma = np.hypot(sigma, ONE_SIGNED_BIAS * accumulator.unit * (count / 2.0) * np.where(np.abs(y) >= 0.999 * sizes, np.abs(y), 0.0))

    def refine(flat: NDArray[np.intp]) -> NDArray[np.float64]:
        kept = [axis for axis in range(terms.ndim) if axis not in axes]
        rows = np.transpose(terms, [*kept, *axes]).reshape(-1, max(count, 1))
        return np.maximum(prefix_sigma(rows[flat], accumulator), sigma.reshape(-1)[flat])

    return Spread(sigma, sum_bound(sizes, count, accumulator, products=False), max(count, 1), refine)


def _sum_arguments(arguments: Arguments) -> tuple[Array, tuple[int, ...], bool]:
    x, dim, keepdim, dtype = bind(arguments, ("self", "dim", "keepdim", "dtype"), dim=None, keepdim=False, dtype=None)
    if x.dtype.kind == "b":
        x = x.astype(np.int64)
    return as_kind(x, dtype_kind(dtype)), axes_of(x, dim), keepdim


def _sum(arguments: Arguments) -> tuple[Array, ...]:
    x, axes, keepdim = _sum_arguments(arguments)
    return (np.asarray(x.sum(axes, keepdims=keepdim)),)


def _sum_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, axes, keepdim = _sum_arguments(arguments)
    if x.dtype.kind != "f":
        return (EXACT,)
    return (reduced_sum_spread(x, results[0], axes, keepdim, accumulator),)


def _mean(arguments: Arguments) -> tuple[Array, ...]:
    x, axes, keepdim = _sum_arguments(arguments)
    return (np.asarray(x.mean(axes, keepdims=keepdim)),)


def _mean_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, axes, keepdim = _sum_arguments(arguments)
    count = max(count_of(x, axes), 1)
    found = reduced_sum_spread(x, results[0] * count, axes, keepdim, accumulator)
    division = 2.0 * accumulator.unit * np.abs(results[0])
    refine = found.refine
    assert refine is not None

    def refined(flat: NDArray[np.intp]) -> NDArray[np.float64]:
        return refine(flat) / count + division.reshape(-1)[flat]

    return (Spread(found.sigma / count + division / 2.0, found.bound / count + division, count, refined),)


def _sum_of(arguments: Arguments, shape: tuple[int, ...]) -> Summing | None:
    x, axes, _ = _sum_arguments(arguments)
    return of_terms(x, axes) if x.dtype.kind == "f" else None


def _mean_of(arguments: Arguments, shape: tuple[int, ...]) -> Summing | None:
    x, axes, _ = _sum_arguments(arguments)
    return of_terms(x, axes, float(max(count_of(x, axes), 1))) if x.dtype.kind == "f" else None


def _prod(arguments: Arguments) -> tuple[Array, ...]:
    x, axes, keepdim = _sum_arguments(arguments)
    return (np.asarray(x.prod(axes, keepdims=keepdim)),)


def _prod_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, axes, _ = _sum_arguments(arguments)
    if x.dtype.kind != "f":
        return (EXACT,)
    count = max(count_of(x, axes), 1)
    size = np.abs(results[0])
    grid = grid_of(x)  # torch's CPU multiplies in the operands' own dtype
    u = accumulator.unit if grid is FLOAT32 else grid.unit
    return (Spread(np.sqrt(0.18 * count) * u * size, gamma(count, u) * size, count),)


def _extreme(largest: bool) -> Contract:
    def exact(arguments: Arguments) -> tuple[Array, ...]:
        x, dim, keepdim = bind(arguments, ("self", "dim", "keepdim"), dim=None, keepdim=False)
        function = np.max if largest else np.min
        return (np.asarray(function(x, axis=axes_of(x, dim), keepdims=keepdim)),)

    return Contract(exact, nothing)


def _norm_arguments(arguments: Arguments) -> tuple[Array, Any, tuple[int, ...], bool]:
    x, order, dim, keepdim, _ = bind(arguments, ("self", "ord", "dim", "keepdim", "dtype"), ord=2, dim=None, keepdim=False, dtype=None)
    return x, 2 if order is None else order, axes_of(x, dim), keepdim


def _vector_norm(arguments: Arguments) -> tuple[Array, ...]:
    x, order, axes, keepdim = _norm_arguments(arguments)
    size = np.abs(x)
    if order == np.inf:
        return (np.asarray(size.max(axes, keepdims=keepdim)),)
    if order == -np.inf:
        return (np.asarray(size.min(axes, keepdims=keepdim)),)
    if order == 0:
        return (np.asarray((x != 0).sum(axes, keepdims=keepdim).astype(np.float64)),)
    with np.errstate(all="ignore"):
        return (np.asarray((size**order).sum(axes, keepdims=keepdim) ** (1.0 / order)),)


def _vector_norm_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, order, axes, _ = _norm_arguments(arguments)
    if order in (0, np.inf, -np.inf):
        return (EXACT,)
    count = max(count_of(x, axes), 1)
    size = np.abs(results[0])
    u = accumulator.unit
    shared = np.hypot(np.sqrt(0.18 * (count / 3.0 + 4.0)), ONE_SIGNED_BIAS * count / 2.0) / abs(order) + 4.0
    overflow = np.where((np.abs(x) ** order).sum(axes) > accumulator.largest, np.inf, 0.0).reshape(size.shape)
    return (Spread(shared * u * size, (gamma(count, u) / abs(order) + 16 * u) * size + overflow, count),)


CONTRACTS: Final = {
    "aten.sum": Contract(_sum, _sum_spread, summing=_sum_of),
    "aten.mean": Contract(_mean, _mean_spread, summing=_mean_of),
    "aten.prod": Contract(_prod, _prod_spread),
    "aten.amax": _extreme(True),
    "aten.amin": _extreme(False),
    "aten.max.default": _extreme(True),
    "aten.min.default": _extreme(False),
    "aten.linalg_vector_norm": Contract(_vector_norm, _vector_norm_spread),
    "aten.norm": Contract(_vector_norm, _vector_norm_spread),
}
