"""Opening a stranger's HDF5 file: what is refused, and why nothing in it is ever followed or run.

Every dataset goes through `open_dataset`: hard links only, no external or virtual storage, only
filters that HDF5 itself brings, only fixed-width numbers, no size that the file cannot hold. Nothing
else in the package opens a dataset, so that there is one place to read for safety.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5s, h5t, h5z
from numpy.typing import NDArray

from layerdiff.errors import NotATraceError, UnsafeTraceError

_BUILT_IN_FILTERS: Final = frozenset(
    {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32, h5z.FILTER_SCALEOFFSET, h5z.FILTER_NBIT}
)
_LARGEST_RATIO: Final = 1100
"""DEFLATE cannot expand a byte to more than about 1032: a larger dataset is a bomb."""


def open_file(path: Path, *, what: str = "trace") -> h5py.File:
    """Open an HDF5 file for reading, without locking it.

    Raises:
        NotATraceError: the file is not HDF5, or it is cut short.
        FileNotFoundError, PermissionError, IsADirectoryError: as the system says.
    """
    with path.open("rb"):
        pass
    if not h5f.is_hdf5(os.fsencode(path)):
        raise NotATraceError(f"{path} is not a {what}: it is no HDF5 file. `layerdiff record -o NAME.h5 -- SCRIPT` makes a trace.")
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        cause = str(error)
        if "truncated" in cause or "eof" in cause.lower():
            raise NotATraceError(
                f"{path} is cut short: it was copied or written in part. Copy it again, or record again. ({cause})"
            ) from None
        raise NotATraceError(f"{path} is not a readable {what}: HDF5 says: {cause}") from None
    except RuntimeError as error:  # a damaged heap or B-tree surfaces so
        raise NotATraceError(f"{path} is damaged: HDF5 says: {error}") from None


def format_name(file: h5py.File) -> str | None:
    """The text attribute `format` of the root, None where it is absent or no text of fixed length.

    HDF5 never returns from some damage to the heap where texts of variable length lie, so those are not read.
    """
    if not h5a.exists(file.id, b"format"):
        return None
    kind = h5a.open(file.id, b"format").get_type()
    if not isinstance(kind, h5t.TypeStringID) or kind.is_variable_str():
        return None
    value = file.attrs["format"]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def open_dataset(file: h5py.File, name: str) -> h5d.DatasetID:
    """The dataset `name` (`/table/column`), after every check.

    Raises:
        UnsafeTraceError: it uses something that a reader must not follow; says what.
        NotATraceError: it is missing or damaged.
    """
    path = file.filename
    place = file.id
    parts = [part.encode() for part in name.strip("/").split("/")]
    try:
        group: Any = h5g.open(place, b"/")
        for i, part in enumerate(parts):
            if not group.links.exists(part):
                raise NotATraceError(f"{path}: {name} is missing: the file is no trace, or it is damaged.")
            if group.links.get_info(part).type != h5l.TYPE_HARD:
                raise UnsafeTraceError(f"{path}: {name} is a soft or external link; a trace holds its own data only. Refused.")
            if i + 1 < len(parts):
                group = h5g.open(group, part)
        opened = h5o.open(group, parts[-1])
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise NotATraceError(f"{path}: {name} is damaged: HDF5 says: {error}") from None
    if not isinstance(opened, h5d.DatasetID):
        raise NotATraceError(f"{path}: {name} is not a dataset.")
    _check(opened, name, path)
    return opened


def _check(dataset: h5d.DatasetID, name: str, path: str) -> None:
    creation = dataset.get_create_plist()
    layout = creation.get_layout()
    if layout == h5d.VIRTUAL:
        raise UnsafeTraceError(f"{path}: {name} is a virtual dataset, which reads other files. Refused.")
    if creation.get_external_count():
        raise UnsafeTraceError(f"{path}: {name} keeps its bytes in another file (external storage). Refused.")
    for i in range(creation.get_nfilters()):
        number, _flags, _values, filter_name = creation.get_filter(i)
        if number not in _BUILT_IN_FILTERS:
            raise UnsafeTraceError(
                f"{path}: {name} is compressed with filter {number} ({filter_name.decode(errors='replace')}), "
                f"which loads a plugin. Refused; `h5repack -f NONE` removes it."
            )
    kind = dataset.get_type()
    if kind.get_class() not in (h5t.INTEGER, h5t.FLOAT):
        raise UnsafeTraceError(f"{path}: {name} holds a type that no trace has (only plain numbers are allowed). Refused.")
    space = dataset.get_space()
    if space.get_simple_extent_type() not in (h5s.SIMPLE, h5s.SCALAR):
        raise UnsafeTraceError(f"{path}: {name} has no extent.")
    logical = int(space.get_simple_extent_npoints()) * kind.get_size()
    file_bytes = os.path.getsize(path)
    if layout == h5d.CHUNKED:
        if logical > _LARGEST_RATIO * file_bytes:
            raise UnsafeTraceError(f"{path}: {name} claims {logical} bytes, more than the file can hold. Refused.")
    elif logical > file_bytes:
        raise UnsafeTraceError(f"{path}: {name} claims {logical} bytes, and the whole file has {file_bytes}. Refused.")
    elif layout == h5d.CONTIGUOUS and logical:
        offset = dataset.get_offset()
        if offset is not None and offset + logical > file_bytes:
            raise NotATraceError(f"{path} is cut short: {name} ends at byte {offset + logical}, and the file has {file_bytes}.")


def open_column(file: h5py.File, name: str, dtype: np.dtype[Any]) -> h5d.DatasetID:
    """A one-dimensional dataset of exactly `dtype`, nothing of it read.

    Raises UnsafeTraceError where its type or rank is another, and whatever `open_dataset` raises.
    """
    dataset = open_dataset(file, name)
    if dataset.get_type().get_size() != dtype.itemsize or len(dataset.shape) != 1:
        raise UnsafeTraceError(
            f"{file.filename}: {name} must be one-dimensional {dtype}; it is {len(dataset.shape)}-dimensional of other width."
        )
    try:
        found = dataset.dtype
    except (TypeError, ValueError) as error:  # a float of no machine
        raise NotATraceError(f"{file.filename}: {name} is damaged: its type cannot be read ({error}).") from None
    if found != dtype:
        raise UnsafeTraceError(f"{file.filename}: {name} must be {dtype}; it is {found}.")
    return dataset


def read_column(file: h5py.File, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The column that `open_column` opens, as an array. Raises NotATraceError where it cannot be read."""
    dataset = open_column(file, name, dtype)
    column = np.empty(dataset.shape, dtype)
    if column.size:
        try:
            dataset.read(h5s.ALL, h5s.ALL, column)
        except (OSError, RuntimeError) as error:
            raise NotATraceError(f"{file.filename}: {name} cannot be read: {error}") from None
    return column


def require(condition: bool, path: Path | str, what: str) -> None:
    """Raise UnsafeTraceError unless an index is as it must be; `what` says which rule."""
    if not condition:
        raise UnsafeTraceError(f"{path}: the index is wrong: {what}. The file is damaged or was not written by a recorder; record again.")
