"""Where bytes lie in a file: a container's address, checked once, then pread in blocks.

A file repacked by another tool may hold chunked or compressed datasets; those are read whole, through
HDF5, and one of them is kept.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import h5py
import numpy as np
from h5py import h5d, h5s
from numpy.typing import NDArray

from layerdiff.errors import NotATraceError
from layerdiff.trace.check import open_dataset, require
from layerdiff.trace.schema import Storage

_OPEN_CONTAINERS: Final = 4096


@dataclass(frozen=True)
class Place:
    """`nbytes` bytes of one value."""

    places: Places
    container: _Container
    offset: int
    nbytes: int

    def blocks(self, block_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """Runs of `block_bytes` bytes (the last may be shorter); each overwrites the one before."""
        buffer = np.empty(min(block_bytes, self.nbytes), np.uint8)
        for start in range(0, self.nbytes, block_bytes):
            piece = buffer[: min(block_bytes, self.nbytes - start)]
            self.places.fill(piece, self.container, self.offset + start)
            yield piece

    def read(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """A run of `nbytes` bytes from byte `start` of the value, which must lie inside it; a new array."""
        piece = np.empty(max(nbytes, 0), np.uint8)
        self.fill(piece, start)
        return piece

    def fill(self, out: NDArray[np.uint8], start: int) -> None:
        """Read the bytes from byte `start` of the value on into `out`, which must end inside it."""
        if start < 0 or start + out.nbytes > self.nbytes:
            raise ValueError(f"bytes {start} to {start + out.nbytes} are not all inside a value of {self.nbytes} bytes")
        self.places.fill(out, self.container, self.offset + start)


@dataclass(frozen=True)
class _Container:
    name: str
    address: int | None
    """None for a chunked dataset."""
    nbytes: int
    dataset: h5d.DatasetID


class Places:
    """The containers of one file."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self._file, self._path = file, path
        self._fd = os.open(path, os.O_RDONLY)
        self._containers: OrderedDict[tuple[int, int], _Container] = OrderedDict()
        self._whole: tuple[str, NDArray[np.uint8]] | None = None

    def close(self) -> None:
        """Close the file descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def find(self, storage: int, number: int, offset: int, nbytes: int) -> Place:
        """The place of a value, which must lie inside its container."""
        container = self._container(storage, number)
        fits = offset + nbytes <= container.nbytes if storage == Storage.SLAB else nbytes == container.nbytes
        require(fits, self._path, f"a value of {nbytes} bytes at {offset} does not fit {container.name} of {container.nbytes}")
        return Place(self, container, offset if storage == Storage.SLAB else 0, nbytes)

    def _container(self, storage: int, number: int) -> _Container:
        key = storage, number
        found = self._containers.get(key)
        if found is None:
            name = f"{'slabs' if storage == Storage.SLAB else 'data'}/{number}"
            dataset = open_dataset(self._file, name)
            contiguous = dataset.get_create_plist().get_layout() == h5d.CONTIGUOUS
            count = int(dataset.get_space().get_simple_extent_npoints())
            address = dataset.get_offset() if contiguous else None
            require(not contiguous or address is not None, self._path, f"{name} was never written")
            found = self._containers[key] = _Container(name, address, count * dataset.get_type().get_size(), dataset)
            if len(self._containers) > _OPEN_CONTAINERS:
                self._containers.popitem(last=False)
        return found

    def fill(self, out: NDArray[np.uint8], container: _Container, offset: int) -> None:
        """Read `out.nbytes` bytes of a container, from `offset` on."""
        if container.address is None:
            self._fill_from_hdf5(out, container, offset)
            return
        view = memoryview(out.data)
        position = container.address + offset
        while view:
            done = os.preadv(self._fd, [view], position)
            if done == 0:
                raise NotATraceError(f"{self._path} is cut short: it ends before byte {position + len(view)}.")
            view, position = view[done:], position + done

    def _fill_from_hdf5(self, out: NDArray[np.uint8], container: _Container, offset: int) -> None:
        if self._whole is None or self._whole[0] != container.name:
            whole = np.empty(container.nbytes, np.uint8)
            try:
                container.dataset.read(h5s.ALL, h5s.ALL, whole, container.dataset.get_type())
            except (OSError, RuntimeError) as error:
                raise NotATraceError(f"{self._path}: {container.name} cannot be read: {error}") from None
            self._whole = container.name, whole
        out[:] = self._whole[1][offset : offset + out.size]
