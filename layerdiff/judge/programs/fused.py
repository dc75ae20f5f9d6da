"""`FusedRows`: a constant of the reference that the target keeps in another dtype and as a part of another: projections fused into
one, experts stacked, a vocabulary padded, each perhaps transposed.

Looked for row by row, by what a row is once rounded to the coarser dtype of the two. Where the rows lie is not looked at: if they lie
wrongly, the programs compute something else, and meaning finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import Format, format_named, round_to
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both

Array = NDArray[Any]


class FusedRows:
    """The rows of `candidates`, the target's constants that the reference lacks or has in another shape."""

    def __init__(self, runs: Both[Recorded], contents: Callable[[Recorded, int], Array], candidates: Iterable[int]) -> None:
        self._runs = runs
        self._contents = contents
        self._candidates = list(candidates)
        self._found: dict[int, Array | None] = {}
        self._index: dict[tuple[str, bool, int], dict[Format, dict[bytes, Array]]] = {}

    def instead(self, value: int) -> Array | None:
        """The target's contents of a whole constant of the reference, where every row of it is found in another dtype; else None.

        Raises CannotReplay where the bytes of `value` were not kept.
        """
        if value not in self._found:
            self._found[value] = self._find(value)
        return self._found[value]

    def _find(self, value: int) -> Array | None:
        ours = format_named(self._runs.reference.file.dtype_name(value))
        if ours is None or not self._candidates:
            return None
        contents = self._contents(self._runs.reference, value)
        rows = _rows(contents)
        for theirs, known in self._known(ours, contents.ndim > 1, rows.shape[1]).items():
            coarser = max(ours, theirs, key=lambda one: one.unit)
            found = [known.get(key) for key in _keys(rows, coarser)]
            if found and all(row is not None for row in found):
                return np.array(found).reshape(contents.shape)
        return None

    def _known(self, ours: Format, matrices: bool, width: int) -> dict[Format, dict[bytes, Array]]:
        """The rows of that width (single elements of vectors) in each other dtype, by what they are once rounded to the coarser one."""
        index = self._index.get((ours.name, matrices, width))
        if index is not None:
            return index
        index = self._index[ours.name, matrices, width] = {}
        for value in self._candidates:
            theirs = format_named(self._runs.target.file.dtype_name(value))
            shape = self._runs.target.file.shape(value)
            if theirs is None or theirs.name == ours.name or (len(shape) > 1) != matrices or (matrices and width not in shape[-2:]):
                continue
            try:
                contents = self._contents(self._runs.target, value)
            except CannotReplay:
                continue
            for side in (contents, np.swapaxes(contents, -1, -2)) if matrices else (contents,):
                rows = _rows(side)
                if rows.shape[1] == width:
                    keys = _keys(rows, max(ours, theirs, key=lambda one: one.unit))
                    index.setdefault(theirs, {}).update(zip(keys, rows, strict=True))
        return index


def _rows(contents: Array) -> Array:
    return contents.reshape(-1, contents.shape[-1] if contents.ndim > 1 else 1)


def _keys(rows: Array, format: Format) -> list[bytes]:
    return [row.tobytes() for row in round_to(rows, format) + 0.0]
