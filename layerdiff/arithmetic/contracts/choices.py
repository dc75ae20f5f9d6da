"""Comparisons, logic and choices: exact on the operands; any index is right that points at the right value.

A number beside narrow operands may be rounded to their dtype before it is compared, so a comparison takes the recorded
decision where the two readings part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from layerdiff.arithmetic.contract import Array, Contract, bind
from layerdiff.arithmetic.contracts.copies import nothing
from layerdiff.arithmetic.contracts.elementwise import as_rounded
from layerdiff.arithmetic.contracts.reductions import axes_of
from layerdiff.trace.arguments import Arguments

Results = tuple[Array, ...]


def _comparison(function: Callable[[Any, Any], Any]) -> Contract:
    def exact(arguments: Arguments) -> Results:
        with np.errstate(all="ignore"):
            return (np.asarray(function(*bind(arguments, ("self", "other")))),)

    def settle(arguments: Arguments, results: Results, recorded: Results) -> Results:
        rounded = as_rounded(bind(arguments, ("self", "other")), wide=True)
        if rounded is None or recorded[0].shape != results[0].shape:
            return results
        with np.errstate(all="ignore"):
            other = np.asarray(function(*rounded))
        hits = [np.count_nonzero(recorded[0] == x) for x in (results[0], other)]
        return (other,) if hits[1] > hits[0] else results

    return Contract(exact, nothing, settle)


def _logic(function: Callable[..., Any], names: tuple[str, ...]) -> Contract:
    def exact(arguments: Arguments) -> Results:
        return (np.asarray(function(*bind(arguments, names))),)

    return Contract(exact, nothing)


def _some(function: Callable[..., Any]) -> Contract:
    def exact(arguments: Arguments) -> Results:
        x, dim, keepdim = bind(arguments, ("self", "dim", "keepdim"), dim=None, keepdim=False)
        return (np.asarray(function(x != 0, axis=axes_of(x, dim), keepdims=keepdim)),)

    return Contract(exact, nothing)


def _pointed(x: Array, index: Array, axis: int) -> Array | None:
    """The elements that `index` points at along `axis`; None where one points outside."""
    if index.dtype.kind not in "iu" or (index.size and (index.min() < 0 or index.max() >= x.shape[axis])):
        return None
    return np.take_along_axis(x, index.astype(np.int64), axis)


def _same(a: Array, b: Array) -> Array:
    same: Array = (a == b) | ((a != a) & (b != b))
    return same


def _arg_extreme(largest: bool) -> Contract:
    function = np.argmax if largest else np.argmin

    def values(arguments: Arguments) -> tuple[Array, int | None, bool]:
        x, dim, keepdim = bind(arguments, ("self", "dim", "keepdim"), dim=None, keepdim=False)
        return x, dim, keepdim

    def exact(arguments: Arguments) -> Results:
        x, dim, keepdim = values(arguments)
        return (np.asarray(function(x, axis=dim, keepdims=keepdim if dim is not None else False)),)

    def settle(arguments: Arguments, results: Results, recorded: Results) -> Results:
        x, dim, keepdim = values(arguments)
        if recorded[0].shape != results[0].shape:
            return results
        row, axis = (x.reshape(-1), 0) if dim is None else (x, dim % max(x.ndim, 1))
        kept = dim is not None and keepdim
        ours, theirs = (index if kept else np.expand_dims(index, axis) for index in (results[0], recorded[0]))
        found = _pointed(row, theirs, axis)
        if found is None:
            return results
        right = _same(found, np.take_along_axis(row, ours, axis))
        return (np.where(right if kept else np.squeeze(right, axis), recorded[0], results[0]),)

    return Contract(exact, nothing, settle)


def _extreme_along(largest: bool) -> Contract:
    choose = _arg_extreme(largest)
    assert choose.exact is not None and choose.settle is not None
    exact_index, settle_index = choose.exact, choose.settle

    def exact(arguments: Arguments) -> Results:
        x, dim, keepdim = bind(arguments, ("self", "dim", "keepdim"), keepdim=False)
        function = np.max if largest else np.min
        return np.asarray(function(x, axis=dim, keepdims=keepdim)), exact_index(arguments)[0]

    def settle(arguments: Arguments, results: Results, recorded: Results) -> Results:
        return results[0], settle_index(arguments, results[1:], recorded[1:])[0]

    return Contract(exact, nothing, settle)


def _ordered(x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    """Values and indices in order; NaN counts as the largest."""
    order = np.argsort(x, axis=axis, kind="stable")
    if descending:
        order = np.flip(order, axis)
    return np.take_along_axis(x, order, axis), order


def _settled_order(x: Array, axis: int, results: Results, recorded: Results) -> Results:
    """The recorded indices where they point at the right values and each at another element of its row."""
    values, order = results
    if recorded[-1].shape != order.shape:
        return results
    found = _pointed(x, recorded[-1], axis)
    if found is None:
        return results
    ranked = np.sort(recorded[-1], axis=axis)
    repeated = np.any(np.diff(ranked, axis=axis) == 0, axis=axis, keepdims=True) if order.shape[axis] > 1 else np.zeros(1, bool)
    return values, np.where(_same(found, values) & ~repeated, recorded[-1], order)


def _sort_values(arguments: Arguments, named: bool) -> tuple[Array, int, bool]:
    names = ("self", "stable", "dim", "descending") if named else ("self", "dim", "descending")
    found = dict(zip(names, bind(arguments, names, stable=None, dim=-1, descending=False), strict=True))
    x = found["self"]
    return np.atleast_1d(x), found["dim"] % max(x.ndim, 1), bool(found["descending"])


def _sort(named: bool, indices_only: bool = False) -> Contract:
    def exact(arguments: Arguments) -> Results:
        x, axis, descending = _sort_values(arguments, named)
        values, order = _ordered(x, axis, descending)
        shape = np.shape(arguments.args[0])
        return (order.reshape(shape),) if indices_only else (values.reshape(shape), order.reshape(shape))

    def settle(arguments: Arguments, results: Results, recorded: Results) -> Results:
        x, axis, descending = _sort_values(arguments, named)
        if np.ndim(arguments.args[0]) == 0 or recorded[-1].shape != results[-1].shape:
            return results
        both = _settled_order(x, axis, _ordered(x, axis, descending), recorded)
        return both[1:] if indices_only else both

    return Contract(exact, nothing, settle)


def _topk_values(arguments: Arguments) -> tuple[Array, int, int, bool, bool]:
    x, k, dim, largest, in_order = bind(arguments, ("self", "k", "dim", "largest", "sorted"), dim=-1, largest=True, sorted=True)
    return np.atleast_1d(x), k, dim % max(np.ndim(x), 1), largest, in_order


def _topk(arguments: Arguments) -> Results:
    x, k, axis, largest, _ = _topk_values(arguments)
    values, order = _ordered(x, axis, largest)
    head = tuple(slice(k) if i == axis else slice(None) for i in range(x.ndim))
    return values[head], order[head]


def _topk_settle(arguments: Arguments, results: Results, recorded: Results) -> Results:
    """Sorted: as a sort. Unsorted: the recorded order where its values, sorted, are the right ones."""
    x, _, axis, _, in_order = _topk_values(arguments)
    if any(one.shape != right.shape for one, right in zip(recorded, results, strict=False)):
        return results
    if not in_order:
        ours, theirs = (np.sort(values, axis=axis) for values in (results[0], recorded[0]))
        found = _pointed(x, recorded[1], axis)
        if found is None or not np.all(_same(ours, theirs)) or not np.all(_same(found, recorded[0])):
            return results
        results = recorded[0], results[1]
    return _settled_order(x, axis, results, recorded)


_PAIR: Final = ("self", "other")
_INTEGER: Final = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}

CONTRACTS: Final = {
    "aten.eq": _comparison(np.equal),
    "aten.ne": _comparison(np.not_equal),
    "aten.lt": _comparison(np.less),
    "aten.le": _comparison(np.less_equal),
    "aten.gt": _comparison(np.greater),
    "aten.ge": _comparison(np.greater_equal),
    "aten.logical_and": _logic(np.logical_and, _PAIR),
    "aten.logical_or": _logic(np.logical_or, _PAIR),
    "aten.logical_xor": _logic(np.logical_xor, _PAIR),
    "aten.logical_not": _logic(np.logical_not, ("self",)),
    "aten.bitwise_not": _logic(np.bitwise_not, ("self",)),
    **{f"aten.bitwise_{name}": _logic(function, _PAIR) for name, function in _INTEGER.items()},
    **{f"aten.__{name}__": _logic(function, _PAIR) for name, function in _INTEGER.items()},
    "aten.bitwise_left_shift": _logic(np.left_shift, _PAIR),
    "aten.bitwise_right_shift": _logic(np.right_shift, _PAIR),
    "aten.isnan": _logic(np.isnan, ("self",)),
    "aten.isinf": _logic(np.isinf, ("self",)),
    "aten.isfinite": _logic(np.isfinite, ("self",)),
    "aten.isin": _logic(np.isin, ("elements", "test_elements")),
    "aten.any": _some(np.any),
    "aten.all": _some(np.all),
    "aten.argmax": _arg_extreme(True),
    "aten.argmin": _arg_extreme(False),
    "aten.max.dim": _extreme_along(True),
    "aten.min.dim": _extreme_along(False),
    "aten.sort.default": _sort(False),
    "aten.sort.stable": _sort(True),
    "aten.argsort.default": _sort(False, True),
    "aten.argsort.stable": _sort(True, True),
    "aten.topk": Contract(_topk, nothing, _topk_settle),
}
