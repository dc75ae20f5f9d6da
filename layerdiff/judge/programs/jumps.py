"""`to_jump`: how far an operand lies from where a result that jumps would be the recorded one.

Of roundings, casts to whole numbers, signs and buckets: each result is right between two operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.replay.recorded import Operation
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
Ends = tuple[Array, Array]
_BUCKETS: Final = ("bucketize", "searchsorted")


def to_jump(operation: Operation, args: Arguments, result: Array) -> tuple[Array, Array] | None:
    """(how far the operand is from where it would make `result`, its size); None of operators whose results do not jump so.

    0 where it makes it, or lies on the border of it.
    """
    operands = [thing for thing in args.args[:2] if isinstance(thing, np.ndarray)]
    if not operands or any(operand.dtype.kind not in "fiu" for operand in operands):
        return None
    mode = args.kwargs.get("rounding_mode") or _DIVISIONS.get(operation.base)
    if operation.base in _BUCKETS:
        found = _bucket(operation.base, args, result)
    elif mode is not None:
        found = _quotient(args, _ends(_WHOLE[mode], result))
    elif operation.base in _WHOLE and result.dtype.kind != "b":
        found = _outside(operands[0], _ends(_WHOLE[operation.base], result)), operands[0]
    else:
        return None
    return None if found is None or found[0].shape != result.shape else (found[0], np.broadcast_to(np.abs(found[1]), result.shape))


def takes_other_ends(reference: Operation, target: Operation) -> bool:
    """Whether what lies on a border is of the bucket before it in one call, and of the one behind it in the other: then nothing ties."""

    def right(operation: Operation) -> bool:
        given = (operation.picture or {}).get("kwargs", {})
        return bool(given.get("right")) or given.get("side") == "right"

    return reference.base in _BUCKETS and right(reference) != right(target)


def _ends(of: Callable[[Array], Ends], result: Array) -> Ends:
    """Between which operands each result is made; nowhere what is no whole number."""
    whole = np.where(result == np.round(result), result, np.inf).astype(np.float64)
    return of(whole)


def _outside(x: Array, ends: Ends) -> Array:
    """How far x lies from an interval; 0 of NaN, of which every result is as right."""
    with np.errstate(invalid="ignore"):
        off = np.maximum(np.maximum(ends[0] - x, x - ends[1]), 0.0)
    return np.asarray(np.where(np.isnan(off), 0.0, off))


def _quotient(args: Arguments, ends: Ends) -> tuple[Array, Array] | None:
    x, by = args.args[0], args.args[1]
    with np.errstate(all="ignore"):
        return np.asarray(_outside(x / by, ends) * np.abs(by)), x


def _bucket(name: str, args: Arguments, result: Array) -> tuple[Array, Array] | None:
    """Of a number among boundaries, in rising order along the last dimension: those beside the place that was found."""
    x, edges = args.args[:2] if name == "bucketize" else args.args[1::-1]
    if not isinstance(edges, np.ndarray) or edges.ndim != 1 or args.kwargs.get("sorter") is not None or np.shape(x) != result.shape:
        return None
    padded = np.concatenate([[-np.inf], edges, [np.inf]])
    at = np.clip(result, 0, edges.size)
    return _outside(x, (padded[at], padded[at + 1])), x


def _toward_zero(result: Array) -> Ends:
    return np.where(result > 0, result, result - 1), np.where(result < 0, result, result + 1)


def _sign(result: Array) -> Ends:
    return np.where(result < 0, -np.inf, 0.0), np.where(result > 0, np.inf, 0.0)


_DIVISIONS: Final = {"floor_divide": "floor"}
_WHOLE: Final[Mapping[str, Callable[[Array], Ends]]] = {
    "floor": lambda result: (result, result + 1),
    "ceil": lambda result: (result - 1, result),
    **dict.fromkeys(("round", "special_round"), lambda result: (result - 0.5, result + 0.5)),
    **dict.fromkeys(("trunc", "fix", "_to_copy"), _toward_zero),
    **dict.fromkeys(("sign", "sgn"), _sign),
}
"""Between which operands each result is made."""
