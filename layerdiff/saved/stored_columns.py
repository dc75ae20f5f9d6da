"""The columns of a comparison as a file holds them, read into one piece of memory.

A hundred thousand sites are forty columns of less than a megabyte. Each in memory of its own, they take ten
times as long to read: what costs is that the system hands out the memory, page by page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import h5py
import numpy as np
from h5py import h5d
from numpy.typing import NDArray

from layerdiff.errors import NotATraceError
from layerdiff.trace.check import open_column, read_column

_ALIGNED: Final = 64
"""A column begins at a multiple of this many bytes, since numpy is slow on numbers that lie across others' places."""


def read_columns(file: h5py.File, wanted: Mapping[str, np.dtype[Any]]) -> dict[str, NDArray[Any]]:
    """The columns of a file by their names, each of its type, shape (n,), not to be written to.

    All are opened, and so checked, before any is read. Those that another program has chunked or compressed are read through HDF5.

    Raises UnsafeTraceError or NotATraceError, as `read_column` does.
    """
    opened = {name: open_column(file, name, dtype) for name, dtype in wanted.items()}
    places = {name: _place(dataset) for name, dataset in opened.items()}
    starts, end = {}, 0
    for name, (address, nbytes) in places.items():
        if address is not None:
            starts[name], end = end, end + -(-nbytes // _ALIGNED) * _ALIGNED
    memory = np.empty(end, np.uint8)
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in wanted.items():
        address, nbytes = places[name]
        if address is None:
            columns[name] = read_column(file, name, dtype)
        else:
            part = memory[starts[name] : starts[name] + nbytes]
            _fill(part, file, address, name)
            columns[name] = part.view(dtype)
        columns[name].flags.writeable = False
    return columns


def _place(dataset: h5d.DatasetID) -> tuple[int | None, int]:
    """The address in the file, None where it is not in one run of bytes, and the number of bytes."""
    nbytes = int(dataset.get_space().get_simple_extent_npoints()) * int(dataset.get_type().get_size())
    contiguous = nbytes and dataset.get_create_plist().get_layout() == h5d.CONTIGUOUS
    return (dataset.get_offset() if contiguous else None), nbytes


def _fill(part: NDArray[np.uint8], file: h5py.File, address: int, name: str) -> None:
    view = memoryview(part.data)
    while view:
        try:
            done = os.preadv(file.id.get_vfd_handle(), [view], address)
        except OSError as error:
            raise NotATraceError(f"{file.filename}: {name} cannot be read: {error}") from None
        if not done:
            raise NotATraceError(f"{file.filename} is cut short: {name} goes on after byte {address}.")
        view, address = view[done:], address + done
