"""The index of a trace file, read and checked: nothing after this needs to doubt a number of it.

A column is read when it is first asked for, and checked then; a count or an offset that points
outside the file is found here, before anything follows it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.check import open_dataset, read_column, require
from layerdiff.trace.schema import ABSENT, ADDED, TABLES, TEXT_COLUMNS, CallKind, CallStatus, Role, Storage, ValueKind

Column = NDArray[Any]


class Texts:
    """The text table: strings by number, decoded when asked for."""

    def __init__(self, file: h5py.File) -> None:
        self._path = file.filename
        self._offsets = read_column(file, "text/offset", np.dtype("<u8"))
        self._bytes = read_column(file, "text/bytes", np.dtype("u1"))
        offsets = self._offsets.astype(np.int64)
        require(offsets.size >= 1 and offsets[0] == 0, self._path, "text/offset must begin with 0")
        require(
            bool(np.all(np.diff(offsets) >= 0)) and offsets[-1] == self._bytes.size,
            self._path,
            "text/offset must grow and end with the text",
        )
        self._decoded: dict[int, str] = {}

    def __len__(self) -> int:
        return self._offsets.size - 1

    def __getitem__(self, index: int) -> str:
        found = self._decoded.get(index)
        if found is None:
            start, stop = int(self._offsets[index]), int(self._offsets[index + 1])
            found = self._decoded[index] = self._bytes[start:stop].tobytes().decode("utf-8", "surrogatepass")
        return found


class Table:
    """The columns of one table, as attributes: `calls.module`, `values.nbytes`. Checked when read."""

    def __init__(self, file: h5py.File, name: str, texts: Texts) -> None:
        self._file, self._name, self._texts = file, name, texts
        self._rows: int | None = None

    def __len__(self) -> int:
        if self._rows is None:
            first = next(iter(TABLES[self._name]))
            self._rows = int(open_dataset(self._file, f"{self._name}/{first}").shape[0])
        return self._rows

    def __getattr__(self, column: str) -> Column:
        if column.startswith("_"):
            raise AttributeError(column)
        dtype = TABLES[self._name].get(column)
        if dtype is None:
            raise AttributeError(f"the table {self._name} has no column {column}")
        if (self._name, column) in ADDED and f"{self._name}/{column}" not in self._file:
            found = np.full(len(self), ABSENT, dtype)
        else:
            found = read_column(self._file, f"{self._name}/{column}", dtype)
        self._check(column, found)
        found.flags.writeable = False
        self.__dict__[column] = found  # an ordinary attribute from now on
        return found

    def _check(self, column: str, found: Column) -> None:
        path, name = self._file.filename, f"{self._name}/{column}"
        require(found.size == len(self), path, f"{name} has {found.size} rows, and its table has {len(self)}")
        if not found.size:
            return
        codes = _CODES.get((self._name, column))
        if codes is not None:
            require(int(found.max()) <= codes, path, f"{name} holds a code that this version does not know")
        elif (self._name, column) in TEXT_COLUMNS:
            require(int(found.min()) >= ABSENT and int(found.max()) < len(self._texts), path, f"{name} points outside the text table")
        elif (self._name, column) in _EARLIER:  # a row can only refer to one before it: no cycles
            require(bool(np.all(found >= ABSENT) and np.all(found < np.arange(found.size))), path, f"{name} must point to an earlier row")
        elif (self._name, column) in _COUNTS:
            require(int(found.min()) >= 0, path, f"{name} must not be negative")


_CODES = {
    ("calls", "kind"): max(CallKind),
    ("calls", "status"): max(CallStatus),
    ("values", "kind"): max(ValueKind),
    ("values", "storage"): max(Storage),
    ("edges", "role"): max(Role),
}
_EARLIER = {("calls", "parent"), ("values", "base")}
_COUNTS = {
    *(("values", name) for name in ("offset", "nbytes", "nan", "posinf", "neginf")),
    *(("calls", name) for name in ("step", "occurrence", "number")),
    ("edges", "call"),
    ("edges", "value"),
}


class Index:
    """All tables of one file, and what spans them."""

    def __init__(self, file: h5py.File) -> None:
        self._path = file.filename
        self.texts = Texts(file)
        self.calls = Table(file, "calls", self.texts)
        self.values = Table(file, "values", self.texts)
        self.edges = Table(file, "edges", self.texts)

    @cached_property
    def edge_start(self) -> NDArray[np.int64]:
        """Shape (calls + 1,): edges `edge_order[edge_start[c]:edge_start[c + 1]]` belong to call c."""
        calls = self.edges.call
        if calls.size:
            require(int(calls.max()) < len(self.calls), self._path, "edges/call points outside the calls")
            require(int(self.edges.value.max()) < len(self.values), self._path, "edges/value points outside the values")
            require(int(self.edges.position.min()) >= 0, self._path, "edges/position must be present")
        start = np.zeros(len(self.calls) + 1, np.int64)
        np.cumsum(np.bincount(calls, minlength=len(self.calls)), out=start[1:])
        return start

    @cached_property
    def edge_order(self) -> NDArray[np.int64]:
        """Shape (edges,): edge rows grouped by call, in the order of their rows within a call."""
        return np.argsort(self.edges.call, kind="stable").astype(np.int64)
