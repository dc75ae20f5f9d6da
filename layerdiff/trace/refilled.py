"""`Refilled`: a trace file some of whose values have other numbers at the end of a dimension.

What fills a vocabulary up is no part of the model. With the other run's filling in its place, a run is compared and judged as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.derived import Derived
from layerdiff.trace.dtypes import Dtype
from layerdiff.trace.places import Place
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Statistics


@dataclass(frozen=True)
class Filling:
    """The bits at the end of a dimension of a value."""

    dim: int
    bits: NDArray[Any]


class Refilled(TraceFile):
    """A trace file with other numbers in some values. Their statistics and fingerprints are no longer known."""

    def __init__(self, file: TraceFile, fillings: Mapping[int, Filling]) -> None:
        """`fillings`: by value, of its own dtype."""
        self.__dict__.update(file.__dict__)
        self._base = file
        self._fillings = fillings
        self._derived = Derived(self, self.path.stat().st_size, self._stored_bytes)

    def statistics(self, value: int) -> Statistics | None:
        """None of what has other numbers."""
        return None if value in self._fillings else self._base.statistics(value)

    def fingerprint(self, value: int) -> tuple[int, int] | None:
        """None of what has other numbers, or is seen of such."""
        return None if value in self._fillings or int(self.values.base[value]) in self._fillings else self._base.fingerprint(value)

    def raw(self, value: int) -> NDArray[Any]:
        """The bits of a value."""
        filling = self._fillings.get(value)
        if filling is None:
            return super().raw(value) if int(self.values.base[value]) in self._fillings else self._base.raw(value)
        bits = np.array(self._base.raw(value))
        bits[(slice(None),) * filling.dim + (slice(bits.shape[filling.dim] - filling.bits.shape[filling.dim], None),)] = filling.bits
        return bits

    def read(self, value: int) -> NDArray[Any]:
        """A value as numbers."""
        dtype = self.dtype(value)
        if int(self.values.base[value]) in self._fillings:
            return super().read(value)
        return dtype.decode(self.raw(value)) if value in self._fillings and dtype is not None else self._base.read(value)

    def _place(self, value: int, dtype: Dtype) -> Place | None:
        return None if value in self._fillings else self._base._place(value, dtype)

    def _stored_bytes(self, value: int) -> NDArray[np.uint8]:
        return self.raw(value).reshape(-1).view(np.uint8) if value in self._fillings else self._base._stored_bytes(value)


def can_encode(dtype: Dtype | None) -> bool:
    """Whether `encoded` knows a dtype."""
    return dtype is not None and dtype.kind == "float" and (dtype.native or dtype.name == "bfloat16")


def encoded(numbers: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """Numbers as the bits of a float, rounded to nearest."""
    if dtype.native:
        with np.errstate(over="ignore"):
            return np.asarray(numbers.astype(dtype.raw))
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(numbers), np.uint32(0x7FC0), rounded).astype(dtype.raw))
