"""Arrays as `Blocks`, and arrays of every dtype from numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.dtypes import DTYPES, Dtype


@dataclass(frozen=True)
class ArrayBlocks:
    """Bits in memory. Every block is the same buffer, as a reader's is."""

    dtype: Dtype
    bits: NDArray[Any]

    @property
    def count(self) -> int:
        return self.bits.size

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        flat = self.bits.reshape(-1)
        buffer = np.empty(min(count, flat.size), flat.dtype)
        for start in range(0, flat.size, count):
            block = buffer[: min(count, flat.size - start)]
            block[:] = flat[start : start + count]
            yield block
            block.view(np.uint8)[:] = 0xAB


def value(name: str, numbers: Any) -> ArrayBlocks:
    """Numbers rounded to the dtype called `name`: to nearest for the types of numpy and bfloat16, to the nearest code for FP8."""
    dtype = DTYPES[name]
    if dtype.native or dtype.kind in ("boolean", "bits"):
        with np.errstate(over="ignore", invalid="ignore"):
            return ArrayBlocks(dtype, np.asarray(numbers).astype(dtype.raw))
    x = np.asarray(numbers, np.float32)
    if name == "bfloat16":
        bits = x.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return ArrayBlocks(dtype, np.where(np.isnan(x), np.uint16(0x7FC0), rounded))
    codes = np.arange(256, dtype=np.uint8)
    table = dtype.decode(codes).astype(np.float64)
    finite = np.isfinite(table)
    nearest = np.abs(x.astype(np.float64)[..., None] - table[finite]).argmin(-1)
    return ArrayBlocks(dtype, codes[finite][nearest])


def raw(name: str, bits: Any) -> ArrayBlocks:
    """A value by its bits; integers by their numbers."""
    dtype = DTYPES[name].raw
    whole = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "f" else dtype
    return ArrayBlocks(DTYPES[name], np.asarray(bits, whole).view(dtype))
