"""Casts and copies: the operand itself, rounded once to the result's dtype.

A cast from float64 (or int64) to a narrow float may go through float32 on every device, so that step's rounding is allowed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from layerdiff.arithmetic.contract import EXACT, Array, Contract, Spread, bind, dtype_kind, is_scalar
from layerdiff.arithmetic.formats import FLOAT32, Format, round_to
from layerdiff.trace.arguments import Arguments


def as_kind(x: Array, kind: str | None) -> Array:
    """`x` converted to numpy kind "f", "i" or "b" as torch converts: toward zero to integers, not zero to bools. None leaves it."""
    if kind is None or x.dtype.kind == kind:
        return x
    if kind == "b":
        return np.asarray(x != 0)
    with np.errstate(all="ignore"):
        return x.astype(np.float64 if kind == "f" else np.int64)


def _cast_spread(source: Array, result: Array) -> Spread:
    if result.dtype.kind == "f":
        if source.dtype.kind == "b" or source.size == 0:
            return EXACT
        wide = np.asarray(source, np.float64)
        with np.errstate(all="ignore"):
            off = np.abs(round_to(wide, FLOAT32) - wide)
        off = np.where(np.isfinite(off), off, 0.0)
        return Spread(off, off, 1) if np.any(off) else EXACT
    if source.dtype.kind == "f" and result.dtype.kind == "i":  # C leaves it open what becomes of NaN and of what is too large
        bound = np.where(np.isfinite(source) & (np.abs(source) < 2.0**31), 0.0, np.inf)
        return Spread(bound, bound, 1) if np.any(bound) else EXACT
    return EXACT


def _to_copy(arguments: Arguments) -> tuple[Array, ...]:
    x, dtype = arguments.args[0], arguments.kwargs.get("dtype")
    return (as_kind(x, dtype_kind(dtype)),)


def _to_copy_spread(arguments: Arguments, results: tuple[Array, ...], _: Format) -> tuple[Spread, ...]:
    return (_cast_spread(arguments.args[0], results[0]),)


def _source(arguments: Arguments) -> tuple[Array, Array]:
    target, source, _ = bind(arguments, ("self", "src", "non_blocking"), non_blocking=False)
    return target, np.asarray(source)


def _copy(arguments: Arguments) -> tuple[Array, ...]:
    target, source = _source(arguments)
    return (np.broadcast_to(as_kind(source, target.dtype.kind), target.shape),)


def _copy_spread(arguments: Arguments, results: tuple[Array, ...], _: Format) -> tuple[Spread, ...]:
    source = _source(arguments)[1]
    return (_cast_spread(np.broadcast_to(source, results[0].shape), results[0]),)


def _same(arguments: Arguments) -> tuple[Array, ...]:
    return (arguments.args[0],)


def _fill(arguments: Arguments) -> tuple[Array, ...]:
    x, value = bind(arguments, ("self", "value"))
    return (np.broadcast_to(as_kind(np.asarray(value), x.dtype.kind), x.shape),)


def _fill_spread(arguments: Arguments, results: tuple[Array, ...], _: Format) -> tuple[Spread, ...]:
    value: Any = arguments.kwargs.get("value", arguments.args[-1])
    return (_cast_spread(np.asarray(value), results[0]) if is_scalar(value) or isinstance(value, np.ndarray) else EXACT,)


def _zero(arguments: Arguments) -> tuple[Array, ...]:
    return (np.zeros_like(arguments.args[0]),)


def nothing(_: Arguments, results: tuple[Array, ...], __: Format) -> tuple[Spread, ...]:
    """The spread of results that must be exact."""
    return (EXACT,) * len(results)


CONTRACTS: Final = {
    "aten._to_copy": Contract(_to_copy, _to_copy_spread),
    "aten.copy": Contract(_copy, _copy_spread),
    "aten.copy_": Contract(_copy, _copy_spread),
    "aten.clone": Contract(_same, nothing),
    "aten.detach": Contract(_same, nothing),
    "aten.alias": Contract(_same, nothing),
    "aten.contiguous": Contract(_same, nothing),
    "aten.lift_fresh": Contract(_same, nothing),
    "aten.lift_fresh_copy": Contract(_same, nothing),
    "aten.fill": Contract(_fill, _fill_spread),
    "aten.zero": Contract(_zero, nothing),
}
