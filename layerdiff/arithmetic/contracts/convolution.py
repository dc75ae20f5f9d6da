"""Convolutions of any rank, transposed ones too: sums over input channels of a group and over the kernel.

Kernels that transform first (Winograd, FFT) round more than a direct sum; the spread is the direct sum's.
"""

from __future__ import annotations

from itertools import product as every
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Array, Contract, ContractError, Spread, bind, bounded, grid_of
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.orders.summing import Summing, Taken
from layerdiff.arithmetic.sums import ROUNDING_VARIANCE, gamma, sum_bound, sum_sigma
from layerdiff.trace.arguments import Arguments


class _Call(NamedTuple):
    x: Array
    weight: Array
    bias: Array | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


def _call(arguments: Arguments) -> _Call:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")
    found = bind(Arguments(arguments.args[:9], arguments.kwargs), names, bias=None)
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = found
    rank = weight.ndim - 2
    if x.ndim != rank + 2:
        raise ContractError(f"A convolution of rank {rank} over a tensor of {x.ndim} dimensions.")

    def each(value: Any) -> tuple[int, ...]:
        listed = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        return listed * rank if len(listed) == 1 else listed

    return _Call(x, weight, bias, each(stride), each(padding), each(dilation), bool(transposed), each(output_padding), groups)


def _reached(place: tuple[int, ...], sizes: tuple[int, ...], call: _Call) -> tuple[slice, ...]:
    """The elements that one place of the kernel meets, of the padded input (of the result, when transposed)."""
    starts = [at * dilation for at, dilation in zip(place, call.dilation, strict=True)]
    return tuple(slice(a, a + (size - 1) * step + 1, step) for a, size, step in zip(starts, sizes, call.stride, strict=True))


def _convolved(x: Array, weight: Array, call: _Call) -> Array:
    """The convolution without its bias: one matrix product for each place of the kernel."""
    rank, groups = weight.ndim - 2, call.groups
    n, channels = x.shape[:2]
    kernel = weight.shape[2:]
    if call.transposed:
        sizes = tuple(
            (x.shape[2 + i] - 1) * call.stride[i] - 2 * call.padding[i] + call.dilation[i] * (kernel[i] - 1) + call.output_padding[i] + 1
            for i in range(rank)
        )
        full = tuple(max(sizes[i] + 2 * call.padding[i], 0) for i in range(rank))
        outputs = weight.shape[1]
        bounded(n, groups, outputs, *full)
        made = np.zeros((n, groups, outputs, *full))
        left = weight.reshape(groups, channels // groups, outputs, *kernel)
        flat = x.reshape(n, groups, channels // groups, -1)
        for place in every(*(range(k) for k in kernel)):
            part = np.matmul(np.swapaxes(left[(slice(None),) * 3 + place], -1, -2), flat).reshape(n, groups, outputs, *x.shape[2:])
            key = _reached(place, x.shape[2:], call)
            made[(slice(None),) * 3 + key] += part
        inner = tuple(slice(call.padding[i], call.padding[i] + sizes[i]) for i in range(rank))
        return made[(slice(None),) * 3 + inner].reshape(n, groups * outputs, *sizes)
    bounded(n, channels, *(size + 2 * p for size, p in zip(x.shape[2:], call.padding, strict=True)))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in call.padding)])
    sizes = tuple((padded.shape[2 + i] - call.dilation[i] * (kernel[i] - 1) - 1) // call.stride[i] + 1 for i in range(rank))
    outputs = weight.shape[0] // groups
    left = weight.reshape(groups, outputs, channels // groups, *kernel)
    made = np.zeros((n, groups, outputs, int(np.prod(sizes))))
    for place in every(*(range(k) for k in kernel)):
        key = _reached(place, sizes, call)
        part = padded[(slice(None),) * 2 + key].reshape(n, groups, channels // groups, -1)
        made += np.matmul(left[(slice(None),) * 3 + place], part)
    return made.reshape(n, groups * outputs, *sizes)


def _with_bias(call: _Call) -> Array | float:
    return 0.0 if call.bias is None else call.bias.reshape((1, -1) + (1,) * (call.x.ndim - 2))


def _exact(arguments: Arguments) -> tuple[Array, ...]:
    call = _call(arguments)
    return (np.asarray(_convolved(call.x, call.weight, call) + _with_bias(call)),)


def _spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    """F4 and F1 over K = channels of a group times kernel places; the bias may be the accumulator's first value."""
    call, u = _call(arguments), accumulator.unit
    grid = grid_of(call.x, call.weight)
    base = _with_bias(call)
    y = results[0] - base
    squares = _convolved(np.square(call.x), np.square(call.weight), call)
    sizes = _convolved(np.abs(call.x), np.abs(call.weight), call)
    terms = int((call.x.shape[1] // call.groups) * np.prod(call.weight.shape[2:], dtype=np.int64))
    sigma = sum_sigma(y, squares, terms, accumulator)
    bound = sum_bound(sizes, terms, accumulator)
    if call.transposed and grid.unit > u:  # torch's CPU adds the places of the kernel up in the operands' own dtype
        places = int(np.prod(call.weight.shape[2:], dtype=np.int64))
        sigma = np.hypot(sigma, sum_sigma(y, squares, places, grid))
        bound = bound + gamma(places + 1, grid.unit) * sizes
    if call.bias is not None:
        result = results[0]
        variance = terms * ((np.square(base) + base * result + np.square(result)) / 3.0 + squares / 6.0)
        moved = u * np.sqrt(ROUNDING_VARIANCE * (variance + np.square(result) + np.square(base)))
        sigma = np.maximum(sigma, np.where(squares > 0, moved, 0.0)) + 0.5 * u * np.abs(result)
        bound = bound + gamma(terms + 2, u) * np.abs(base) + 2.0 * u * np.abs(result)
    return (Spread(sigma, bound, terms),)


def _sums(arguments: Arguments, shape: tuple[int, ...]) -> Summing | None:
    """Each result's terms: channels of its group, then places of the kernel; or places, then channels."""
    call = _call(arguments)
    if call.transposed or call.x.dtype.kind != "f":
        return None
    rank = call.x.ndim - 2
    channels, kernel = call.weight.shape[1], call.weight.shape[2:]
    per_group = call.weight.shape[0] // call.groups
    padded = np.pad(call.x, [(0, 0), (0, 0), *((p, p) for p in call.padding)])
    places = np.meshgrid(*(np.arange(k) for k in kernel), indexing="ij")
    terms = int(channels * np.prod(kernel, dtype=np.int64))

    def take(flat: NDArray[np.intp]) -> Taken:
        n, o, *at = np.unravel_index(flat, shape)
        wide = (slice(None),) + (None,) * rank
        key = tuple(at[i][wide] * call.stride[i] + places[i] * call.dilation[i] for i in range(rank))
        first = (o // per_group) * channels
        index = (first[:, None] + np.arange(channels)).reshape((-1, channels) + (1,) * rank)
        left = padded[(n.reshape((-1, 1) + (1,) * rank), index) + tuple(k[:, None] for k in key)]  # noqa: RUF005
        start = None if call.bias is None else np.asarray(call.bias, np.float64)[o]
        return Taken(left.reshape(len(flat), terms), call.weight[o].reshape(len(flat), terms), start)

    other = np.arange(terms).reshape(channels, -1).T.reshape(-1)
    arrangements = (("kernel places before channels", other),) if 1 < channels < terms else ()
    return Summing(terms, int(np.prod(shape)), take, has_start=call.bias is not None, arrangements=arrangements)


_CONVOLUTION: Final = Contract(_exact, _spread, summing=_sums)
CONTRACTS: Final = {"aten.convolution": _CONVOLUTION, "aten._convolution": _CONVOLUTION, "aten.convolution_overrideable": _CONVOLUTION}
