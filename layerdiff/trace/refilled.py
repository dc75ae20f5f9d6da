"""`Refilled`: a trace file some of whose values have other numbers at the end of a dimension.

What fills a vocabulary up is no part of the model. With the other run's filling in its place, a run is compared and judged as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.altered import Altered
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Statistics

Array = NDArray[Any]


@dataclass(frozen=True)
class Filling:
    """The bits at the end of a dimension of a value."""

    dim: int
    bits: Array

    def put(self, bits: Array) -> Array:
        """The bits of a value with these at the end."""
        found = np.array(bits)
        found[(slice(None),) * self.dim + (slice(found.shape[self.dim] - self.bits.shape[self.dim], None),)] = self.bits
        return found


class Refilled(Altered):
    """A trace file with other numbers in some values. Their statistics are no longer known."""

    def __init__(self, file: TraceFile, fillings: Mapping[int, Filling]) -> None:
        """`fillings`: by value, of its own dtype."""
        super().__init__(file)
        self._fillings = fillings

    def statistics(self, value: int) -> Statistics | None:
        """None of what has other numbers."""
        return None if value in self._fillings else self._base.statistics(value)

    def _change(self, value: int) -> Callable[[Array], Array] | None:
        filling = self._fillings.get(value)
        return None if filling is None else filling.put

    def _is_seen_of(self, value: int) -> bool:
        return int(self.values.base[value]) in self._fillings
