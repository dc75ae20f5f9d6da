"""`open_trace`: a trace as tables and values. Nothing is loaded that is not asked for, and nothing is executed.

Bytes are read with pread at the offset of their dataset, in blocks, never through HDF5's conversion;
datasets are opened one at a time when a value of theirs is read, since opening each costs 70
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import EmptyTraceError, NotATraceError, TraceError, TraceVersionError, UnfinishedTraceError
from layerdiff.trace.check import format_name, open_file, read_column, require
from layerdiff.trace.claim import is_locked, journal_path, part_path
from layerdiff.trace.columns import Index, Table
from layerdiff.trace.derived import Derived
from layerdiff.trace.dtypes import Dtype, dtype_named
from layerdiff.trace.elsewhere import Elsewhere, WeightSource
from layerdiff.trace.places import Place, Places
from layerdiff.trace.schema import FORMAT, VERSION, Known, Role, Statistics, Storage

_WITH_BYTES = (Storage.DATASET, Storage.SLAB, Storage.VIEW, Storage.PATCHED)
_STORED = (Storage.DATASET, Storage.SLAB)


class Edge(NamedTuple):
    """A value at a position of a call."""

    role: int
    position: str
    value: int


class TraceFile:
    """The trace of one process. Open it with `open_trace`.

    Raises TraceError, of the kind that fits, where the file cannot be used.
    """

    def __init__(self, path: Path, weights: WeightSource | None = None) -> None:
        """`weights`: who has the bytes of weights that the trace has none of."""
        self.path = path
        self._main_root: int | None = None
        self._file = open_file(path)
        self._check_version()
        self.meta: dict[str, Any] = self._read_meta()
        self.complete = bool(self._file.attrs.get("complete", 0))
        self._index = Index(self._file)
        self._places = Places(self._file, path)
        self._derived = Derived(self, path.stat().st_size, self._stored_bytes)
        self._elsewhere = None if weights is None else Elsewhere(self, weights, self._derived)
        self._shapes: dict[int, tuple[int, ...]] = {}

    def _check_version(self) -> None:
        attributes = self._file.attrs
        try:
            name = format_name(self._file)
            version = [int(number) for number in np.atleast_1d(attributes.get("version", [0, 0]))]
        except (OSError, TypeError, ValueError) as error:
            raise NotATraceError(f"{self.path} is not a trace: its format cannot be read ({error}).") from None
        if name != FORMAT:
            said = f" It says {name!r}." if isinstance(name, str) else ""
            raise NotATraceError(f"{self.path} is an HDF5 file, and not a trace.{said} `layerdiff record -o NAME.h5 -- SCRIPT` makes one.")
        if version[:1] != [VERSION[0]]:
            raise TraceVersionError(
                f"{self.path} was written in version {'.'.join(map(str, version))} of the format; "
                f"this layerdiff reads version {VERSION[0]}. Install the layerdiff that wrote it, or record again."
            )

    def _read_meta(self) -> dict[str, Any]:
        raw = read_column(self._file, "meta/json", np.dtype("u1")).tobytes()
        try:
            meta = json.loads(raw)
        except (ValueError, RecursionError):
            meta = None
        if not isinstance(meta, dict):
            raise NotATraceError(f"{self.path}: its description (meta/json) is not JSON; the file is damaged.")
        return meta

    def close(self) -> None:
        """Close the file. Columns that were read stay."""
        self._places.close()
        self._file.close()

    @property
    def rank(self) -> int | None:
        """The process's rank, None for a single process."""
        rank = self.meta.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def calls(self) -> Table:
        """Columns of `schema.CALLS`."""
        return self._index.calls

    @property
    def values(self) -> Table:
        """Columns of `schema.VALUES`."""
        return self._index.values

    @property
    def edges(self) -> Table:
        """Columns of `schema.EDGES`."""
        return self._index.edges

    @property
    def text_count(self) -> int:
        """How many texts there are."""
        return len(self._index.texts)

    def text(self, index: int) -> str | None:
        """A text by the number that a column holds; None for -1."""
        return None if index < 0 else self._index.texts[index]

    def json(self, index: int) -> Any:
        """A text that is JSON, parsed; None where it is absent or is no JSON."""
        text = self.text(index)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def site(self, call: int) -> str:
        """The site of a call: module path and operator. With several roots, led by the root's name."""
        path = self.text(int(self.calls.module[call])) or ""
        root = int(self.calls.root[call])
        names = self.root_names
        if len(names) > 1 and 0 <= root < len(names) and root != self._main_root:
            path = f"{names[root]}.{path}" if path else names[root]
        operator = self.text(int(self.calls.operator[call]))
        return path if operator is None else f"{path}/{operator}#{int(self.calls.number[call])}"

    @property
    def edge_start(self) -> NDArray[np.int64]:
        """Shape (calls + 1,): the edges `edge_order[edge_start[c]:edge_start[c + 1]]` belong to call c."""
        return self._index.edge_start

    @property
    def edge_order(self) -> NDArray[np.int64]:
        """Shape (edges,): rows of the edges, grouped by call."""
        return self._index.edge_order

    @property
    def root_names(self) -> Sequence[str]:
        """Names of the roots in order of first call: the attribute that holds each, else `model`, `model_1`, ..."""
        roots = self.meta.get("roots")
        names: list[str] = []
        for i, root in enumerate(roots if isinstance(roots, list) else []):
            name = root.get("name") if isinstance(root, dict) else None
            fallback = "model" if i == 0 else f"model_{i}"
            names.append(name if isinstance(name, str) and name and name not in names else fallback)
        return names

    def weight_name(self, value: int) -> str | None:
        """The name of a parameter or buffer; with several roots, led by the name of one that reads it, as sites are. None for none."""
        name, names = self.text(int(self.values.name[value])), self.root_names
        if name is None or len(names) < 2:
            return name
        root = self._roots_of_weights.get(value, -1)
        return f"{names[root]}.{name}" if 0 <= root < len(names) and root != self._main_root else name

    @cached_property
    def _roots_of_weights(self) -> dict[int, int]:
        """By weight a root that reads it: the main one, if that does."""
        edges = self.edges
        rows = np.flatnonzero(np.asarray(edges.role) == Role.WEIGHT)
        both = zip(np.asarray(edges.value)[rows].tolist(), np.asarray(self.calls.root)[np.asarray(edges.call)[rows]].tolist(), strict=True)
        found: dict[int, int] = {}
        for value, root in both:
            if root == self._main_root or value not in found:
                found[value] = root
        return found

    def with_main_root(self, root: int) -> TraceFile:
        """The file with the sites of one of its roots called as if that were the only one."""
        file = copy(self)
        file._main_root = root
        file.__dict__.pop("_roots_of_weights", None)
        return file

    def edges_of(self, call: int) -> Iterator[Edge]:
        """The values of a call: inputs, outputs and weights, as recorded."""
        index, edges = self._index, self.edges
        chosen = index.edge_order[index.edge_start[call] : index.edge_start[call + 1]]
        columns = (column[chosen].tolist() for column in (edges.role, edges.position, edges.value))
        for role, position, value in zip(*columns, strict=True):
            yield Edge(role, index.texts[position], value)

    # values

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value."""
        text = int(self.values.shape[value])
        found = self._shapes.get(text)
        if found is None:
            parsed = self.json(text)
            fine = isinstance(parsed, list) and len(parsed) <= 64 and all(type(n) is int and 0 <= n < 1 << 62 for n in parsed)
            require(fine, self.path, f"value {value} has the shape {self.text(text)!r}")
            found = self._shapes[text] = tuple(parsed)
        return found

    def count(self, value: int) -> int:
        """Number of elements of a value."""
        count = 1
        for size in self.shape(value):
            count *= size
        return count

    def dtype_name(self, value: int) -> str:
        """torch's name of the value's dtype."""
        return self.text(int(self.values.dtype[value])) or "unknown"

    def memory_dtype(self, value: int) -> str:
        """Torch's name of the dtype that a value's memory was read as: places in it are counted in elements of that."""
        return self.dtype_name(value)

    def dtype(self, value: int) -> Dtype | None:
        """The dtype of a value; None for one that this version does not know."""
        return dtype_named(self.dtype_name(value))

    def statistics(self, value: int) -> Statistics | None:
        """The recorded statistics, over finite elements."""
        columns = self.values
        if not int(columns.known[value]) & Known.STATISTICS:
            return None
        minimum, maximum, mean, rms = (float(c[value]) for c in (columns.minimum, columns.maximum, columns.mean, columns.rms))
        nan, posinf, neginf = (int(c[value]) for c in (columns.nan, columns.posinf, columns.neginf))
        return Statistics(minimum, maximum, mean, rms, nan, posinf, neginf)

    def fingerprint(self, value: int) -> tuple[int, int] | None:
        """The 128-bit fingerprint of the bits, as (high, low)."""
        columns = self.values
        if not int(columns.known[value]) & Known.FINGERPRINT:
            return None
        return int(columns.fingerprint_high[value]), int(columns.fingerprint_low[value])

    def has_bytes(self, value: int) -> bool:
        """Whether the value's bits were kept, here or in a checkpoint."""
        if int(self.values.storage[value]) in _WITH_BYTES:
            return True
        return self._elsewhere is not None and self._elsewhere.has(value)

    def stored(self, value: int) -> StoredValue | None:
        """The bits of a value, to be read in blocks; None where none were kept.

        Raises TraceError where the index and the file do not fit together.
        """
        dtype = self.dtype(value)
        if dtype is None or not self.has_bytes(value):
            return None
        return StoredValue(self, value, dtype, self.count(value), self._place(value, dtype))

    def _place(self, value: int, dtype: Dtype) -> Place | None:
        columns = self.values
        storage = int(columns.storage[value])
        nbytes = self.count(value) * dtype.itemsize
        if storage not in _STORED:
            return None
        require(
            int(columns.nbytes[value]) == nbytes, self.path, f"value {value} has {int(columns.nbytes[value])} bytes, its shape {nbytes}"
        )
        if nbytes == 0:
            return None
        return self._places.find(storage, int(columns.container[value]), int(columns.offset[value]), nbytes)

    def raw(self, value: int) -> NDArray[Any]:
        """The bits of a value: an array of its shape, of `dtype.raw`, perhaps read only. Loads all of it."""
        if self.stored(value) is None:
            raise self._without_bytes(value)
        dtype = self.dtype(value)
        assert dtype is not None
        return self._derived.bytes_of(value).view(dtype.raw).reshape(self.shape(value))

    def _stored_bytes(self, value: int) -> NDArray[np.uint8]:
        stored = self.stored(value)
        if stored is None:
            raise self._without_bytes(value)
        if self._elsewhere is not None and int(self.values.storage[value]) not in _STORED:
            return self._elsewhere.bytes_of(value)
        return np.empty(0, np.uint8) if stored.place is None else stored.place.read(0, stored.place.nbytes)

    def why_without_bytes(self, value: int) -> str:
        """Why nothing can be read of a value that has no bytes."""
        return self.text(int(self.values.reason[value])) or "by the keep policy"

    def _without_bytes(self, value: int) -> TraceError:
        reason = self.why_without_bytes(value)
        return TraceError(f"{self.path}: no bytes were kept of value {value}: {reason}. Record again with --keep full.")

    def read(self, value: int) -> NDArray[Any]:
        """A value as numbers: native types as they are, narrower floats as float32. Loads all of it. A view has the strides it had."""
        dtype = self.dtype(value)
        if self.stored(value) is None or dtype is None:
            raise self._without_bytes(value)
        return dtype.decode(self._derived.elements_of(value))


@dataclass(frozen=True)
class StoredValue:
    """The bits of one value; fits `measure.blocks.Blocks`."""

    file: TraceFile
    value: int
    dtype: Dtype
    count: int
    place: Place | None

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        """Row-major runs of `count` elements, as arrays of `dtype.raw`; each overwrites the one before."""
        if self.place is None:
            if self.count:
                flat = self.file.raw(self.value).reshape(-1)
                for start in range(0, flat.size, count):
                    yield flat[start : start + count]
            return
        for piece in self.place.blocks(count * self.dtype.itemsize):
            yield piece.view(self.dtype.raw)


@dataclass(frozen=True)
class Trace:
    """One run: a file a process, ordered by rank, children after their parent."""

    path: Path
    files: tuple[TraceFile, ...]

    @property
    def complete(self) -> bool:
        """Whether every process closed its file in order."""
        return all(file.complete for file in self.files)

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()


def open_trace(path: str | Path, *, allow_empty: bool = False, weights: WeightSource | None = None) -> Trace:
    """Open a trace: a file, or a folder with the files of many processes. `weights`: of a checkpoint, where the trace has none.

    Raises:
        NotATraceError, TraceVersionError, UnsafeTraceError: it cannot be read; says why.
        UnfinishedTraceError: it is still being written, or its writer died; names the next command.
        EmptyTraceError: it holds no calls (unless `allow_empty`); says why.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.h5"))
        if not files:
            hint = next(iter(sorted(path.glob("*.h5.part"))), None)
            if hint is not None:
                _refuse_unfinished(hint.with_suffix(""), hint)
            raise NotATraceError(f"{path} is a folder without traces: it holds no *.h5 file.")
    else:
        part = path if path.suffix == ".part" else part_path(path)
        if path.suffix == ".part" or (not path.exists() and part.exists()):
            _refuse_unfinished(part.with_suffix(""), part)
        if not path.exists():
            raise NotATraceError(f"{path} does not exist. `layerdiff record -o {path.name} -- SCRIPT` makes it.")
        files = [path]
    try:
        opened = [TraceFile(file, weights) for file in files]
        opened.sort(key=lambda file: (-1 if file.rank is None else file.rank, file.path.name))
        trace = Trace(path, tuple(opened))
        if not allow_empty and not any(len(file.calls) for file in opened):
            raise EmptyTraceError(_why_empty(trace))
    except PermissionError as error:
        raise NotATraceError(f"{error.filename} cannot be read: {error.strerror}.") from None
    return trace


def _refuse_unfinished(path: Path, part: Path) -> None:
    if is_locked(journal_path(path)):
        raise UnfinishedTraceError(f"{path} is still being written (as {part.name}). Wait until its run ends.")
    raise UnfinishedTraceError(f"{path} was never finished: its writer died. `layerdiff recover {part}` brings back what was recorded.")


def _why_empty(trace: Trace) -> str:
    reasons = [str(file.meta["empty_reason"]) for file in trace.files if file.meta.get("empty_reason")]
    why = reasons[0] if reasons else "no forward of a module ran while it was recorded."
    return f"{trace.path} is a trace without calls: {why}"


__all__ = ["Edge", "StoredValue", "Trace", "TraceFile", "WeightSource", "open_trace"]
