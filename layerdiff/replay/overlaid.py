"""`Overlaid`: the program that one run recorded, with the values of another in its place.

Many ranks run one model: the reference's program is what they should compute together. Read with the ranks' logical values where modules
hand them on, it is judged like any other run: each module's recorded results against what the program makes of what came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.trace.dtypes import Dtype, dtype_named
from layerdiff.trace.reader import StoredValue, TraceFile
from layerdiff.trace.schema import CallKind, Role, Statistics


@dataclass(frozen=True)
class Laid:
    """A value that stands in for a recorded one: its numbers, and the dtype that they were kept in."""

    dtype: str
    numbers: NDArray[Any]


class Overlaid(TraceFile):
    """A trace file whose values at module boundaries are another run's. What lies between is computed, never read."""

    def __init__(self, file: TraceFile, laid: Mapping[int, Laid], recorded: set[int]) -> None:
        """`laid`: by value of `file`. `recorded`: values that are read from `file` itself: weights that the other run did not keep."""
        self.__dict__.update(file.__dict__)
        self._laid = laid
        self._recorded = recorded
        self._base = file

    def dtype_name(self, value: int) -> str:
        """Of the other run, where it has the value."""
        found = self._laid.get(value)
        return self._base.dtype_name(value) if found is None else found.dtype

    def memory_dtype(self, value: int) -> str:
        """As the program laid it out."""
        return self._base.dtype_name(value)

    def dtype(self, value: int) -> Dtype | None:
        """As `dtype_name`."""
        return dtype_named(self.dtype_name(value))

    def has_bytes(self, value: int) -> bool:
        """Whether the other run has the value, or it may be read from this one."""
        return value in self._laid or (value in self._recorded and self._base.has_bytes(value))

    def why_without_bytes(self, value: int) -> str:
        """It is no value that modules hand on, or the ranks' are not put together."""
        return "the ranks hand on no such value, or none that could be put together"

    def fingerprint(self, value: int) -> tuple[int, int] | None:
        """None of what the other run has: its bits are put together from parts."""
        return self._base.fingerprint(value) if value in self._recorded else None

    def statistics(self, value: int) -> Statistics | None:
        """None: those of the program's own run are not the other's."""
        return None

    def read(self, value: int) -> NDArray[Any]:
        """The value as numbers. Raises TraceError where neither has it."""
        found = self._laid.get(value)
        if found is not None:
            return found.numbers
        if value not in self._recorded:
            raise TraceError(f"{self.path}: the ranks recorded nothing of value {value}.")
        return self._base.read(value)

    def raw(self, value: int) -> NDArray[Any]:
        """As numbers; no bits are asked of an overlaid value."""
        return self.read(value)

    def stored(self, value: int) -> StoredValue | None:
        """None: an overlaid value lies in no file."""
        return None if value in self._laid else self._base.stored(value)


def boundaries(file: TraceFile) -> set[int]:
    """The values that no operator made and no module call was given: literals and sources of the program itself, weights among them."""
    made = np.zeros(len(file.values), bool)
    operators = file.calls.kind[file.edges.call] == CallKind.OPERATOR
    made[file.edges.value[operators & (file.edges.role == Role.OUTPUT)]] = True
    return set(np.flatnonzero(~made).tolist())
