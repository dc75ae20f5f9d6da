"""Elementwise functions: one element from one element, in the accumulator's precision, rounded once.

The bound decides both ways, so it covers what a correct kernel of any device may do: TRANSCENDENTAL units for a
function that is approximated, and an absolute floor where a function cancels (gelu and silu: u |x|). A number (or an
integer operand) beside bf16 operands is converted to bf16 first by some kernels and not by others: the recorded result
says which, element counts decide, and nothing is widened for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import EXACT, Array, Contract, Spread, bind, grid_of, is_float, is_scalar
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, Format, round_to
from layerdiff.trace.arguments import Arguments

TRANSCENDENTAL: Final = 8.0
"""Units of the accumulator (2 u is an ulp) that an approximated function may be off: 4 ulp of fp32. Measured on torch's CPU
kernels: at most 2.0 u beyond the last rounding over all functions here (tests/arithmetic); vendors document up to 4 ulp."""

_erf: Final = np.frompyfunc(math.erf, 1, 1)
_erfc: Final = np.frompyfunc(math.erfc, 1, 1)

Function = Callable[..., Array]
Bound = Callable[[Array, tuple[Any, ...], float], Any]
"""Absolute bound from the result, the operands in order, and u."""


def erf(x: Array) -> NDArray[np.float64]:
    """The error function, in float64."""
    return np.asarray(_erf(x), np.float64)


def erfc(x: Array) -> NDArray[np.float64]:
    """The complement of the error function, in float64, without cancellation."""
    return np.asarray(_erfc(x), np.float64)


def sigmoid(x: Array) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def gelu(x: Array, approximate: str = "none") -> NDArray[np.float64]:
    """x Phi(x), or its form with tanh."""
    if approximate == "tanh":
        return np.asarray(x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return np.asarray(0.5 * x * erfc(-x / math.sqrt(2.0)))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> NDArray[np.float64]:
    """log(1 + exp(beta x)) / beta, x itself where beta x is over the threshold."""
    scaled = x * beta
    return np.where(scaled > threshold, x, (np.maximum(scaled, 0.0) + np.log1p(np.exp(-np.abs(scaled)))) / beta)


def _relative(units: float) -> Bound:
    return lambda y, _, u: units * u * np.abs(y)


def _with_floor(floor: float) -> Bound:
    """Relative TRANSCENDENTAL units and an absolute floor in units."""
    return lambda y, _, u: u * (TRANSCENDENTAL * np.abs(y) + floor)


def _times_operand(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """silu, mish, gelu with tanh: x times a factor that cancels in its tail: 2 u |x| is the absolute floor."""
    return u * (TRANSCENDENTAL * np.abs(y) + 2.0 * np.abs(operands[0]))


def _gelu_bound(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """x (1 + erf) / 2 cancels where erf is near -1; erf itself is approximated. Measured on torch's CPU: 4.9 u |x|."""
    return u * TRANSCENDENTAL * (np.abs(y) + np.abs(operands[0]))


def _power(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """exp(e log x): the error of the logarithm is multiplied by e, so the bound grows with |log y|.

    Powers made of two steps (x x x, 1 / (x x), 1 / sqrt x) round the first one to the operands' own dtype on torch's CPU.
    """
    size = np.abs(y)
    logarithm = np.abs(np.log(np.where((size > 0) & np.isfinite(size), size, 1.0)))
    stepwise = grid_of(operands[0]).unit if is_scalar(operands[1]) and operands[1] in (3, -2, -0.5) else 0.0
    return (u * TRANSCENDENTAL * (1.0 + logarithm) + stepwise * 2.0) * size


def _sizes(*coefficients: float) -> Bound:
    """Units of u times each operand's size, and one of the result's."""
    return lambda y, operands, u: u * (np.abs(y) + sum(c * np.abs(x) for c, x in zip(coefficients, operands, strict=False)))


def _addition(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """a + alpha b: alpha and a scalar are rounded, then their product, then the sum.

    Torch's CPU rounds alpha, and for few elements the product, to the operands' own dtype.
    """
    first, second, alpha = operands
    moved = np.abs(alpha * second) * ((2.0 if alpha != 1 else 0.0) + (0.0 if isinstance(second, np.ndarray) and is_float(second) else 1.0))
    stepwise = 2.0 * grid_of(first, second).unit * np.abs(alpha * second) if alpha != 1 else 0.0
    return u * (np.abs(y) + moved + (0.0 if isinstance(first, np.ndarray) and is_float(first) else np.abs(first))) + stepwise


def _third(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """addcmul, addcdiv: self + value t1 t2."""
    return u * (2.0 * np.abs(y) + 4.0 * np.abs(y - operands[0]))


def _lerp(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    start, end, weight = operands
    moved = np.abs(weight) * (np.abs(end) + np.abs(start))
    return u * (np.abs(y) + 4.0 * moved + 2.0 * np.abs(start))


def _near_integer(quotient: Any, unit: float) -> Any:
    """Where a quotient may fall on either side of an integer: it is rounded to the operands' own dtype first."""
    return np.abs(quotient - np.rint(quotient)) <= 4.0 * unit * np.maximum(np.abs(quotient), 1.0)


def _whole_division(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """floor or trunc of a quotient: off by one beside an integer, and no integer at all where the dtype counts in larger steps."""
    unit = grid_of(*operands[:2]).unit
    quotient = np.true_divide(operands[0], operands[1])
    return np.where(_near_integer(quotient, unit), 1.0 + 2.0 * unit * np.abs(quotient), 0.0) + u * np.abs(y)


def _remainder(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    """A remainder: off by the divisor beside a multiple, else as exact as the operands."""
    quotient = np.true_divide(operands[0], operands[1])
    return np.where(_near_integer(quotient, grid_of(*operands[:2]).unit), np.abs(operands[1]), 0.0) + u * (
        np.abs(y) + np.abs(operands[0]) + np.abs(operands[1])
    )


def _divide(x: Any, other: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return np.asarray(np.floor_divide(x, other))
    quotient = np.true_divide(x, other)
    if rounding_mode != "trunc":
        return np.asarray(quotient)
    whole = np.trunc(quotient)
    return np.asarray(whole if is_float(x) or is_float(other) else whole.astype(np.int64))


def _divide_bound(y: Array, operands: tuple[Any, ...], u: float) -> Any:
    if operands[2] is not None:
        return _whole_division(y, operands, u)
    return TRANSCENDENTAL * u * np.abs(y)


def _clamp(x: Array, low: Any = None, high: Any = None) -> Array:
    if low is not None:
        x = np.maximum(x, low)
    return np.asarray(x if high is None else np.minimum(x, high))


def _exactly(y: Array, _: tuple[Any, ...], __: float) -> Any:
    return np.zeros(())


def _pow(x: Any, exponent: Any) -> Array:
    if is_scalar(exponent) and isinstance(x, np.ndarray) and x.dtype.kind == "f":
        if exponent == 2:
            return np.square(x)
        if exponent == 0.5:
            return np.sqrt(x)
    return np.asarray(np.power(x, exponent))


def _where(condition: Any, x: Any, other: Any) -> Array:
    return np.asarray(np.where(np.asarray(condition, bool), x, other))


def _leaky(x: Array, slope: float) -> Array:
    return np.where(x > 0, x, slope * x)


def _elu(x: Array, alpha: float, scale: float, input_scale: float) -> Array:
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(np.minimum(x, 0) * input_scale))


def _contract(function: Function, bound: Bound, names: tuple[str, ...] = ("self",), **defaults: Any) -> Contract:
    def values(arguments: Arguments) -> tuple[Any, ...]:
        return bind(arguments, names, **defaults)

    def exact(arguments: Arguments) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.asarray(function(*values(arguments))),)

    def spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
        if results[0].dtype.kind != "f":
            return (EXACT,)
        with np.errstate(all="ignore"):
            found = np.asarray(bound(_at_least_normal(results[0], accumulator), values(arguments), accumulator.unit), np.float64)
        if found.ndim:
            found = np.where(np.isnan(found), 0.0, found)
        return (Spread(found / 2.0, found, 1),)

    def settle(arguments: Arguments, results: tuple[Array, ...], recorded: tuple[Array, ...]) -> tuple[Array, ...]:
        operands = values(arguments)
        rounded = as_rounded(operands)
        if rounded is None or not recorded or recorded[0].shape != results[0].shape:
            return results
        with np.errstate(all="ignore"):
            other = np.asarray(function(*rounded))
        return (closer(recorded[0], results[0], other, grid_of(*(x for x in operands if np.ndim(x)))),)

    return Contract(exact, spread, settle if len(names) > 1 else None)


def _at_least_normal(y: Array, accumulator: Format) -> Array:
    """Results, those below the normal numbers as large as these: there numbers lie no closer, and u of a result is less than a step."""
    return np.where((y != 0) & (np.abs(y) < accumulator.smallest_normal), np.copysign(accumulator.smallest_normal, y), y)


def as_rounded(operands: tuple[Any, ...], wide: bool = False) -> tuple[Any, ...] | None:
    """The operands with numbers and integer tensors rounded to the grid of the float tensors; None where that changes nothing.

    A grid of fp32 is left alone unless `wide`: there a bound covers it, except where results are discrete.
    """
    floats = [x for x in operands if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    shaped = [x for x in floats if x.ndim]  # a tensor of no dimensions takes part as a number does
    grid = grid_of(*(shaped or floats))
    if (grid is FLOAT32 and not wide) or not floats:
        return None
    changed = False
    rounded: list[Any] = []
    for x in operands:
        if shaped and isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind == "f":
            x = float(x)
        if isinstance(x, float) and np.isfinite(x):
            near = float(round_to(np.asarray(x), grid))
            changed, x = changed or near != x, near
        elif isinstance(x, np.ndarray) and x.dtype.kind in "iu":
            near_array = round_to(x.astype(np.float64), grid)
            changed, x = changed or not np.array_equal(near_array, x), near_array
        rounded.append(x)
    return tuple(rounded) if changed else None


def closer(recorded: Array, exact: Array, other: Array, grid: Format) -> Array:
    """Whichever of two exact results gives more of the recorded elements when rounded to `grid`; the first of equals.

    Rounded through fp32 or at once: a quotient beside the middle of two numbers is in the middle of them once it is fp32.
    """
    if exact.dtype.kind != "f":
        return other if np.count_nonzero(other == recorded) > np.count_nonzero(exact == recorded) else exact
    hits = [np.count_nonzero((round_to(x, grid) == recorded) | (round_to(round_to(x, FLOAT32), grid) == recorded)) for x in (exact, other)]
    return other if hits[1] > hits[0] else exact


def _root_first(arguments: Arguments, results: tuple[Array, ...], recorded: tuple[Array, ...]) -> tuple[Array, ...]:
    """In 16 bits the inverse of the root as that is kept, where that was made: torch takes what fills no vector so, element by element."""
    (x,), (exact,), (made,) = (np.asarray(one) for one in bind(arguments, ("self",))), results, recorded
    for grid in (BFLOAT16, FLOAT16):
        if np.array_equal(round_to(x, grid), x) and np.array_equal(round_to(made, grid), made, equal_nan=True):
            other = 1.0 / round_to(np.sqrt(x), grid)
            return (np.where((round_to(exact, grid) != made) & (round_to(other, grid) == made), other, exact),)
    return results


_PAIR: Final = ("self", "other")

_UNARY: Final[dict[str, tuple[Function, Bound]]] = {
    "neg": (np.negative, _exactly),
    "abs": (np.abs, _exactly),
    "relu": (lambda x: np.maximum(x, 0), _exactly),
    "sign": (np.sign, _exactly),
    "floor": (np.floor, _exactly),
    "ceil": (np.ceil, _exactly),
    "trunc": (np.trunc, _exactly),
    "relu6": (lambda x: np.clip(x, 0, 6), _exactly),
    "square": (np.square, _relative(1.0)),
    "sqrt": (np.sqrt, _relative(TRANSCENDENTAL)),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), _relative(TRANSCENDENTAL)),
    "reciprocal": (lambda x: 1.0 / np.asarray(x, np.float64), _relative(TRANSCENDENTAL)),
    "exp": (np.exp, _relative(TRANSCENDENTAL)),
    "exp2": (np.exp2, _relative(TRANSCENDENTAL)),
    "expm1": (np.expm1, _relative(TRANSCENDENTAL)),
    "log": (np.log, _with_floor(1.0)),
    "log2": (np.log2, _with_floor(1.0)),
    "log10": (np.log10, _with_floor(1.0)),
    "log1p": (np.log1p, _relative(TRANSCENDENTAL)),
    "sin": (np.sin, _with_floor(2.0)),
    "cos": (np.cos, _with_floor(2.0)),
    "tan": (np.tan, lambda y, _, u: u * TRANSCENDENTAL * (np.abs(y) + np.square(y))),
    "asin": (np.arcsin, _with_floor(2.0)),
    "acos": (np.arccos, _with_floor(2.0)),
    "atan": (np.arctan, _relative(TRANSCENDENTAL)),
    "sinh": (np.sinh, _relative(TRANSCENDENTAL)),
    "cosh": (np.cosh, _relative(TRANSCENDENTAL)),
    "tanh": (np.tanh, _relative(TRANSCENDENTAL)),
    "sigmoid": (sigmoid, _relative(TRANSCENDENTAL)),
    "erf": (erf, _with_floor(8.0)),
    "erfc": (erfc, _with_floor(1.0)),
    "silu": (lambda x: x * sigmoid(x), _times_operand),
    "log_sigmoid": (lambda x: -softplus(-x), _with_floor(1.0)),
    "mish": (lambda x: x * np.tanh(softplus(x)), _times_operand),
    "hardsigmoid": (lambda x: np.clip(x + 3.0, 0.0, 6.0) / 6.0, _with_floor(4.0)),
    "hardswish": (lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0, lambda y, x, u: u * (TRANSCENDENTAL * np.abs(y) + 4.0 * np.abs(x[0]))),
}

CONTRACTS: Final = {f"aten.{name}": _contract(function, bound) for name, (function, bound) in _UNARY.items()} | {
    "aten.rsqrt": replace(_contract(*_UNARY["rsqrt"]), settle=_root_first),
    "aten.add": _contract(lambda a, b, alpha: np.add(a, b if alpha == 1 else np.multiply(b, alpha)), _addition, (*_PAIR, "alpha"), alpha=1),
    "aten.sub": _contract(
        lambda a, b, alpha: np.subtract(a, b if alpha == 1 else np.multiply(b, alpha)), _addition, (*_PAIR, "alpha"), alpha=1
    ),
    "aten.rsub": _contract(
        lambda a, b, alpha: np.subtract(b, a if alpha == 1 else np.multiply(a, alpha)),
        lambda y, x, u: _addition(y, (x[1], x[0], x[2]), u),
        (*_PAIR, "alpha"),
        alpha=1,
    ),
    "aten.mul": _contract(np.multiply, _relative(2.0), _PAIR),
    "aten.div": _contract(_divide, _divide_bound, (*_PAIR, "rounding_mode"), rounding_mode=None),
    "aten.true_divide": _contract(np.true_divide, _relative(TRANSCENDENTAL), _PAIR),
    "aten.floor_divide": _contract(np.floor_divide, _whole_division, _PAIR),
    "aten.remainder": _contract(np.mod, _remainder, _PAIR),
    "aten.fmod": _contract(np.fmod, _remainder, _PAIR),
    "aten.pow": _contract(_pow, _power, ("self", "exponent")),
    "aten.atan2": _contract(np.arctan2, _with_floor(1.0), _PAIR),
    "aten.hypot": _contract(np.hypot, _relative(TRANSCENDENTAL), _PAIR),
    "aten.maximum": _contract(np.maximum, _exactly, _PAIR),
    "aten.minimum": _contract(np.minimum, _exactly, _PAIR),
    "aten.max.other": _contract(np.maximum, _exactly, _PAIR),
    "aten.min.other": _contract(np.minimum, _exactly, _PAIR),
    "aten.fmax": _contract(np.fmax, _exactly, _PAIR),
    "aten.fmin": _contract(np.fmin, _exactly, _PAIR),
    "aten.clamp": _contract(_clamp, _exactly, ("self", "min", "max"), min=None, max=None),
    "aten.clamp_min": _contract(_clamp, _exactly, ("self", "min")),
    "aten.clamp_max": _contract(lambda x, high: _clamp(x, None, high), _exactly, ("self", "max")),
    "aten.hardtanh": _contract(_clamp, _exactly, ("self", "min_val", "max_val"), min_val=-1, max_val=1),
    "aten.threshold": _contract(lambda x, t, v: _where(x > t, x, v), _exactly, ("self", "threshold", "value")),
    "aten.round": _contract(
        lambda x, d: np.asarray(np.round(x, d)), lambda y, x, u: 4 * u * np.abs(y) * (x[1] != 0), ("self", "decimals"), decimals=0
    ),
    "aten.where": _contract(_where, _exactly, ("condition", "self", "other")),
    "aten.masked_fill": _contract(lambda x, mask, value: _where(mask, value, x), _exactly, ("self", "mask", "value")),
    "aten.gelu": _contract(gelu, _gelu_bound, ("self", "approximate"), approximate="none"),
    "aten.softplus": _contract(softplus, _with_floor(0.0), ("self", "beta", "threshold"), beta=1.0, threshold=20.0),
    "aten.leaky_relu": _contract(_leaky, _relative(2.0), ("self", "negative_slope"), negative_slope=0.01),
    "aten.elu": _contract(_elu, _with_floor(2.0), ("self", "alpha", "scale", "input_scale"), alpha=1, scale=1, input_scale=1),
    "aten.addcmul": _contract(lambda x, a, b, v: x + v * a * b, _third, ("self", "tensor1", "tensor2", "value"), value=1),
    "aten.addcdiv": _contract(lambda x, a, b, v: x + v * a / b, _third, ("self", "tensor1", "tensor2", "value"), value=1),
    "aten.lerp": _contract(lambda a, b, w: a + w * (b - a), _lerp, ("self", "end", "weight")),
    "aten.nan_to_num": _contract(
        lambda x, nan, high, low: np.nan_to_num(
            x, nan=nan or 0.0, posinf=np.inf if high is None else high, neginf=-np.inf if low is None else low
        ),
        _exactly,
        ("self", "nan", "posinf", "neginf"),
        nan=None,
        posinf=None,
        neginf=None,
    ),
}
