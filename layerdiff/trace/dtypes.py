"""Element types of a trace: torch's names, their bits, and how numpy decodes them.

Bits are stored as they are. numpy decodes them, never HDF5: its conversion of bfloat16 is 80 times
slower, and its FP8 E4M3 reads the top codes of torch's float8_e4m3fn as inf or nan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["float", "integer", "boolean", "complex", "bits"]


@dataclass(frozen=True)
class Dtype:
    """One element type.

    `raw` is the numpy type that holds the bits. `unit_roundoff` is 2^-(significand bits), as science
    has it for round to nearest; None for types that do not round.
    """

    name: str
    kind: Kind
    raw: np.dtype[Any]
    unit_roundoff: float | None = None
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    top: Literal["ieee", "fn", "fnuz", "scale"] = "ieee"

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.raw.itemsize

    @property
    def native(self) -> bool:
        """Whether numpy computes with the bits as they are."""
        return self.raw.kind in "fiubc" and not (self.kind == "float" and self.raw.kind == "u") and self.kind != "bits"

    @property
    def largest(self) -> float:
        """The largest finite value; inf for types without one."""
        if self.kind != "float":
            return float("inf")
        if self.raw.kind == "f":
            return float(np.finfo(self.raw).max)
        table = self.decode(np.arange(1 << (8 * self.itemsize), dtype=np.uint32).astype(self.raw))
        return float(np.max(table[np.isfinite(table)]))

    def decode(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Elements as numpy computes with them: native types unchanged, narrower floats as float32."""
        if self.native:
            return raw
        if self.kind == "bits":
            return raw
        if self.name == "bfloat16":
            wide: NDArray[Any] = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
            return wide
        looked_up: NDArray[Any] = _table(self)[raw]
        return looked_up

    @property
    def encodes(self) -> bool:
        """Whether `encode` knows this type."""
        return self.kind == "float" and (self.native or self.name == "bfloat16")

    def encode(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The bits of numbers, rounded to nearest with ties to even, beyond the range to infinity: as torch casts floats."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.raw.kind == "f":
                return np.asarray(numbers.astype(self.raw))
            words = numbers.astype(np.float32).view(np.uint32)
        rounded = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.asarray(np.where(np.isnan(numbers), np.uint32(0x7FC0), rounded).astype(self.raw))


@cache
def _table(dtype: Dtype) -> NDArray[np.float32]:
    """All 256 values of an 8-bit float, as float32."""
    codes = np.arange(256)
    if dtype.top == "scale":  # e8m0: a power of two, 255 is nan
        with np.errstate(over="ignore"):
            values = np.ldexp(1.0, codes - 127)
        values[255] = np.nan
        return values.astype(np.float32)
    sign = np.where(codes >> 7, -1.0, 1.0)
    exponent = (codes >> dtype.mantissa_bits) & ((1 << dtype.exponent_bits) - 1)
    mantissa = codes & ((1 << dtype.mantissa_bits) - 1)
    fraction = mantissa / (1 << dtype.mantissa_bits)
    values = sign * np.where(
        exponent == 0,
        np.ldexp(fraction, 1 - dtype.bias),
        np.ldexp(1.0 + fraction, exponent - dtype.bias),
    )
    if dtype.top == "ieee":
        last = (1 << dtype.exponent_bits) - 1
        values = np.where(exponent == last, np.where(mantissa == 0, sign * np.inf, np.nan), values)
    elif dtype.top == "fn":
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[0x80] = np.nan
    return values.astype(np.float32)


def _narrow(name: str, exponent: int, mantissa: int, bias: int, top: Literal["ieee", "fn", "fnuz"]) -> Dtype:
    return Dtype(name, "float", np.dtype("u1"), 2.0 ** -(mantissa + 1), exponent, mantissa, bias, top)


_ALL: Final = [
    Dtype("float64", "float", np.dtype("<f8"), 2.0**-53),
    Dtype("float32", "float", np.dtype("<f4"), 2.0**-24),
    Dtype("float16", "float", np.dtype("<f2"), 2.0**-11),
    Dtype("bfloat16", "float", np.dtype("<u2"), 2.0**-8, 8, 7, 127),
    _narrow("float8_e4m3fn", 4, 3, 7, "fn"),
    _narrow("float8_e4m3fnuz", 4, 3, 8, "fnuz"),
    _narrow("float8_e5m2", 5, 2, 15, "ieee"),
    _narrow("float8_e5m2fnuz", 5, 2, 16, "fnuz"),
    Dtype("float8_e8m0fnu", "float", np.dtype("u1"), 0.5, 8, 0, 127, "scale"),
    Dtype("float4_e2m1fn_x2", "bits", np.dtype("u1")),
    Dtype("int64", "integer", np.dtype("<i8")),
    Dtype("int32", "integer", np.dtype("<i4")),
    Dtype("int16", "integer", np.dtype("<i2")),
    Dtype("int8", "integer", np.dtype("i1")),
    Dtype("uint64", "integer", np.dtype("<u8")),
    Dtype("uint32", "integer", np.dtype("<u4")),
    Dtype("uint16", "integer", np.dtype("<u2")),
    Dtype("uint8", "integer", np.dtype("u1")),
    Dtype("bool", "boolean", np.dtype("u1")),
    Dtype("complex64", "complex", np.dtype("<c8"), 2.0**-24),
    Dtype("complex128", "complex", np.dtype("<c16"), 2.0**-53),
]
DTYPES: Final[dict[str, Dtype]] = {dtype.name: dtype for dtype in _ALL}
BYTES: Final = DTYPES["uint8"]


def dtype_named(name: str) -> Dtype | None:
    """The dtype with torch's `name`, or None where this version does not know it."""
    return DTYPES.get(name)
