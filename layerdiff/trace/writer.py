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
from numpy.typing import NDArray

from layerdiff.errors import RecorderError
from layerdiff.trace import journal
from layerdiff.trace.claim import claim, journal_path, part_path
from layerdiff.trace.index_file import write_index
from layerdiff.trace.metadata_file import MetadataFile
from layerdiff.trace.raw_writes import write_all
from layerdiff.trace.schema import (
    ABSENT,
    FORMAT,
    JOURNAL_FORMAT,
    VERSION,
    CallRow,
    CallStatus,
    Known,
    Role,
    Storage,
    ValueRow,
)
from layerdiff.trace.value_bytes import NOWHERE, ValueBytes

BATCH_VALUES: Final = 256
BATCH_BYTES: Final = 1 << 20
BATCH_SECONDS: Final = 0.05
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
        self._bytes = ValueBytes(self._file, self._fd, self._line)
        self._texts: dict[str, int] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._calls = self._values = self._roots = 0
        self._addresses: list[int] = []  # where the bytes of each value are, -1 for none
        self._sizes: list[int] = []
        self._lines: list[str] = []
        self._values_since_flush = 0
        self._batch_begun = 0.0
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
        begun = (row.kind, CallStatus.UNFINISHED, row.root, text(row.module), text(row.type), text(row.operator), row.number)
        self._append(journal.CALL_LINE % (*begun, row.parent, row.step, row.occurrence, ABSENT, text(row.stack), text(row.detail)))
        return call

    def end_call(self, call: int, status: CallStatus, detail: str | None = None) -> None:
        """How a call ended. `detail`, where given, replaces what `begin_call` said."""
        self._append(f'["x",{call},{int(status)},{self._calls},{self._text(detail)}]\n')

    def add_edge(self, call: int, role: Role, position: str, value: int) -> None:
        """That `call` consumed, made or held `value`, and at which position."""
        self._append(journal.EDGE_LINE % (call, role, self._text(position), value))

    def add_value(self, row: ValueRow, data: NDArray[np.uint8] | None) -> int:
        """A value, with its row-major bytes or without. Returns its number: the row in `values`.

        `data` must not change until the next `flush`. Raises OSError where the bytes cannot be
        written (a full disk); the writer can then only be closed.
        """
        place, nbytes = NOWHERE, 0
        if row.view is not None:
            place = NOWHERE._replace(storage=Storage.PATCHED if row.patched else Storage.VIEW)
        elif data is not None:
            nbytes = data.nbytes
            try:
                place = self._bytes.put(row, data)
            except OSError as error:
                raise self._break(error, self.part_path) from None
        value = self._values
        self._values += 1
        self._addresses.append(place.address)
        self._sizes.append(nbytes)
        text, fingerprint = self._text, row.fingerprint
        numbers = _NO_NUMBERS if row.statistics is None else row.statistics
        known = (_STATISTICS if row.statistics is not None else 0) | (_FINGERPRINT if fingerprint is not None else 0)
        self._append(
            journal.VALUE_LINE
            % (
                row.kind,
                text(row.name),
                text(row.dtype),
                text(row.device),
                self._dimensions(row.shape),
                ABSENT if row.strides is None else self._dimensions(row.strides),
                row.base,
                text(row.view),
                row.version,
                place.storage,
                place.container,
                place.offset,
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
        self._values_since_flush += 1
        if self._values_since_flush >= BATCH_VALUES or self._bytes.since_flush >= BATCH_BYTES:
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
        try:
            self._bytes.flush()
        except OSError as error:
            raise self._break(error, self.part_path) from None
        if self._lines:
            try:
                write_all(self._journal, "".join(self._lines).encode())
            except OSError as error:
                raise self._break(error, self._journal_path) from None
        self._lines.clear()
        self._values_since_flush = 0

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

    def _dimensions(self, numbers: tuple[int, ...]) -> int:
        """The text of a shape or of strides."""
        found = self._shapes.get(numbers)
        if found is None:
            found = self._shapes[numbers] = self._text("[" + ",".join(map(str, numbers)) + "]")
        return found

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
            moved = self._bytes.trim()
            if moved is not None:
                write_all(self._journal, journal.line("s", *moved).encode())
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
