"""`FusedRows`: a constant of one run that the other keeps as a part of another: projections fused into one, experts stacked, a
vocabulary padded, each perhaps transposed, perhaps in another dtype.

Looked for row by row, by what a row is once rounded to the coarser dtype of the two. Where the rows lie is not looked at: if they lie
wrongly, the programs compute something else, and meaning finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import Format, format_named, round_to
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay

Array = NDArray[Any]
_STACKED: Final = 3
"""Dimensions of matrices that are stacked."""


class FusedRows:
    """The rows of `candidates`, constants of the run `theirs` that the run `ours` lacks, or has in another form."""

    def __init__(self, ours: Recorded, theirs: Recorded, contents: Callable[[Recorded, int], Array], candidates: Iterable[int]) -> None:
        self._ours, self._theirs = ours, theirs
        self._contents = contents
        self._candidates = list(candidates)
        self._found: dict[tuple[int, bool], Array | None] = {}
        self._index: dict[tuple[Format, str, bool, int], dict[bytes, Array]] = {}

    def instead(self, value: int) -> Array | None:
        """Their contents of a whole constant of ours, where every row of it is found in another dtype; else None.

        Raises CannotReplay where the bytes of `value` were not kept.
        """
        return self._find(value, other_dtypes=True)

    def has(self, value: int) -> bool:
        """Whether every row of a whole constant of ours is found, in whatever dtype. Raises CannotReplay, likewise."""
        return self._find(value, other_dtypes=False) is not None

    def _find(self, value: int, *, other_dtypes: bool) -> Array | None:
        key = value, other_dtypes
        if key not in self._found:
            self._found[key] = self._sought(value, other_dtypes)
        return self._found[key]

    def _sought(self, value: int, other_dtypes: bool) -> Array | None:
        ours = format_named(self._ours.file.dtype_name(value))
        dtypes = dict.fromkeys(self._theirs.file.dtype_name(one) for one in self._candidates)
        formats = [format for name in dtypes if (format := format_named(name)) is not None]
        formats = [format for format in formats if not other_dtypes or format != ours]
        if ours is None or not formats:
            return None
        contents = self._contents(self._ours, value)
        for rows in _rows(contents):
            for theirs in formats:
                known = self._known(ours, theirs, contents.ndim > 1, rows.shape[1])
                found = [known.get(key) for key in _keys(rows, _coarser(ours, theirs))] if known else []
                if found and all(row is not None for row in found):
                    return np.array(found).reshape(contents.shape)
        return None

    def _known(self, ours: Format, theirs: Format, matrices: bool, width: int) -> dict[bytes, Array]:
        """The rows of that width (single elements of vectors) in a dtype, by what they are once rounded to the coarser one."""
        index = self._index.get((ours, theirs.name, matrices, width))
        if index is not None:
            return index
        index = self._index[ours, theirs.name, matrices, width] = {}
        for value in self._candidates:
            shape = self._theirs.file.shape(value)
            if self._theirs.file.dtype_name(value) != theirs.name or (len(shape) > 1) != matrices:
                continue
            if matrices and width not in _widths(shape):
                continue
            try:
                contents = self._contents(self._theirs, value)
            except CannotReplay:
                continue
            for side in (contents, np.swapaxes(contents, -1, -2)) if matrices else (contents,):
                for rows in _rows(side):
                    if rows.shape[1] == width:
                        index.update(zip(_keys(rows, _coarser(ours, theirs)), rows, strict=True))
        return index


def rearranged(ours: Array, theirs: Array, our_dtype: str, their_dtype: str) -> bool:
    """Whether two constants have the same elements, each as often, once rounded to the coarser of their dtypes.

    Of constants that are stacked alike (experts), each has its own: another expert in the place of one is no other order.
    """
    one_format, other_format = format_named(our_dtype), format_named(their_dtype)
    if ours.size != theirs.size or ours.size < 2 or one_format is None or other_format is None:
        return False
    coarser = _coarser(one_format, other_format)
    stacks = len(ours) if ours.ndim == theirs.ndim >= _STACKED and len(ours) == len(theirs) else 1
    one, other = (round_to(x.reshape(stacks, -1), coarser) for x in (ours, theirs))
    ends = [(part.min(), part.max(), np.count_nonzero(part > 0)) for part in (one, other)]
    return ends[0] == ends[1] and bool(np.array_equal(np.sort(one), np.sort(other)))


def _coarser(one: Format, other: Format) -> Format:
    return max(one, other, key=lambda format: format.unit)


def _rows(contents: Array) -> Iterator[Array]:
    """The rows of the last dimension (single elements of a vector); of more than two dimensions, those of the first as well."""
    yield contents.reshape(-1, contents.shape[-1] if contents.ndim > 1 else 1)
    if contents.ndim > 2 and contents.size:
        yield contents.reshape(contents.shape[0], -1)


def _widths(shape: tuple[int, ...]) -> set[int]:
    return {*shape[-2:], int(np.prod(shape[1:]))}


def _keys(rows: Array, format: Format) -> list[bytes]:
    return [row.tobytes() for row in round_to(rows, format) + 0.0]
