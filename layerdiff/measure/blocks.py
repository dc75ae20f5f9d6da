"""`Blocks`: what a measure reads, whoever stores it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ArrayBlocks:
    """A value in memory: `bits` of `dtype.raw`."""

    dtype: Dtype
    bits: NDArray[Any]

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.bits.size)

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        """Row-major runs of `count` elements."""
        flat = self.bits.reshape(-1)
        for start in range(0, flat.size, count):
            yield flat[start : start + count]


def side_by_side(reference: Blocks, target: Blocks, count: int) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """(index of the first element, bits of the reference, bits of the target), `count` elements at a time.

    Raises ValueError where the two do not hold equally many elements.
    """
    if reference.count != target.count:
        raise ValueError(f"the reference holds {reference.count} elements and the target {target.count}: only equal shapes can be measured")
    start = 0
    for ours, theirs in zip(reference.blocks(count), target.blocks(count), strict=True):
        yield start, ours, theirs
        start += ours.size
