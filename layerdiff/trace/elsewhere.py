"""Values whose bytes are not in the trace, and are known all the same: weights that a checkpoint has, and views of such."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.trace.derived import Derived
from layerdiff.trace.dtypes import Dtype
from layerdiff.trace.fingerprint import fingerprint
from layerdiff.trace.schema import ABSENT, Storage, ValueKind

if TYPE_CHECKING:
    from layerdiff.trace.reader import TraceFile

Bits = NDArray[Any]


class WeightSource(Protocol):
    """Who has the bits of weights."""

    def find(self, name: str, dtype: Dtype, shape: tuple[int, ...], is_it: Callable[[Bits], bool]) -> Callable[[], Bits] | None:
        """Reads the bits of a weight of which `is_it` holds; None where there are none."""


class Elsewhere:
    """The values of one file whose bytes a source has. What it finds is remembered, not its bytes."""

    def __init__(self, file: TraceFile, source: WeightSource, derived: Derived) -> None:
        self._file, self._source, self._derived = file, source, derived
        self._found: dict[int, Callable[[], Bits] | None] = {}

    def has(self, value: int) -> bool:
        """Whether the source has the bits of a value without bytes: of a weight, or of a view of one that was not written to since."""
        return self._find(value) is not None

    def bytes_of(self, value: int) -> NDArray[np.uint8]:
        """Its row-major bytes. Raises TraceError where the source has none."""
        found = self._find(value)
        if found is None:
            raise TraceError(f"{self._file.path}: nobody has the bytes of value {value}.")
        flat: NDArray[np.uint8] = np.ascontiguousarray(found()).reshape(-1).view(np.uint8)
        return flat

    def _find(self, value: int) -> Callable[[], Bits] | None:
        if value not in self._found:
            values = self._file.values
            mine = int(values.storage[value]) == Storage.NONE
            weight = int(values.kind[value]) in (ValueKind.PARAMETER, ValueKind.BUFFER)
            self._found[value] = None if not mine else self._weight(value) if weight else self._view(value)
        return self._found[value]

    def _weight(self, value: int) -> Callable[[], Bits] | None:
        file = self._file
        name, dtype = file.text(int(file.values.name[value])), file.dtype(value)
        if name is None or dtype is None or (file.fingerprint(value) is None and file.statistics(value) is None):
            return None
        return self._source.find(name, dtype, file.shape(value), lambda bits: self._is_it(value, dtype, bits))

    def _is_it(self, value: int, dtype: Dtype, bits: Bits) -> bool:
        """Whether these are the bits of the weight that ran, by its fingerprint; without one by its statistics."""
        known, told = self._file.fingerprint(value), self._file.statistics(value)
        if known is not None:
            return fingerprint(bits) == known
        numbers = dtype.decode(bits).astype(np.float64)
        if told is None or not numbers.size or not np.isfinite(numbers).all():
            return False
        ends = (float(numbers.min()), float(numbers.max())) == (told.minimum, told.maximum)
        return ends and math.isclose(math.sqrt(float(np.mean(np.square(numbers)))), told.rms, rel_tol=1e-6)

    def _view(self, value: int) -> Callable[[], Bits] | None:
        """A view of a weight, by where both lay in memory."""
        file, values = self._file, self._file.values
        base = self._weights_in.get((int(values.memory[value]), int(values.version[value])))
        if base is None or file.dtype_name(base) != file.dtype_name(value) or self._find(base) is None:
            return None
        strides, shape = file.json(int(values.strides[value])), file.shape(value)
        if strides is None:
            strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        place = {"offset": int(values.memory_offset[value]) - int(values.memory_offset[base]), "strides": strides}
        try:
            self._derived.seen(value, self.bytes_of(base), place)
        except TraceError:  # a part of the memory that the weight does not reach
            return None
        return lambda: self._derived.seen(value, self.bytes_of(base), place)

    @cached_property
    def _weights_in(self) -> dict[tuple[int, int], int]:
        """By memory and version the weight that lies there in a row; no other shares it."""
        values = self._file.values
        weights = np.isin(np.asarray(values.kind), (ValueKind.PARAMETER, ValueKind.BUFFER))
        weights &= (np.asarray(values.memory) != ABSENT) & (np.asarray(values.strides) == ABSENT)
        found: dict[tuple[int, int], int] = {}
        for row in np.flatnonzero(weights).tolist():
            found.setdefault((int(values.memory[row]), int(values.version[row])), row)
        return found
