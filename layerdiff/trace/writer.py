"""`TraceWriter`: one trace file, written so that a killed process loses a batch at most.

Bytes go to the file with pwrite, at offsets that HDF5 gave; then their rows go to the journal
beside it, in one write a batch. The index inside the file is made from the journal when the trace is
closed. HDF5 is never flushed while recording: a flush is no guarantee against a kill (measured), the
journal is. `NAME.h5` appears only when everything is in it, by renaming `NAME.h5.part`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from h5py import h5d, h5p, h5s
from numpy.typing import NDArray

from layerdiff.errors import RecorderError
from layerdiff.trace import journal
from layerdiff.trace.claim import claim, journal_path, part_path
from layerdiff.trace.dtypes import BYTES, dtype_named
from layerdiff.trace.hdf5_types import hdf5_type
from layerdiff.trace.index_file import write_index
from layerdiff.trace.metadata_file import MetadataFile
from layerdiff.trace.raw_writes import pwrite_all, write_all
from layerdiff.trace.schema import (
    ABSENT,
    FIRST_SLAB_BYTES,
    FORMAT,
    JOURNAL_FORMAT,
    LARGE_VALUE_BYTES,
    LAST_SLAB_BYTES,
    VERSION,
    CallRow,
    CallStatus,
    Known,
    Role,
    Storage,
    ValueRow,
)

BATCH_VALUES: Final = 256
BATCH_BYTES: Final = 1 << 20
BATCH_SECONDS: Final = 0.05
_ALIGNMENT: Final = 16
_STATISTICS: Final = int(Known.STATISTICS)
_FINGERPRINT: Final = int(Known.FINGERPRINT)
_NO_NUMBERS: Final = (*[float("nan")] * 4, 0, 0, 0)


class TraceWriter:
    """Writes one trace. Made in any thread, then owned by one.

    Raises:
        RecorderError: the folder is missing or not writable, another process records to the same
            path, or an unfinished recording lies there.
    """

    def __init__(self, path: Path, *, meta: Mapping[str, Any]) -> None:
        self.path = path
        self.part_path = part_path(path)
        self._journal_path = journal_path(path)
        self._journal = claim(path, self.part_path, self._journal_path)
        try:
            self._fd = os.open(self.part_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            self._metadata = MetadataFile(self._fd)
            self._file = h5py.File(self._metadata, "w")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._journal_path.unlink()
            raise RecorderError(f"Cannot record to {path}: {error.strerror or error}. Choose another path with -o.") from None
        self._file.attrs["format"] = np.bytes_(FORMAT)  # of fixed length: readers follow no other
        self._file.attrs["version"] = np.array(VERSION, "<i4")
        self._file.attrs["complete"] = np.uint8(0)
        self._data = self._file.create_group("data").id
        self._slabs = self._file.create_group("slabs").id
        self._creation = h5p.create(h5p.DATASET_CREATE)
        self._creation.set_layout(h5d.CONTIGUOUS)
        self._creation.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        self._creation.set_fill_time(h5d.FILL_TIME_NEVER)
        self._creation.set_obj_track_times(False)
        self._texts: dict[str, int] = {}
        self._calls = self._values = self._roots = self._datasets = self._slab_count = 0
        self._addresses: list[int] = []  # where the bytes of each value are, -1 for none
        self._sizes: list[int] = []
        self._lines: list[str] = []
        self._pending: list[NDArray[np.uint8] | bytes] = []
        self._pending_bytes = self._pending_values = 0
        self._batch_begun = 0.0
        self._slab = -1
        self._slab_address = self._slab_size = self._slab_used = 0
        self._slab_written = 0  # bytes of the slab that are in the file
        self._broken: OSError | None = None
        self._closed = False
        self._line("h", JOURNAL_FORMAT, *VERSION, os.getpid(), time.time())
        for key, value in meta.items():
            self.set_meta(key, value)
        self.flush()

    # rows

    def set_meta(self, key: str, value: Any) -> None:
        """Describe the run; a later value of the same key replaces an earlier one."""
        self._line("m", key, json.loads(json.dumps(value, default=str), parse_constant=str))

    def add_root(self, name: str | None, type: str) -> int:
        """A root module; `name` is that of the attribute that holds it, where known."""
        self._line("r", name, type)
        self._roots += 1
        return self._roots - 1

    def begin_call(self, row: CallRow) -> int:
        """A call that begins. Returns its number: the row in the table `calls`."""
        call = self._calls
        self._calls += 1
        text = self._text
        self._append(
            journal.call_line(
                [
                    int(row.kind),
                    int(CallStatus.UNFINISHED),
                    row.root,
                    text(row.module),
                    text(row.type),
                    text(row.operator),
                    row.number,
                    row.parent,
                    row.step,
                    row.occurrence,
                    ABSENT,
                    text(row.stack),
                    text(row.detail),
                ]
            )
        )
        return call

    def end_call(self, call: int, status: CallStatus, detail: str | None = None) -> None:
        """How a call ended. `detail`, where given, replaces what `begin_call` said."""
        self._append(f'["x",{call},{int(status)},{self._calls},{self._text(detail)}]\n')

    def add_edge(self, call: int, role: Role, position: str, value: int) -> None:
        """That `call` consumed, made or held `value`, and at which position."""
        self._append(journal.edge_line([call, int(role), self._text(position), value]))

    def add_value(self, row: ValueRow, data: NDArray[np.uint8] | None) -> int:
        """A value, with its row-major bytes or without. Returns its number: the row in `values`.

        `data` must not change until the next `flush`. Raises OSError where the bytes cannot be
        written (a full disk); the writer can then only be closed.
        """
        storage, container, offset, nbytes, address = Storage.NONE, ABSENT, 0, 0, -1
        if row.view is not None:
            storage = Storage.PATCHED if row.patched else Storage.VIEW
        elif data is not None:
            nbytes = data.nbytes
            if nbytes >= LARGE_VALUE_BYTES:
                storage, container, address = Storage.DATASET, self._datasets, self._write_dataset(row, data)
            else:
                storage = Storage.SLAB
                container, offset, address = self._write_slab(data)
        value = self._values
        self._values += 1
        self._addresses.append(address)
        self._sizes.append(nbytes)
        text, fingerprint = self._text, row.fingerprint
        numbers = _NO_NUMBERS if row.statistics is None else row.statistics
        known = (_STATISTICS if row.statistics is not None else 0) | (_FINGERPRINT if fingerprint is not None else 0)
        self._append(
            journal.value_line(
                (
                    row.kind,
                    text(row.name),
                    text(row.dtype),
                    text(row.device),
                    text(_dimensions(row.shape)),
                    ABSENT if row.strides is None else text(_dimensions(row.strides)),
                    row.base,
                    text(row.view),
                    row.version,
                    storage,
                    container,
                    offset,
                    nbytes,
                    text(row.reason),
                    known,
                    *map(journal.number, numbers[:4]),
                    *numbers[4:],
                    *((0, 0) if fingerprint is None else fingerprint),
                    text(row.placement),
                    text(row.detail),
                    row.memory,
                    row.memory_offset,
                )
            )
        )
        self._pending_values += 1
        if self._pending_values >= BATCH_VALUES or self._pending_bytes >= BATCH_BYTES:
            self.flush()
        return value

    def stored_equal(self, value: int, data: NDArray[np.uint8]) -> bool:
        """Whether the bytes kept for an earlier value equal `data`; False where none were kept."""
        if self._addresses[value] < 0 or self._sizes[value] != data.nbytes:
            return False
        self.flush()
        address, flat = self._addresses[value], data.reshape(-1)
        for start in range(0, flat.size, BATCH_BYTES):
            piece = flat[start : start + BATCH_BYTES]
            if os.pread(self._fd, piece.size, address + start) != piece.tobytes():
                return False
        return True

    # batches

    def end_step(self) -> None:
        """The end of a forward of a root: what was recorded is made safe."""
        self.flush()

    def flush_if_due(self) -> None:
        """Flush what has waited for 50 ms."""
        if self._lines and time.monotonic() - self._batch_begun >= BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the batch: bytes first, then its rows in one write to the journal.

        Raises OSError where the disk is full; nothing that is journaled is lost by it.
        """
        if self._broken is not None:
            raise self._broken
        self._write_pending()
        if self._lines:
            try:
                write_all(self._journal, "".join(self._lines).encode())
            except OSError as error:
                raise self._break(error, self._journal_path) from None
        self._lines.clear()
        self._pending_values = self._pending_bytes = 0

    def _write_pending(self) -> None:
        if self._pending:
            self._pwrite(self._pending, self._slab_address + self._slab_written)
            self._pending.clear()
        self._slab_written = self._slab_used

    def _pwrite(self, parts: list[NDArray[np.uint8] | bytes], address: int) -> None:
        try:
            pwrite_all(self._fd, parts, address)
        except OSError as error:
            raise self._break(error, self.part_path) from None

    def _break(self, error: OSError, path: Path) -> OSError:
        """Remember the first error: after it nothing more is written, so that the journal stays true."""
        if self._broken is None:
            self._broken = OSError(error.errno, error.strerror, str(path))
        return self._broken

    def _append(self, line: str) -> None:
        if not self._lines:
            self._batch_begun = time.monotonic()
        self._lines.append(line)

    def _line(self, *row: Any) -> None:
        self._append(journal.line(*row))

    def _text(self, text: str | None) -> int:
        if text is None:
            return ABSENT
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = len(self._texts)
            self._line("t", text)
        return found

    # places

    def _write_dataset(self, row: ValueRow, data: NDArray[np.uint8]) -> int:
        dtype = dtype_named(row.dtype)
        shape: tuple[int, ...]
        if dtype is None or dtype.kind == "complex":
            stored, shape, kind = BYTES.raw, (data.nbytes,), hdf5_type(BYTES)
        else:
            stored, shape, kind = dtype.raw, row.shape, hdf5_type(dtype)
        assert data.nbytes == int(np.prod(shape)) * stored.itemsize
        dataset = self._create(self._data, self._datasets, kind, shape)
        address = int(dataset.get_offset())
        self._line("d", self._datasets, address, data.nbytes)
        self._datasets += 1
        self._pending_bytes += data.nbytes
        self._pwrite([data.reshape(-1)], address)
        return address

    def _write_slab(self, data: NDArray[np.uint8]) -> tuple[int, int, int]:
        nbytes = data.nbytes
        if nbytes == 0:
            return 0, 0, -1
        padding = -self._slab_used % _ALIGNMENT
        if self._slab < 0 or self._slab_used + padding + nbytes > self._slab_size:
            self._new_slab()
            padding = 0
        if padding:
            self._pending.append(b"\0" * padding)
        offset = self._slab_used + padding
        self._pending.append(data.reshape(-1))
        self._slab_used = offset + nbytes
        self._pending_bytes += nbytes
        return self._slab, offset, self._slab_address + offset

    def _new_slab(self) -> None:
        self._write_pending()
        self._slab_size = min(LAST_SLAB_BYTES, FIRST_SLAB_BYTES << self._slab_count)
        self._slab = self._slab_count
        self._slab_count += 1
        dataset = self._create(self._slabs, self._slab, hdf5_type(BYTES), (self._slab_size,))
        self._slab_address = int(dataset.get_offset())
        self._slab_used = self._slab_written = 0
        self._line("s", self._slab, self._slab_address, self._slab_size)

    # the end

    def close(self, *, reason: str | None = None) -> Path:
        """Write the index and give the trace its name. `reason` says why it is incomplete.

        Raises OSError where even the index does not fit; `NAME.h5.part` and its journal are then
        left for `layerdiff recover`.
        """
        if self._closed:
            return self.path
        self._closed = True
        try:
            if reason is not None:
                self.set_meta("incomplete", reason)
            with contextlib.suppress(OSError):
                self.flush()
            index = journal.build_index(self._journal_path)
            found = {name: len(next(iter(columns.values()))) for name, columns in index.columns.items()}
            if self._broken is None and (found["calls"], found["values"]) != (self._calls, self._values):
                raise ValueError(f"the journal holds {found}, not {self._calls} calls and {self._values} values")
            index.meta["roots"] = index.roots
            if reason is not None:
                index.meta["incomplete"] = reason
            self._trim_slab()
            write_index(self._file, index, complete=reason is None)
            self._file.close()
            if self._metadata.error is not None:
                raise self._metadata.error
            os.replace(self.part_path, self.path)
            self._journal_path.unlink()
        except (OSError, RuntimeError, ValueError) as error:
            with contextlib.suppress(Exception):
                self._file.close()
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            raise OSError(
                number,
                f"The index of {self.path} could not be written ({error}). What was recorded is in {self.part_path}: "
                f"make room, then `layerdiff recover {self.part_path}`",
            ) from error
        finally:
            os.close(self._fd)
            os.close(self._journal)
        return self.path

    def _trim_slab(self) -> None:
        """Give the last slab the size that is used of it. HDF5 hands the same space out again, as a rule."""
        if self._slab < 0 or self._slab_written == self._slab_size or self._slab_written == 0:
            return
        used = os.pread(self._fd, self._slab_written, self._slab_address)
        self._slabs.unlink(b"%d" % self._slab)
        dataset = self._create(self._slabs, self._slab, hdf5_type(BYTES), (len(used),))
        address = int(dataset.get_offset())
        if address != self._slab_address:
            pwrite_all(self._fd, [used], address)
            write_all(self._journal, journal.line("s", self._slab, address, len(used)).encode())

    def _create(self, group: Any, number: int, kind: Any, shape: tuple[int, ...]) -> Any:
        return h5d.create(group, b"%d" % number, kind, h5s.create_simple(shape), self._creation)

    def discard(self) -> None:
        """Remove what was written, as if the recording had never begun."""
        if self._closed:
            return
        self._closed = True
        self._metadata.abandoned = True
        with contextlib.suppress(Exception):
            self._file.close()
        for path in (self.part_path, self._journal_path):
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(self._fd)
        os.close(self._journal)

    def abandon_after_fork(self) -> None:
        """In a forked child: forget the parent's files without touching them."""
        self._closed = True
        self._metadata.abandoned = True
        with contextlib.suppress(Exception):  # or HDF5 closes it after the interpreter is gone, and calls into it
            self._file.close()
        for fd in (self._fd, self._journal):
            with contextlib.suppress(OSError):
                os.close(fd)


def _dimensions(numbers: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"
