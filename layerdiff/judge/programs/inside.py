"""`inside`: what a fused call makes on its way, which the other run may make by calls of its own: the exponentials of a softmax.

It tells what both programs make, and judges nothing: a value that is missing here costs a better name, and no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.contracts.attention import bound_arguments
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
_MOST_SCORES: Final = 1 << 24
"""Elements of the scores of an attention that are made once more."""


def inside(name: str, args: Arguments, results: Mapping[str, Array]) -> list[Array]:
    """The values on the way of the call `aten.<name>` from its arguments to its results; none of an operator that is not known here."""
    base = name.split(".")[1] if name.startswith("aten.") else ""
    made = results.get("out", results.get("out[0]"))
    if made is None or not args.args:
        return []
    try:
        with np.errstate(all="ignore"):
            if base.startswith(("_scaled_dot_product", "scaled_dot_product")):
                return list(_attention(base, args))
            way = _WAYS.get(base)
            return [] if way is None else list(way(args, made))
    except (ContractError, IndexError, KeyError, TypeError, ValueError):  # another signature than the one that is known
        return []


def numbers_inside(name: str, shape: tuple[int, ...]) -> tuple[float, ...]:
    """The numbers that a fused call uses without being given them; `shape`: of its first operand."""
    base = name.split(".")[1] if name.startswith("aten.") else ""
    if "scaled_dot_product" in base:
        return (shape[-1] ** -0.5,) if shape else ()
    return _NUMBERS.get(base, ())


def _given(args: Arguments, place: int, name: str, otherwise: Any = None) -> Any:
    return args.args[place] if len(args.args) > place else args.kwargs.get(name, otherwise)


def _softmax(args: Arguments, made: Array) -> Iterator[Array]:
    yield from _weights(args.args[0], _given(args, 1, "dim"))


def _log_softmax(args: Arguments, made: Array) -> Iterator[Array]:
    yield from _weights(args.args[0], _given(args, 1, "dim"))
    yield args.args[0] - made  # the logarithm of the sum
    yield np.exp(made)


def _weights(x: Array, dim: int) -> Iterator[Array]:
    top = x.max(axis=dim, keepdims=True)
    for power in (x - top, x):  # with the largest taken off, and without
        yield from (top, power, (e := np.exp(power)), (total := e.sum(axis=dim, keepdims=True)), np.log(total))


def _attention(base: str, args: Arguments) -> Iterator[Array]:
    given = bound_arguments(base, args)
    q, k = given["query"], given["key"]
    if math.prod(q.shape[:-1]) * k.shape[-2] > _MOST_SCORES:
        return
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k = np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
    scale = q.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    yield q * scale
    yield (scores := q @ np.swapaxes(k, -1, -2))
    yield (scores := scores * scale)
    mask = given["attn_mask"]
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
    if given["is_causal"]:
        seen = np.tri(*scores.shape[-2:], dtype=np.bool_)
        yield from (seen, ~seen)
        scores = np.where(seen, scores, -np.inf)
    yield scores
    yield from _weights(scores, -1)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    yield e / e.sum(axis=-1, keepdims=True)


def _layer_norm(args: Arguments, made: Array) -> Iterator[Array]:
    x, last = args.args[0], tuple(range(-len(_given(args, 1, "normalized_shape")), 0))
    mean = x.mean(axis=last, keepdims=True)
    yield from (x.sum(axis=last, keepdims=True), mean, mean * mean, x - mean)
    yield from _scaled(x - mean, last, _given(args, 4, "eps"), _given(args, 2, "weight"))
    yield from _squares(x, last)


def _rms_norm(args: Arguments, made: Array) -> Iterator[Array]:
    last = tuple(range(-len(_given(args, 1, "normalized_shape")), 0))
    yield from _scaled(args.args[0], last, _given(args, 3, "eps"), _given(args, 2, "weight"))


def _squares(x: Array, last: tuple[int, ...]) -> Iterator[Array]:
    squares = x * x
    yield from (squares, squares.sum(axis=last, keepdims=True), squares.mean(axis=last, keepdims=True))


def _scaled(x: Array, last: tuple[int, ...], eps: float | None, weight: Array | None) -> Iterator[Array]:
    *squares, variance = _squares(x, last)
    yield from (*squares, variance)
    if eps is not None:
        root = np.sqrt(variance + eps)
        yield from (variance + eps, root, 1.0 / root, x / root)
        if weight is not None:
            yield from (weight / root, x * weight, x / root * weight)


def _sigmoid(args: Arguments, made: Array) -> Iterator[Array]:
    x = args.args[0]
    yield from (np.exp(-x), 1.0 + np.exp(-x), 1.0 / (1.0 + np.exp(-x)))


def _gelu(args: Arguments, made: Array) -> Iterator[Array]:
    x = args.args[0]
    yield from (x / 2, made / (x / 2), made / x)  # x / 2 (1 + f), 1 + f, half of it
    if _given(args, 1, "approximate", "none") == "none":
        yield from (x / math.sqrt(2.0), made / (x / 2) - 1)
        return
    cubed = x**3
    inner = x + 0.044715 * cubed
    yield from (x * x, cubed, 0.044715 * cubed, 0.044715 * x * x, 1 + 0.044715 * x * x, inner)
    yield from (math.sqrt(2 / math.pi) * inner, np.tanh(math.sqrt(2 / math.pi) * inner))


def _product(args: Arguments, made: Array) -> Iterator[Array]:
    """The product alone, of one to which something is added."""
    yield made - args.kwargs.get("beta", 1) * args.args[0]


def _linear(args: Arguments, made: Array) -> Iterator[Array]:
    bias = _given(args, 2, "bias")
    if bias is not None:
        yield made - bias


def _mean(args: Arguments, made: Array) -> Iterator[Array]:
    yield made * (args.args[0].size / made.size)


def _reciprocal(args: Arguments, made: Array) -> Iterator[Array]:
    yield 1.0 / made


_NUMBERS: Final[Mapping[str, tuple[float, ...]]] = {
    "sigmoid": (1.0,),
    "silu": (1.0,),
    "gelu": (0.5, 0.044715, math.sqrt(2 / math.pi), math.sqrt(2.0), math.sqrt(0.5)),
}
_WAYS: Final[Mapping[str, Callable[[Arguments, Array], Iterator[Array]]]] = {
    "_softmax": _softmax,
    "softmax": _softmax,
    "_safe_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "log_softmax": _log_softmax,
    "native_layer_norm": _layer_norm,
    "layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "rms_norm": _rms_norm,
    "sigmoid": _sigmoid,
    "silu": _sigmoid,
    "gelu": _gelu,
    "addmm": _product,
    "baddbmm": _product,
    "linear": _linear,
    "mean": _mean,
    "rsqrt": _reciprocal,
    "reciprocal": _reciprocal,
}
