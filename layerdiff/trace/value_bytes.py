"""`ValueBytes`: where the bytes of values lie in a trace that is being written, and the writing of them.

A large value is a dataset of its own, written at once. Small ones lie one after another in slabs, which grow from 64 KB to 16 MB, and
wait for `flush` to be written together. HDF5 only hands out the places; the bytes go there with pwrite.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5p, h5s
from numpy.typing import NDArray

from layerdiff.trace.dtypes import BYTES, dtype_named
from layerdiff.trace.hdf5_types import hdf5_type
from layerdiff.trace.raw_writes import pwrite_all
from layerdiff.trace.schema import ABSENT, FIRST_SLAB_BYTES, LARGE_VALUE_BYTES, LAST_SLAB_BYTES, Storage, ValueRow

_ALIGNMENT: Final = 16


class Place(NamedTuple):
    """Where the bytes of one value are."""

    storage: Storage
    container: int
    """Number of the dataset or slab."""
    offset: int
    """Byte in the slab."""
    address: int
    """Byte in the file; -1 for none."""


NOWHERE: Final = Place(Storage.NONE, ABSENT, 0, -1)


class ValueBytes:
    """The datasets and slabs of one file. What it raises is OSError, where the disk is full."""

    def __init__(self, file: h5py.File, fd: int, say: Callable[..., None]) -> None:
        """`fd` is of the file that `file` is in; `say` gets the journal's line of each dataset and slab, as it is made."""
        self._fd = fd
        self._say = say
        self._data = file.create_group("data").id
        self._slabs = file.create_group("slabs").id
        self._creation = h5p.create(h5p.DATASET_CREATE)
        self._creation.set_layout(h5d.CONTIGUOUS)
        self._creation.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        self._creation.set_fill_time(h5d.FILL_TIME_NEVER)
        self._creation.set_obj_track_times(False)
        self._datasets = self._slab_count = 0
        self._slab = -1
        self._slab_address = self._slab_size = self._slab_used = 0
        self._slab_written = 0  # bytes of the slab that are in the file
        self._pending: list[NDArray[np.uint8] | bytes] = []
        self.since_flush = 0
        """Bytes that came since the last flush."""

    def put(self, row: ValueRow, data: NDArray[np.uint8]) -> Place:
        """Give the row-major bytes of a value a place. They must not change until the next flush."""
        self.since_flush += data.nbytes
        if data.nbytes >= LARGE_VALUE_BYTES:
            return self._in_dataset(row, data)
        if not data.nbytes:
            return Place(Storage.SLAB, 0, 0, -1)
        return self._in_slab(data)

    def flush(self) -> None:
        """Write what waits."""
        if self._pending:
            pwrite_all(self._fd, self._pending, self._slab_address + self._slab_written)
            self._pending.clear()
        self._slab_written = self._slab_used
        self.since_flush = 0

    def trim(self) -> tuple[int, int, int] | None:
        """Give the last slab the size that is used of it; its number, address and size where it lies elsewhere since.

        HDF5 hands the same space out again, as a rule.
        """
        if self._slab < 0 or self._slab_written == self._slab_size or self._slab_written == 0:
            return None
        used = os.pread(self._fd, self._slab_written, self._slab_address)
        self._slabs.unlink(b"%d" % self._slab)
        dataset = self._create(self._slabs, self._slab, hdf5_type(BYTES), (len(used),))
        address = int(dataset.get_offset())
        if address == self._slab_address:
            return None
        pwrite_all(self._fd, [used], address)
        return self._slab, address, len(used)

    def _in_dataset(self, row: ValueRow, data: NDArray[np.uint8]) -> Place:
        dtype = dtype_named(row.dtype)
        shape: tuple[int, ...]
        if dtype is None or dtype.kind == "complex":
            stored, shape, kind = BYTES.raw, (data.nbytes,), hdf5_type(BYTES)
        else:
            stored, shape, kind = dtype.raw, row.shape, hdf5_type(dtype)
        assert data.nbytes == int(np.prod(shape)) * stored.itemsize
        number = self._datasets
        address = int(self._create(self._data, number, kind, shape).get_offset())
        self._say("d", number, address, data.nbytes)
        self._datasets += 1
        pwrite_all(self._fd, [data.reshape(-1)], address)
        return Place(Storage.DATASET, number, 0, address)

    def _in_slab(self, data: NDArray[np.uint8]) -> Place:
        padding = -self._slab_used % _ALIGNMENT
        if self._slab < 0 or self._slab_used + padding + data.nbytes > self._slab_size:
            self._new_slab()
            padding = 0
        if padding:
            self._pending.append(b"\0" * padding)
        offset = self._slab_used + padding
        self._pending.append(data.reshape(-1))
        self._slab_used = offset + data.nbytes
        return Place(Storage.SLAB, self._slab, offset, self._slab_address + offset)

    def _new_slab(self) -> None:
        since = self.since_flush
        self.flush()
        self.since_flush = since
        self._slab_size = min(LAST_SLAB_BYTES, FIRST_SLAB_BYTES << self._slab_count)
        self._slab = self._slab_count
        self._slab_count += 1
        dataset = self._create(self._slabs, self._slab, hdf5_type(BYTES), (self._slab_size,))
        self._slab_address = int(dataset.get_offset())
        self._slab_used = self._slab_written = 0
        self._say("s", self._slab, self._slab_address, self._slab_size)

    def _create(self, group: Any, number: int, kind: Any, shape: tuple[int, ...]) -> Any:
        return h5d.create(group, b"%d" % number, kind, h5s.create_simple(shape), self._creation)
