"""Matrix products: mm, addmm, bmm, baddbmm, linear, matmul, mv, dot and what is built on one.

An added matrix or bias may be the accumulator's first value, so the prefix sums run from it to the result; a spread
that adds it last convicts kernels that start with it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import EXACT, Array, Contract, Spread, bind, bounded
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.orders.summing import Product, Summing, of_product
from layerdiff.arithmetic.sums import ROUNDING_VARIANCE, gamma, prefix_sigma, sum_bound, sum_sigma
from layerdiff.trace.arguments import Arguments

_EXACT_SIZES_UP_TO: Final = 1 << 26
"""Products M*N*K up to which sum|p| is computed; beyond, its bound sqrt(K V) by Cauchy and Schwarz stands for it."""
_SMALLEST_RATIO: Final = 2.0**-36
_REFINED_AT_ONCE: Final = 1 << 22


def sum_of_squares(left: Array, right: Array) -> NDArray[np.float64]:
    """V = (x^2) @ (w^2), in fp32 (twice as fast) where large operands have no elements so small that a product would vanish there."""
    if left.size * right.shape[-1] <= _EXACT_SIZES_UP_TO >> 3:
        return np.asarray(np.matmul(np.square(left), np.square(right)))
    rows, columns = (np.max(np.abs(x), axis=axis, keepdims=True) for x, axis in ((left, -1), (right, -2)))
    scaled = [(x / np.where(top > 0, top, 1.0)).astype(np.float32) for x, top in ((left, rows), (right, columns))]
    for x in scaled:
        np.square(x, out=x)
    vanished = any(np.count_nonzero(a) != np.count_nonzero(b) for a, b in zip(scaled, (left, right), strict=True))
    if vanished or any(np.any((x < _SMALLEST_RATIO**2) & (x > 0)) for x in scaled):
        return np.asarray(np.matmul(np.square(left), np.square(right)))
    narrow = np.matmul(*scaled).astype(np.float64)
    return np.asarray(narrow * np.square(rows) * np.square(columns))


def product_spread(left: Array, right: Array, y: Array, accumulator: Format, start: Array | float = 0.0, scale: float = 1.0) -> Spread:
    """The spread of start + scale * (left @ right).

    F4 along the Brownian bridge from b (the start) to b + y: E s^2 = (b^2 + b(b+y) + (b+y)^2)/3 + V/6 at every step; with b
    added last, F4 and one rounding. The larger holds. Bound: F1, with the start in every partial sum.

    Args:
        left: [..., M, K]. right: [..., K, N]. y: left @ right, exact. start: broadcastable to y's shape.

    Returns:
        A Spread of y's shape, K terms.
    """
    terms = left.shape[-1]
    u = accumulator.unit
    squares = sum_of_squares(left, right)
    small = squares.size * terms <= _EXACT_SIZES_UP_TO
    sizes = np.matmul(np.abs(left), np.abs(right)) if small else np.sqrt(terms * squares)
    scaled = scale * y
    sigma = np.abs(scale) * sum_sigma(y, squares, terms, accumulator)
    bound = np.abs(scale) * sum_bound(sizes, terms, accumulator)
    base = np.asarray(start, np.float64)
    if np.any(base) or scale != 1.0:
        result = base + scaled
        first = terms * ((np.square(base) + base * result + np.square(result)) / 3.0 + scale * scale * squares / 6.0)
        moved = np.sqrt(ROUNDING_VARIANCE * (first + np.square(scaled) + np.square(base))) * u
        sigma = np.maximum(np.where(squares > 0, moved, 0.0), sigma)
        sigma = sigma + u * (np.abs(scaled) * (scale != 1.0) + np.abs(result) * 0.5)
        bound = bound + gamma(terms + 2, u) * np.abs(base) + 2 * u * np.abs(scaled) + u * np.abs(result)

    def refine(flat: NDArray[np.intp]) -> NDArray[np.float64]:
        found = np.abs(scale) * _actual(left, right, y.shape, flat, accumulator)
        return np.asarray(np.maximum(found, np.broadcast_to(sigma, y.shape).reshape(-1)[flat]))

    return Spread(sigma, bound, terms, refine)


def _actual(left: Array, right: Array, shape: tuple[int, ...], flat: NDArray[np.intp], accumulator: Format) -> NDArray[np.float64]:
    """F3 of the results at flat indices, from the prefix sums of their own terms."""
    rows = np.broadcast_to(left, (*shape[:-2], *left.shape[-2:]))
    columns = np.broadcast_to(np.swapaxes(right, -1, -2), (*shape[:-2], right.shape[-1], right.shape[-2]))
    where = np.unravel_index(flat, shape)
    found = np.empty(flat.size)
    step = max(1, _REFINED_AT_ONCE // max(left.shape[-1], 1))
    for begin in range(0, flat.size, step):
        part = tuple(axis[begin : begin + step] for axis in where)
        terms = rows[part[:-1]] * columns[part[:-2] + part[-1:]]
        found[begin : begin + step] = prefix_sigma(terms, accumulator)
    return found


def _parts(name: str, arguments: Arguments) -> tuple[Array, Array, Any, float, float]:
    """left, right, what is added (or None), beta, alpha of the call `name`; left and right at least two-dimensional."""
    if name in ("addmm", "baddbmm", "addmv"):
        added, left, right, beta, alpha = bind(arguments, ("self", "mat1", "mat2", "beta", "alpha"), beta=1, alpha=1)
        if name == "addmv":
            return left, right[:, None], added[:, None] if added.ndim else added, beta, alpha
        return left, right, added, beta, alpha
    if name == "linear":
        left, weight, bias = bind(arguments, ("input", "weight", "bias"), bias=None)
        return left, np.swapaxes(weight, -1, -2), bias, 1, 1
    left, right = bind(arguments, ("self", "mat2"))
    if left.ndim == 1:
        left = left[None, :]
    if right.ndim == 1:
        right = right[:, None]
    return left, right, None, 1, 1


_RENAMED: Final = {"batch1": "mat1", "batch2": "mat2", "mat": "mat1", "vec": "mat2", "other": "mat2", "tensor": "mat2"}


def _contract(name: str) -> Contract:
    def parts(arguments: Arguments) -> tuple[Array, Array, Any, float, float]:
        second = name in ("mv", "dot", "matmul", "mm", "bmm")
        renamed = {
            ("mat2" if second and key in ("vec", "other", "tensor") else _RENAMED.get(key, key)): x for key, x in arguments.kwargs.items()
        }
        renamed.pop("out_dtype", None)
        args = arguments.args[:3] if name in ("addmm", "baddbmm") else arguments.args[:2] if name in ("mm", "bmm") else arguments.args
        return _parts(name, Arguments(args, renamed))

    def shaped(arguments: Arguments, result: Array) -> Array:
        """The two-dimensional product, of the shape that the operator gives."""
        if name in ("mv", "dot", "matmul"):
            first, second = bind(Arguments(arguments.args, {}), ("self", "mat2"), self=None, mat2=None)
            one = np.ndim(first) == 1, np.ndim(second) == 1
            return result.reshape(result.shape[:-2] + (() if one[0] else result.shape[-2:-1]) + (() if one[1] else result.shape[-1:]))
        return result[..., 0] if name == "addmv" else result

    def exact(arguments: Arguments) -> tuple[Array, ...]:
        left, right, added, beta, alpha = parts(arguments)
        bounded(*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
        with np.errstate(all="ignore"):
            y = np.matmul(left, right)
            if alpha != 1:
                y = alpha * y
            if added is not None and beta != 0:
                y = y + (added if beta == 1 else beta * added)
        return (shaped(arguments, y),)

    def spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
        left, right, added, beta, alpha = parts(arguments)
        if results[0].dtype.kind != "f":
            return (EXACT,)
        shape = results[0].shape
        with np.errstate(all="ignore"):
            start = 0.0 if added is None or beta == 0 else beta * added
            whole = results[0].reshape((*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]))
            y = (whole - start) / alpha if alpha else np.matmul(left, right)
            found = product_spread(left, right, y, accumulator, start, float(alpha))
        return (Spread(found.sigma.reshape(shape), found.bound.reshape(shape), found.terms, found.refine),)

    def product(arguments: Arguments) -> Product | None:
        left, right, added, beta, alpha = parts(arguments)
        if not left.dtype.kind == right.dtype.kind == "f":
            return None
        return Product(left, right, float(alpha), None if added is None or beta == 0 else beta * added)

    def summing(arguments: Arguments, shape: tuple[int, ...]) -> Summing | None:
        inside = product(arguments)
        return None if inside is None else of_product(inside, shape)

    return Contract(exact, spread, product=product, summing=summing)


CONTRACTS: Final = {
    f"aten.{name}": _contract(name) for name in ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "mv", "dot", "addmv")
} | {
    "aten._int_mm": _contract("mm"),
    "aten.vdot": _contract("dot"),
}
