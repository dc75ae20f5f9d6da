"""Matrix products of groups, and with packed weights: _grouped_mm, _weight_int8pack_mm.

Rows of a grouped product that belong to no group are never written: nothing is said of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from layerdiff.arithmetic.contract import Array, Contract, ContractError, Spread, bind
from layerdiff.arithmetic.contracts.matmul import product_spread
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.orders.summing import Product
from layerdiff.trace.arguments import Arguments


def _groups(arguments: Arguments) -> tuple[Array, Array, list[tuple[int, int]] | None, Array | None]:
    x, weight, offsets, bias, _ = bind(arguments, ("self", "mat2", "offs", "bias", "out_dtype"), offs=None, bias=None, out_dtype=None)
    if (offsets is None) != (x.ndim == 3 and weight.ndim == 3):
        raise ContractError("A grouped product has offsets where an operand is two-dimensional, and only there.")
    if offsets is None:
        return x, weight, None, bias
    ends = [int(end) for end in offsets]
    return x, weight, list(zip([0, *ends[:-1]], ends, strict=True)), bias


def _parts(arguments: Arguments) -> list[tuple[tuple[slice | int, ...], Array, Array]]:
    """Where each group's product stands in the result, and its two matrices."""
    x, weight, ranges, _ = _groups(arguments)
    if ranges is None:
        return [((i,), x[i], weight[i]) for i in range(x.shape[0])]
    if x.ndim == 2 and weight.ndim == 3:
        return [((slice(a, b),), x[a:b], weight[i]) for i, (a, b) in enumerate(ranges)]
    if x.ndim == 2:
        return [((i,), x[:, a:b], weight[a:b]) for i, (a, b) in enumerate(ranges)]
    return [((slice(None), slice(a, b)), x[i], weight[:, a:b]) for i, (a, b) in enumerate(ranges)]


def _shape(arguments: Arguments) -> tuple[int, ...]:
    x, weight, ranges, _ = _groups(arguments)
    groups = x.shape[0] if ranges is None else len(ranges)
    inner = (x.shape[-2], weight.shape[-1])
    return inner if x.ndim != weight.ndim else (groups, *inner)


def _grouped(arguments: Arguments) -> tuple[Array, ...]:
    made = np.zeros(_shape(arguments))
    for key, left, right in _parts(arguments):
        made[key] = left @ right
    bias = _groups(arguments)[3]
    return (made if bias is None else made + bias,)


def _grouped_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    sigma, bound = np.zeros(results[0].shape), np.full(results[0].shape, np.inf)
    terms = 1
    bias = _groups(arguments)[3]
    for key, left, right in _parts(arguments):
        if left.size == 0 or right.size == 0:
            bound[key] = 0.0
            continue
        found = product_spread(left, right, left @ right, accumulator, 0.0 if bias is None else bias)
        sigma[key], bound[key] = found.sigma, found.bound
        terms = max(terms, found.terms)
    return (Spread(sigma, bound, terms),)


def _int8(arguments: Arguments) -> tuple[Array, Array, Array]:
    x, weight, scales = bind(arguments, ("self", "mat2", "scales"))
    return x, weight.astype(np.float64).T, scales


def _int8_mm(arguments: Arguments) -> tuple[Array, ...]:
    x, weight, scales = _int8(arguments)
    return ((x @ weight) * scales,)


def _int8_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, weight, scales = _int8(arguments)
    found = product_spread(x, weight, x @ weight, accumulator)
    extra = 2.0 * accumulator.unit * np.abs(results[0])
    size = np.abs(scales)
    return (Spread(found.sigma * size + extra / 2.0, found.bound * size + extra, found.terms),)


def _int8_product(arguments: Arguments) -> Product:
    x, weight, scales = _int8(arguments)
    return Product(x, weight * scales)


CONTRACTS: Final = {
    "aten._grouped_mm": Contract(_grouped, _grouped_spread),
    "aten._weight_int8pack_mm": Contract(_int8_mm, _int8_spread, product=_int8_product),
}
