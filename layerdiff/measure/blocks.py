"""`Blocks`: what a measure reads, whoever stores it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from numpy.typing import NDArray

from layerdiff.trace.dtypes import Dtype


class Blocks(Protocol):
    """The elements of one value, read a block at a time, as often as asked."""

    @property
    def dtype(self) -> Dtype:
        """Element type."""

    @property
    def count(self) -> int:
        """Number of elements."""

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        """Row-major runs of `count` elements (the last may be shorter), as bits: arrays of `dtype.raw`.

        A block may be overwritten when the next is asked for.
        """
