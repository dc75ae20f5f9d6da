"""Elements moved, not computed: gathers, concatenations, fills. Bit for bit; only what is added up has a spread.

index_put, scatter and index_add change a copy of their first operand. Where several elements are added to one place, a
kernel may round each step to the operand's own dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import EXACT, Array, Contract, ContractError, Spread, bind, bounded, dtype_kind, grid_of
from layerdiff.arithmetic.contracts.copies import as_kind, nothing
from layerdiff.arithmetic.formats import Format, format_named
from layerdiff.arithmetic.sums import gamma
from layerdiff.trace.arguments import Arguments


def _moving(function: Callable[..., Any], names: tuple[str, ...], **defaults: Any) -> Contract:
    def exact(arguments: Arguments) -> tuple[Array, ...]:
        made = function(*bind(arguments, names, **defaults))
        return tuple(made) if isinstance(made, tuple) else (np.asarray(made),)

    return Contract(exact, nothing)


def _common(tensors: list[Array]) -> list[Array]:
    """Tensors of one kind: a float among integers makes all float."""
    kind = "f" if any(x.dtype.kind == "f" for x in tensors) else None
    return [as_kind(x, kind) for x in tensors]


def _cat(tensors: list[Array], dim: int) -> Array:
    kept = [x for x in _common(tensors) if x.shape != (0,)] or tensors[:1]
    return np.concatenate(kept, axis=dim)


def _keys(x: Array, indices: list[Any]) -> tuple[Any, ...]:
    """numpy's key for a list of index tensors with gaps; bool masks stay masks."""
    if len(indices) > x.ndim:
        raise ContractError(f"An index of {len(indices)} tensors into a tensor of {x.ndim} dimensions.")
    return tuple(slice(None) if index is None else index for index in indices)


def _adjacent(x: Array, indices: list[Any]) -> Array:
    """x[indices] as torch has it: the indexed dimensions go first where they are not adjacent, which is numpy's rule too."""
    return np.asarray(x[_keys(x, indices)])


def _along(index: Array, dim: int) -> tuple[Array, ...]:
    """Where each element of `index` points: its own place, with the index itself along `dim`."""
    grids: list[Any] = list(np.indices(index.shape, sparse=True))
    grids[dim] = index
    return tuple(grids)


def _gather(x: Array, dim: int, index: Array, _sparse: bool) -> Array:
    if x.ndim == 0:
        return np.broadcast_to(x, index.shape)
    return np.asarray(x[_along(index, dim % x.ndim)])


def _embedding(weight: Array, indices: Array, *_: Any) -> Array:
    bounded(*indices.shape, *weight.shape[1:])
    return np.asarray(weight[indices])


def _pad(x: Array, pad: list[int], value: float) -> Array:
    if len(pad) > 2 * x.ndim:
        raise ContractError(f"A padding of {len(pad)} numbers for {x.ndim} dimensions.")
    widths = [(0, 0)] * x.ndim
    for place in range(len(pad) // 2):
        widths[x.ndim - 1 - place] = (pad[2 * place], pad[2 * place + 1])
    bounded(*(size + max(a, 0) + max(b, 0) for size, (a, b) in zip(x.shape, widths, strict=True)))
    grown = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=value)
    return np.asarray(grown[tuple(slice(max(-a, 0), grown.shape[i] - max(-b, 0)) for i, (a, b) in enumerate(widths))])


def _triangle(x: Array, diagonal: int) -> NDArray[np.bool_]:
    return np.tri(x.shape[-2], x.shape[-1], diagonal, dtype=np.bool_)


def _roll(x: Array, shifts: Any, dims: Any) -> Array:
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims:
        return np.roll(x, shifts[0])
    return np.roll(x, tuple(shifts), axis=tuple(dims) if isinstance(dims, (list, tuple)) else dims)


def _repeat(x: Array, repeats: list[int]) -> Array:
    bounded(x.size, *repeats)
    return np.tile(x.reshape((1,) * (len(repeats) - x.ndim) + x.shape), tuple(repeats))


def _repeat_interleave(x: Array, repeats: Any, dim: Any, _: Any) -> Array:
    bounded(x.size, int(np.max(repeats, initial=0)))
    return np.repeat(x.reshape(-1) if dim is None else x, repeats, axis=0 if dim is None else dim)


def _slices(x: Array, dim: int, start: Any, end: Any, step: int) -> tuple[Any, ...]:
    key: list[Any] = [slice(None)] * x.ndim
    key[dim] = slice(start, end, step)
    return tuple(key)


def _slice_scatter(x: Array, source: Array, dim: int, start: Any, end: Any, step: int) -> Array:
    made: Array = np.array(x)
    made[_slices(x, dim, start, end, step)] = source
    return made


def _select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    made: Array = np.array(x)
    np.moveaxis(made, dim, 0)[index] = source
    return made


def _masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    made = np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, mask.shape)))
    where = np.broadcast_to(mask.astype(bool), made.shape)
    made[where] = source.reshape(-1)[: int(where.sum())]
    return made


def _index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    made: Array = np.array(x)
    np.moveaxis(made, dim, 0)[index] = np.moveaxis(source, dim, 0)
    return made


def _index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    made: Array = np.array(x)
    np.moveaxis(made, dim, 0)[index] = value
    return made


Added = tuple[Array, Array, Array, Array]
"""The result, and for every element of it: how many terms were added to the first, the sum of their sizes, whether it was named."""


def _accumulated(x: Array, key: tuple[Any, ...], values: Array, include: bool = True) -> Added:
    made = x.astype(np.float64) if values.dtype.kind == "f" else x.copy()
    if not include:
        made[key] = 0
    np.add.at(made, key, values)
    count, sizes = np.zeros(x.shape), np.abs(x).astype(np.float64)
    np.add.at(count, key, 1.0)
    np.add.at(sizes, key, np.abs(values))
    return made, count, sizes, count > 0


def _adding(place: Callable[[Arguments], tuple[Array, tuple[Any, ...], Array]]) -> Contract:
    """A contract that adds values at places of its first operand."""

    def exact(arguments: Arguments) -> tuple[Array, ...]:
        return (_accumulated(*place(arguments))[0],)

    def spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
        if results[0].dtype.kind != "f":
            return (EXACT,)
        x, key, values = place(arguments)
        multiplied = arguments.kwargs.get("alpha", 1) != 1
        result, count, sizes, _ = _accumulated(x, key, values)
        step = max(grid_of(x).unit, accumulator.unit)
        bound = np.where(count > 1, np.minimum((count - 1) * step, 1.0) * sizes, 0.0) + accumulator.unit * np.abs(result) * (count > 0)
        bound = bound + (3.0 * step if multiplied else gamma(3, accumulator.unit)) * (sizes - np.abs(x)) * (count > 0)
        return (Spread(bound / 2.0, bound, 1),)

    return Contract(exact, spread)


def _index_add_place(arguments: Arguments) -> tuple[Array, tuple[Any, ...], Array]:
    x, dim, index, source, alpha = bind(arguments, ("self", "dim", "index", "source", "alpha"), alpha=1)
    key: tuple[Any, ...] = (slice(None),) * (dim % max(x.ndim, 1)) + (index,)
    return x, key, source if alpha == 1 else source * alpha


def _scatter_add_place(arguments: Arguments) -> tuple[Array, tuple[Any, ...], Array]:
    x, dim, index, source = bind(arguments, ("self", "dim", "index", "src"))
    return x, _along(index, dim % x.ndim), np.asarray(source)[tuple(slice(n) for n in index.shape)]


def _put_arguments(arguments: Arguments) -> tuple[Array, tuple[Any, ...], Array, bool]:
    x, indices, values, accumulate, *_ = bind(
        arguments, ("self", "indices", "values", "accumulate", "unsafe"), accumulate=False, unsafe=False
    )
    return x, _keys(x, indices), np.asarray(values), accumulate


def _index_put(arguments: Arguments) -> tuple[Array, ...]:
    x, key, values, accumulate = _put_arguments(arguments)
    if accumulate:
        return (_accumulated(x, key, np.broadcast_to(values, x[key].shape))[0],)
    made: Array = np.array(x)
    made[key] = as_kind(values, x.dtype.kind)
    return (made,)


def _index_put_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, key, values, accumulate = _put_arguments(arguments)
    if not accumulate:
        return (EXACT,)
    spread = _adding(lambda _: (x, key, np.broadcast_to(values, x[key].shape))).spread
    return spread(arguments, results, accumulator)


def _index_put_settle(arguments: Arguments, results: tuple[Array, ...], recorded: tuple[Array, ...]) -> tuple[Array, ...]:
    """Where several values go to one place, any of them may be the last."""
    x, key, values, accumulate = _put_arguments(arguments)
    if accumulate or recorded[0].shape != results[0].shape:
        return results
    count = np.zeros(x.shape)
    np.add.at(count, key, 1.0)
    if not np.any(count > 1):
        return results
    spread_values = np.broadcast_to(values, x[key].shape)
    hit = np.zeros(x.shape, bool)
    places = np.arange(x.size).reshape(x.shape)[key].reshape(-1)
    flat = recorded[0].reshape(-1)
    np.logical_or.at(hit.reshape(-1), places, flat[places] == spread_values.reshape(-1))
    return (np.where((count > 1) & hit, recorded[0], results[0]),)


def _scatter_values(arguments: Arguments) -> tuple[Array, int, Array, Array, str | None, bool]:
    x, dim, index, source, reduce, include = bind(
        _renamed(arguments), ("self", "dim", "index", "src", "reduce", "include_self"), reduce=None, include_self=True
    )
    values = np.asarray(source)
    values = np.broadcast_to(values, index.shape) if values.ndim == 0 else values[tuple(slice(n) for n in index.shape)]
    return x, dim % max(x.ndim, 1), index, values, reduce, include


def _renamed(arguments: Arguments) -> Arguments:
    return Arguments(arguments.args, {("src" if name == "value" else name): value for name, value in arguments.kwargs.items()})


def _scatter(arguments: Arguments) -> tuple[Array, ...]:
    x, dim, index, values, reduce, include = _scatter_values(arguments)
    key = _along(index, dim)
    if reduce in ("add", "sum"):
        return (_accumulated(x, key, values, include)[0],)
    made: Array = np.array(x)
    if reduce is None:
        made[key] = as_kind(values, x.dtype.kind)
        return (made,)
    function: Any = {"multiply": np.multiply, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}.get(reduce)
    if function is None or not include:
        raise ContractError(f"A scatter that reduces by {reduce} is not in the contract.")
    function.at(made, key, values)
    return (made,)


def _scatter_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, dim, index, values, reduce, _ = _scatter_values(arguments)
    if reduce in (None, "amax", "amin") or results[0].dtype.kind != "f":
        return (EXACT,)
    if reduce in ("add", "sum"):
        return _adding(lambda _: (x, _along(index, dim), values)).spread(arguments, results, accumulator)
    count = np.zeros(x.shape)
    np.add.at(count, _along(index, dim), 1.0)
    bound = count * grid_of(x, values).unit * np.abs(results[0])
    return (Spread(bound / 2.0, bound, 1),)


def _arange(arguments: Arguments) -> tuple[Array, ...]:
    numbers = [x for x in arguments.args if x is not None]
    start, end, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    kind = dtype_kind(arguments.kwargs.get("dtype"))
    count = max(0, int(np.ceil((end - start) / step)))
    bounded(count)
    made = start + step * np.arange(count)
    return (as_kind(np.asarray(made, np.float64), kind) if kind else made,)


def _arange_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    if results[0].dtype.kind != "f":
        return (EXACT,)
    numbers = [abs(float(x)) for x in arguments.args if x is not None]
    named = format_named(getattr(arguments.kwargs.get("dtype"), "text", ""))  # start and step may be numbers of the dtype itself
    unit = max(accumulator.unit, named.unit if named is not None else 0.0)
    bound = np.full(results[0].shape, 4.0 * unit * max(numbers, default=0.0))
    whole = all(float(x).is_integer() for x in arguments.args if x is not None)
    return (EXACT if whole else Spread(bound / 2.0, bound, 1),)


def _constant(value: float, sized: bool) -> Contract:
    def exact(arguments: Arguments) -> tuple[Array, ...]:
        kind = dtype_kind(arguments.kwargs.get("dtype"))
        first = arguments.args[0]
        if isinstance(first, np.ndarray):
            shape = tuple(arguments.args[1]) if sized else first.shape
            kind = kind or first.dtype.kind
        else:
            shape = tuple(first)
        return (np.broadcast_to(as_kind(np.asarray(value), kind), shape),)

    return Contract(exact, nothing)


def _full(arguments: Arguments) -> tuple[Array, ...]:
    first = arguments.args[0]
    of_tensor = isinstance(first, np.ndarray)
    value = arguments.args[-1]
    shape = tuple(arguments.args[1]) if of_tensor and len(arguments.args) > 2 else first.shape if of_tensor else tuple(first)
    kind = dtype_kind(arguments.kwargs.get("dtype")) or (first.dtype.kind if of_tensor else None)
    return (np.broadcast_to(as_kind(np.asarray(value), kind), shape),)


def _scalar_tensor(arguments: Arguments) -> tuple[Array, ...]:
    return (as_kind(np.asarray(arguments.args[0]), dtype_kind(arguments.kwargs.get("dtype"))),)


def _nonzero(x: Array) -> Array:
    return np.stack(np.nonzero(x), axis=-1).astype(np.int64) if x.ndim else np.zeros((int(x != 0), 0), np.int64)


def _index_select(x: Array, dim: int, index: Array) -> NDArray[Any]:
    bounded(x.size // max(x.shape[dim], 1) if x.ndim else 1, index.size)
    return np.take(x, index, axis=dim) if x.ndim else x


CONTRACTS: Final = {
    "aten.embedding": _moving(_embedding, ("weight", "indices", "a", "b", "c"), a=None, b=None, c=None),
    "aten.index": _moving(_adjacent, ("self", "indices")),
    "aten._unsafe_index": _moving(_adjacent, ("self", "indices")),
    "aten.index_select": _moving(_index_select, ("self", "dim", "index")),
    "aten.gather": _moving(_gather, ("self", "dim", "index", "sparse_grad"), sparse_grad=False),
    "aten.take": _moving(lambda x, index: x.reshape(-1)[index], ("self", "index")),
    "aten.masked_select": _moving(lambda x, mask: np.broadcast_arrays(x, mask)[0][np.broadcast_arrays(x, mask)[1]], ("self", "mask")),
    "aten.nonzero": _moving(_nonzero, ("self",)),
    "aten.cat": _moving(_cat, ("tensors", "dim"), dim=0),
    "aten.stack": _moving(lambda tensors, dim: np.stack(_common(tensors), axis=dim), ("tensors", "dim"), dim=0),
    "aten.constant_pad_nd": _moving(_pad, ("self", "pad", "value"), value=0),
    "aten.roll": _moving(_roll, ("self", "shifts", "dims"), dims=None),
    "aten.flip": _moving(lambda x, dims: np.flip(x, tuple(dims)), ("self", "dims")),
    "aten.repeat": _moving(_repeat, ("self", "repeats")),
    "aten.repeat_interleave.self_int": _moving(_repeat_interleave, ("self", "repeats", "dim", "output_size"), dim=None, output_size=None),
    "aten.repeat_interleave.self_Tensor": _moving(
        _repeat_interleave, ("self", "repeats", "dim", "output_size"), dim=None, output_size=None
    ),
    "aten.tril": _moving(lambda x, diagonal: np.where(_triangle(x, diagonal), x, 0), ("self", "diagonal"), diagonal=0),
    "aten.triu": _moving(lambda x, diagonal: np.where(_triangle(x, diagonal - 1), 0, x), ("self", "diagonal"), diagonal=0),
    "aten.slice_scatter": _moving(_slice_scatter, ("self", "src", "dim", "start", "end", "step"), dim=0, start=None, end=None, step=1),
    "aten.select_scatter": _moving(_select_scatter, ("self", "src", "dim", "index")),
    "aten.masked_scatter": _moving(_masked_scatter, ("self", "mask", "source")),
    "aten.index_copy": _moving(_index_copy, ("self", "dim", "index", "source")),
    "aten.index_fill": _moving(_index_fill, ("self", "dim", "index", "value")),
    "aten.index_add": _adding(_index_add_place),
    "aten.scatter_add": _adding(_scatter_add_place),
    "aten.index_put": Contract(_index_put, _index_put_spread, _index_put_settle),
    "aten._index_put_impl": Contract(_index_put, _index_put_spread, _index_put_settle),
    "aten._unsafe_index_put": Contract(_index_put, _index_put_spread, _index_put_settle),
    "aten.scatter": Contract(_scatter, _scatter_spread),
    "aten.scatter_reduce": Contract(_scatter, _scatter_spread),
    "aten.arange": Contract(_arange, _arange_spread),
    "aten.zeros": _constant(0.0, False),
    "aten.ones": _constant(1.0, False),
    "aten.zeros_like": _constant(0.0, False),
    "aten.ones_like": _constant(1.0, False),
    "aten.new_zeros": _constant(0.0, True),
    "aten.new_ones": _constant(1.0, True),
    "aten.full": Contract(_full, nothing),
    "aten.full_like": Contract(_full, nothing),
    "aten.new_full": Contract(_full, nothing),
    "aten.scalar_tensor": Contract(_scalar_tensor, nothing),
}
