"""`GrowingTable`: rows turned into columns a chunk at a time, so that a long table never is a million Python objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_CHUNK_ROWS: Final = 32_768


class GrowingTable:
    """Rows appended one by one, each a sequence with one entry a column, in the order of `columns`."""

    def __init__(self, columns: Mapping[str, np.dtype[Any]]) -> None:
        self._columns = columns
        self._rows: list[Sequence[Any]] = []
        self._chunks: list[list[NDArray[Any]]] = []
        self._packed = 0

    def __len__(self) -> int:
        return self._packed + len(self._rows)

    def append(self, row: Sequence[Any]) -> None:
        """Add a row. Real numbers may be texts that float() reads."""
        self._rows.append(row)
        if len(self._rows) >= _CHUNK_ROWS:
            self._pack()

    def _pack(self) -> None:
        if self._rows:
            by_column = zip(*self._rows, strict=True)
            self._chunks.append([np.array(c, dtype) for c, dtype in zip(by_column, self._columns.values(), strict=True)])
            self._packed += len(self._rows)
            self._rows = []

    def finish(self) -> dict[str, NDArray[Any]]:
        """All rows as columns."""
        self._pack()
        if not self._chunks:
            return {name: np.empty(0, dtype) for name, dtype in self._columns.items()}
        return {name: np.concatenate(parts) for name, parts in zip(self._columns, zip(*self._chunks, strict=True), strict=True)}
