"""Floating-point formats as arithmetic sees them: unit, range, rounding, and the reals that round to a number.

Everything is computed in float64, which holds every number of every narrower format and every midpoint between
two neighbours exactly. The gap below a power of two is half the gap above it: forgetting that makes every
correct result at a power of two look wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.dtypes import DTYPES

_FLOAT64_BITS: Final = 53
_BIAS: Final = 1023
_EXPONENT: Final = 0x7FF << 52
_FRACTION: Final = (1 << 52) - 1


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    `significand_bits` counts the leading one; `smallest_exponent` is that of the smallest normal number; `largest` is
    the largest finite number; `saturates_to_nan` says that the format has no infinity (the FN formats of 8 bits).
    """

    name: str
    significand_bits: int
    smallest_exponent: int
    largest: float
    saturates_to_nan: bool = False

    @property
    def unit(self) -> float:
        """Unit roundoff of round to nearest, 2^-significand_bits: fp32 2^-24, bf16 2^-8, fp16 2^-11."""
        return 2.0**-self.significand_bits

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number; what lies below may be flushed to zero by a device."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The distance of the smallest numbers, which is also the smallest positive number."""
        return float(np.ldexp(1.0, self.smallest_exponent - self.significand_bits + 1))

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounds beyond `largest`: half a gap above it. inf for float64."""
        if self.significand_bits >= _FLOAT64_BITS:
            return float("inf")
        return self.largest + float(np.ldexp(1.0, int(np.frexp(self.largest)[1]) - self.significand_bits - 1))


TF32: Final = Format("tfloat32", 11, -126, float(np.ldexp(2.0 - 2.0**-10, 127)))
"""fp32's range with fp16's precision: what tensor cores read of an fp32 operand where TF32 is on."""
FLOAT32: Final = Format("float32", 24, -126, float(np.finfo(np.float32).max))
FLOAT64: Final = Format("float64", 53, -1022, float(np.finfo(np.float64).max))
BFLOAT16: Final = Format("bfloat16", 8, -126, float(np.ldexp(2.0 - 2.0**-7, 127)))
FLOAT16: Final = Format("float16", 11, -14, 65504.0)


def rounding_of(dtype: str | None, x: NDArray[Any]) -> NDArray[Any]:
    """How far rounding to a dtype may move each number, at most: a unit roundoff of it, below the normal numbers half their distance.

    Nothing where the dtype is no float's, and nothing of a zero.
    """
    format = None if dtype is None else format_named(dtype)
    if format is None:
        return np.zeros(np.shape(x))
    size = np.abs(x)
    found: NDArray[Any] = np.where(size > 0, np.maximum(format.unit * size, format.smallest_subnormal / 2), size)
    return found


@cache
def format_named(name: str) -> Format | None:
    """The format of the float dtype with torch's `name` ("float32", "bfloat16", ...), or "tfloat32"; None for other dtypes."""
    for known in (TF32, FLOAT32, FLOAT64, BFLOAT16, FLOAT16):
        if known.name == name:
            return known
    dtype = DTYPES.get(name)
    if dtype is None or dtype.kind != "float" or dtype.top == "scale":
        return None
    return Format(name, dtype.mantissa_bits + 1, 1 - dtype.bias, dtype.largest, dtype.top in ("fn", "fnuz"))


def accumulator_for(*dtypes: str) -> Format:
    """The accumulator assumed where none is declared: float64 where an operand is float64, else float32."""
    return FLOAT64 if "float64" in dtypes or "complex128" in dtypes else FLOAT32


def gap(x: NDArray[Any], format: Format) -> NDArray[np.float64]:
    """The distance from abs(x) to the next number of `format` above it, for finite x; at least the smallest subnormal.

    Also known as ulp(x) with the binade that begins at abs(x).
    """
    if format.significand_bits >= _FLOAT64_BITS:
        return np.asarray(np.spacing(np.abs(np.asarray(x, np.float64))))
    exponent = np.maximum(_bits(x) & _EXPONENT, (format.smallest_exponent + _BIAS) << 52)
    found: NDArray[np.float64] = (exponent - ((format.significand_bits - 1) << 52)).view(np.float64)
    return found


def _bits(x: NDArray[Any]) -> NDArray[np.int64]:
    return np.ascontiguousarray(x, np.float64).view(np.int64).reshape(np.shape(x))


def _half_gaps(x: NDArray[Any], format: Format) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Half the gap away from zero and half the gap toward it, which is a quarter at a power of two above the smallest normal number."""
    away = gap(x, format) / 2.0
    power = ((_bits(x) & _FRACTION) == 0) & (np.abs(x) > format.smallest_normal)
    return away, np.where(power, away / 2.0, away)


def round_to(x: NDArray[Any], format: Format) -> NDArray[np.float64]:
    """`x` rounded to `format`, to nearest with ties to even, as float64.

    Beyond the range it is infinite, NaN where the format has no infinity.
    """
    x = np.asarray(x, np.float64)
    if format.name == "float64":
        return x
    with np.errstate(all="ignore"):
        if format.name == "float32":
            return x.astype(np.float32).astype(np.float64)
        if format.name == "float16":
            return x.astype(np.float16).astype(np.float64)
        drop = np.uint64(_FLOAT64_BITS - format.significand_bits)
        bits = np.ascontiguousarray(x).view(np.uint64).reshape(x.shape)
        half = (np.uint64(1) << (drop - np.uint64(1))) - np.uint64(1)
        rounded = ((bits + half + ((bits >> drop) & np.uint64(1))) >> drop) << drop
        result = rounded.view(np.float64)
        size = np.abs(x)
        small = size < format.smallest_normal
        if np.any(small):
            step = format.smallest_subnormal
            result = np.where(small, np.copysign(np.rint(size / step) * step, x), result)
        over = np.isfinite(x) & (np.abs(result) > format.largest)
        result = np.where(over, np.copysign(np.inf, x), result)
        if format.saturates_to_nan:
            result = np.where(np.isinf(result), np.nan, result)
        return np.where(np.isnan(x), x, result)


def truncate_to(x: NDArray[Any], format: Format) -> NDArray[np.float64]:
    """`x` rounded toward zero to the significand of `format`, as float64; its range is not looked at."""
    x = np.ascontiguousarray(x, np.float64)
    drop = np.uint64(_FLOAT64_BITS - format.significand_bits)
    cut: NDArray[np.float64] = ((x.view(np.uint64) >> drop) << drop).view(np.float64).reshape(x.shape)
    return cut


def interval(recorded: NDArray[Any], format: Format) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and the highest real that rounds to each finite `recorded`: half a gap away, half of that below a power of two."""
    recorded = np.asarray(recorded, np.float64)
    above, below = _half_gaps(recorded, format)
    negative = np.signbit(recorded)
    return recorded - np.where(negative, above, below), recorded + np.where(negative, below, above)


def excess(recorded: NDArray[Any], exact: NDArray[Any], format: Format) -> NDArray[np.float64]:
    """How far `exact` lies from the closed interval of reals that round to `recorded`, absolute; 0 where `recorded` is a correct rounding.

    The interval reaches half a gap to either side, a quarter of the upper gap below a power of two (above the smallest
    normal), and without end beyond an infinity. NaN where either is NaN. For float64 it is the plain distance beyond
    half a gap, computed in float64.
    """
    recorded = np.asarray(recorded, np.float64)
    exact = np.asarray(exact, np.float64)
    with np.errstate(all="ignore"):
        above, below = _half_gaps(np.where(np.isfinite(recorded), recorded, format.largest), format)
        away = np.where(np.signbit(recorded), recorded - exact, exact - recorded)
        found = np.where(away > 0, np.maximum(away - above, 0.0), np.maximum(-away - below, 0.0))
        infinite = np.isinf(recorded)
        if np.any(infinite):
            to_infinity = np.maximum(format.overflow - np.copysign(1.0, recorded) * exact, 0.0)
            found = np.where(infinite, np.where(recorded == exact, 0.0, to_infinity), found)
        found = np.where(np.isinf(exact) & (recorded != exact), np.inf, found)
        return np.where(np.isnan(recorded) | np.isnan(exact), np.nan, found)
