"""Lower precision than declared where no order is known: operands that were rounded first, an accumulator of 16 bits.

Statistics alone never say that: at a wider unit int8 weights, a missing term and a factor of 1.01 all look like a short
bf16 accumulator. Each name here rests on the recorded elements being made, or (the accumulator) on the Gram tests being clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from layerdiff.arithmetic.folded import Folded, Matrices
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, TF32, Format, excess, format_named, round_to, truncate_to
from layerdiff.arithmetic.gram import Sides
from layerdiff.arithmetic.residual import ZMAX_LIMIT, ZRMS_LIMIT, Explanation, Residual, ratio, rms

_ACCOUNTS_FOR: Final = 30.0
"""An explanation stands too where it takes this factor off the error's root mean square and leaves _LEFT at most: a device that
rounds operands may also truncate in its accumulator (zrms 3.5 to 15 for fused sums of tensor cores, emulated)."""
_LEFT: Final = 20.0
_SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "tfloat32": "tf32"}

Rounding = Callable[[Matrices], Matrices]


def _scaled_int8(axis: int | None) -> Rounding:
    """Symmetric int8 with a step for every slice along `axis` (all of the matrix for None)."""

    def rounding(x: Matrices) -> Matrices:
        step = np.max(np.abs(x), axis=axis, keepdims=True) / 127.0
        return np.asarray(np.rint(x / np.where(step > 0, step, 1.0)) * step)

    return rounding


def _to(format: Format) -> Rounding:
    return lambda x: round_to(x, format)


def _candidates() -> Iterator[tuple[str, Rounding, bool, bool]]:
    """Cause, rounding, whether of left, whether of right."""
    for format in (TF32, BFLOAT16, FLOAT16):
        yield _SHORT[format.name] if format is TF32 else f"{_SHORT[format.name]}-operands", _to(format), True, True
    yield "tf32", lambda x: truncate_to(x, TF32), True, True
    for format in (BFLOAT16, FLOAT16):
        yield f"{_SHORT[format.name]}-weights", _to(format), False, True
        yield f"{_SHORT[format.name]}-inputs", _to(format), True, False
    for axis in (-2, None):
        yield "int8-weights", _scaled_int8(axis), False, True
    for axis in (-1, None):
        yield "int8-inputs", _scaled_int8(axis), True, False
    for name in ("float8_e4m3fn", "float8_e5m2"):
        format8 = format_named(name)
        assert format8 is not None
        yield "fp8-weights", _to(format8), False, True


def rounded_operands(residual: Residual, parts: Folded) -> Explanation | None:
    """The operands rounded before they were multiplied: tf32 (to nearest, or cut), bf16, fp16, int8 and fp8 weights."""
    before = rms(_z(residual, residual.exact))
    for cause, rounding, of_left, of_right in _candidates():
        left = rounding(parts.left) if of_left else parts.left
        right = rounding(parts.right) if of_right else parts.right
        if np.array_equal(left, parts.left) and np.array_equal(right, parts.right):
            continue
        other = residual.exact + parts.unfold(parts.product(left, right) - parts.product())
        after = rms(_z(residual, other))
        if residual.explained_by(other) or (after <= _LEFT and after * _ACCOUNTS_FOR <= before):
            what = {(True, True): "both operands", (False, True): "the right operand", (True, False): "the left operand"}[of_left, of_right]
            statement = f"With {what} rounded first ({cause}), zrms falls from {before:.3g} to {after:.3g}."
            return Explanation("precision", cause, statement, {"zrms_explained": after, "rounded": what})
    return None


def narrow_accumulator(residual: Residual, parts: Folded, sides: Sides) -> Explanation | None:
    """A running sum in 16 bits, in an order that nobody tried: by its size (F4 at that unit), where the Gram tests are clean."""
    formats = _narrower(residual)
    if not sides.clean:
        return None
    for format in formats:
        wide = residual.sigma * (format.unit / residual.accumulator.unit)
        z = ratio(excess(residual.recorded, residual.exact, residual.format), wide)[residual.live]
        chain = parts.terms * float(np.mean(np.square(z)))
        if rms(z) <= ZRMS_LIMIT and np.max(z) <= ZMAX_LIMIT and chain >= 1.0:
            neither = f"comes from neither operand (|t| at most {sides.largest:.2g})"
            statement = f"The error is that of {chain:.3g} additions in {format.name}, and {neither}."
            return Explanation("precision", f"{_SHORT[format.name]}-accumulator", statement, {"chain": chain, **sides.evidence()})
    return None


def _narrower(residual: Residual) -> list[Format]:
    """The formats of 16 bits that a kernel may have added up in: the result's own where it has one, and none that was declared."""
    likely = [residual.format] if residual.format.unit >= FLOAT16.unit else [BFLOAT16, FLOAT16]
    return [format for format in likely if format.unit > residual.accumulator.unit]


def _z(residual: Residual, exact: Matrices) -> Matrices:
    return ratio(excess(residual.recorded, exact, residual.format), residual.sigma)[residual.live]
