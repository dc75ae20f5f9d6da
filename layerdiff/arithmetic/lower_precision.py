"""Lower precision than declared, named by doing it: operands rounded first, partial sums rounded, an accumulator of 16 bits.

Statistics alone never say that: at a wider unit int8 weights, a missing term and a factor of 1.01 all look like a short
bf16 accumulator. Each name here rests on the recorded elements being made, or (the accumulator) on the Gram tests being clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from layerdiff.arithmetic.folded import Folded, Matrices, sampled
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, TF32, Format, excess, format_named, round_to, truncate_to
from layerdiff.arithmetic.gram import Sides
from layerdiff.arithmetic.residual import ZMAX_LIMIT, ZRMS_LIMIT, Explanation, Residual, ratio, rms

_ACCOUNTS_FOR: Final = 30.0
"""An explanation stands too where it takes this factor off the error's root mean square and leaves _LEFT at most: a device that
rounds operands may also truncate in its accumulator (zrms 3.5 to 15 for fused sums of tensor cores, emulated)."""
_LEFT: Final = 20.0
_PARTS: Final = (2, 4, 8, 16)
_BLOCKS: Final = (1, 8, 16, 32, 64, 128)
_NEAR: Final = 6.0
"""Sigmas within which an element counts as made by a hypothesis."""
_MATCHES: Final = 0.95
_FEWER: Final = 5.0
_REPLAYED: Final = 1 << 24
"""Products M*N*K replayed in a narrow accumulator; of larger ones a sample of rows."""
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


def rounded_partials(residual: Residual, parts: Folded) -> Explanation | None:
    """P partial sums over equal ranges of K, each rounded to 16 bits, then added up wide or in 16 bits (F9, F10): element by element."""
    missed = 1.0 - _made(residual, residual.exact)
    for format in _narrower(residual):
        for count in _PARTS:
            if parts.terms % count or parts.terms // count < 2:
                continue
            size = parts.terms // count
            sums = [parts.product(parts.left[..., a : a + size], parts.right[:, a : a + size]) for a in range(0, parts.terms, size)]
            rounded = [round_to(x, format) for x in sums]
            wide = np.sum(rounded, axis=0)
            narrow = rounded[0]
            for x in rounded[1:]:
                narrow = round_to(narrow + x, format)
            for added, total in (("wide", wide), (f"in {format.name}", narrow)):
                made = _made(residual, residual.exact + parts.unfold(total - parts.product()))
                if made >= _MATCHES and (1.0 - made) * _FEWER <= missed:
                    statement = f"{count} partial sums rounded to {format.name} and added {added} make {made:.2%} of the elements."
                    evidence = {"parts": count, "added": added, "matches": made, "matches_without": 1.0 - missed}
                    return Explanation("precision", f"{_SHORT[format.name]}-partials", statement, evidence)
    return None


def narrow_accumulator(residual: Residual, parts: Folded, sides: Sides) -> Explanation | None:
    """A running sum in 16 bits: by replay of blocks in order, else by its size (F4 at that unit) where the Gram tests are clean."""
    formats = _narrower(residual)
    part, few = sampled(residual, parts, _REPLAYED, at_least=1)
    base = few.product()
    missed = 1.0 - _made(part, part.exact)
    for format in formats:
        for block in _BLOCKS:
            if block >= parts.terms:
                continue
            total = np.zeros(base.shape)
            for a in range(0, parts.terms, block):
                total = round_to(total + np.matmul(few.left[..., a : a + block], few.right[:, a : a + block]), format)
            made = _made(part, part.exact + few.unfold(parts.scale * total - base))
            if made >= _MATCHES and (1.0 - made) * _FEWER <= missed:
                statement = f"A running sum in {format.name}, {block} terms at a time, makes {made:.2%} of the elements."
                return Explanation("precision", f"{_SHORT[format.name]}-accumulator", statement, {"block": block, "matches": made})
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


def _made(residual: Residual, exact: Matrices) -> float:
    """The share of elements within 6 sigma of another exact result."""
    z = _z(residual, exact)
    return float(np.mean(z <= _NEAR)) if z.size else 0.0
