"""Values whose bytes are those of other values: views, and versions of which only the written part was stored.

A row refers to earlier rows only, so following `base` ends; it is followed in a loop, never by recursion, since a cache that was
written a thousand times is a chain of a thousand rows. A written part is never such a version itself, nor a view of one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.check import require
from layerdiff.trace.schema import ABSENT, Storage

if TYPE_CHECKING:
    from layerdiff.trace.reader import TraceFile

Bytes = NDArray[np.uint8]
_LARGEST_RATIO: Final = 1100
"""A view may repeat elements; one that claims more than this times the bytes of the file is made to exhaust memory."""
_CACHE_BYTES: Final = 64 << 20


class Derived:
    """Makes the bytes of derived values of one file. The last versions made are kept, since the next one is made from them."""

    def __init__(self, file: TraceFile, file_bytes: int, stored: Callable[[int], Bytes]) -> None:
        """`stored` reads the bytes of a value that has its own, into a new array."""
        self._file = file
        self._most_bytes = max(1 << 20, _LARGEST_RATIO * file_bytes)
        self._stored = stored
        self._made: OrderedDict[int, Bytes] = OrderedDict()
        self._made_bytes = 0

    def bytes_of(self, value: int) -> Bytes:
        """The row-major bytes of any value that has them; may be read only.

        Raises TraceError where the index and the file do not fit together.
        """
        file = self._file
        rows: list[int] = []
        row = value
        made: Bytes | None
        while True:
            made = self._made.get(row)
            if made is not None:
                break
            storage = int(file.values.storage[row])
            if storage not in (Storage.VIEW, Storage.PATCHED):
                made = self._stored(row)
                break
            rows.append(row)
            row = int(file.values.base[row])
            require(row != ABSENT, file.path, f"value {rows[-1]} is a view or a version of nothing")
        for row in reversed(rows):
            assert made is not None
            is_view = int(file.values.storage[row]) == Storage.VIEW
            made = self._view(row, made) if is_view else self._patched(row, made)
        assert made is not None
        if rows and int(file.values.storage[value]) == Storage.PATCHED:
            self._keep(value, made)
        return made

    def elements_of(self, value: int) -> NDArray[Any]:
        """The elements of a value in its shape, read only where they are a view's: those of its base, strides and all, uncopied.

        Raises TraceError as `bytes_of` does.
        """
        file = self._file
        if int(file.values.storage[value]) != Storage.VIEW:
            return self.bytes_of(value).view(self._raw(value)).reshape(file.shape(value))
        base = int(file.values.base[value])
        require(base != ABSENT, file.path, f"value {value} is a view of nothing")
        elements = self._seen(value, self.bytes_of(base))
        elements.flags.writeable = False
        return elements

    def seen(self, value: int, base: Bytes, place: dict[str, Any]) -> NDArray[Any]:
        """The elements of `value` where `offset` and `strides` say, in the bytes of another, uncopied. Raises TraceError outside them."""
        return self._region(value, base, self._raw(value), self._file.shape(value), place)

    def _view(self, value: int, base: Bytes) -> Bytes:
        flat: Bytes = np.ascontiguousarray(self._seen(value, base)).reshape(-1).view(np.uint8)
        return flat

    def _seen(self, value: int, base: Bytes) -> NDArray[Any]:
        file, shape = self._file, self._file.shape(value)
        described = file.json(int(file.values.view[value]))
        require(isinstance(described, dict), file.path, f"value {value} is a view without a place")
        dtype = self._raw(value)
        nbytes = file.count(value) * dtype.itemsize
        require(nbytes <= self._most_bytes, file.path, f"value {value} is a view that claims {nbytes} bytes")
        return self._region(value, base, dtype, shape, described)

    def _patched(self, value: int, base: Bytes) -> Bytes:
        file = self._file
        patches = file.json(int(file.values.view[value]))
        size = file.count(value) * self._raw(value).itemsize
        require(isinstance(patches, list), file.path, f"value {value} does not say what was written")
        require(base.size == size, file.path, f"value {value} has {size} bytes, and the version before it {base.size}")
        whole = base.copy()
        for patch in patches:
            require(isinstance(patch, dict), file.path, f"value {value} has a written part without a place")
            self._write(value, whole, patch)
        whole.flags.writeable = False
        made: Bytes = whole
        return made

    def _write(self, value: int, whole: Bytes, patch: dict[str, Any]) -> None:
        file = self._file
        part = self._part(value, patch.get("value"))
        dtype, shape = self._raw(part), list(file.shape(part))
        written = self.bytes_of(part).view(dtype).reshape(shape)
        if "dim" not in patch:
            self._region(value, whole, dtype, shape, patch)[...] = written
            return
        dim: Any = patch["dim"]
        size: Any = patch.get("size")
        ok = type(dim) is int and 0 <= dim < len(shape) and type(size) is int and 0 <= size < 1 << 62
        require(ok, file.path, f"value {value} has a written part without a dimension")
        index = self._index(value, patch.get("index"), size)
        require(index.size == shape[dim], file.path, f"value {value} has {shape[dim]} written slices at {index.size} places")
        shape[dim] = size
        region = self._region(value, whole, dtype, shape, patch)
        if region.size:
            region[(slice(None),) * dim + (index,)] = written

    def _part(self, value: int, part: Any) -> int:
        """The row of a written part: stored, or a view of something stored."""
        file = self._file
        require(type(part) is int and 0 <= part < value, file.path, f"value {value} must be made of earlier values")
        row: int = part
        while int(file.values.storage[row]) == Storage.VIEW:
            row = int(file.values.base[row])
            require(row != ABSENT, file.path, f"value {part} is a view of nothing")
        stored = int(file.values.storage[row]) in (Storage.DATASET, Storage.SLAB)
        require(stored, file.path, f"value {value} is made of a value without bytes of its own")
        found: int = part
        return found

    def _index(self, value: int, index: Any, size: int) -> NDArray[np.int64]:
        part = self._part(value, index)
        dtype = self._file.dtype(part)
        require(dtype is not None and dtype.kind == "integer", self._file.path, f"value {value} has places that are no integers")
        places = self.bytes_of(part).view(self._raw(part)).astype(np.int64)
        inside = bool(np.all((places >= -size) & (places < size)))
        require(inside, self._file.path, f"value {value} was written outside its {size} slices")
        return places

    def _region(self, value: int, flat: Bytes, dtype: np.dtype[Any], shape: Any, described: dict[str, Any]) -> NDArray[Any]:
        """The elements of `flat` that `offset` and `strides` name, as a view of it."""
        file = self._file
        offset: Any = described.get("offset")
        strides: Any = described.get("strides")
        ok = type(offset) is int and 0 <= offset < 1 << 62 and isinstance(strides, list) and len(strides) == len(shape)
        ok = ok and all(type(s) is int and 0 <= s < 1 << 62 for s in strides or [])
        require(ok, file.path, f"value {value} is a view without a place")
        if 0 in shape:
            return np.empty(shape, dtype)
        count = flat.size // dtype.itemsize
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        require(last < count, file.path, f"value {value} reaches outside the value that it is made from")
        elements = flat[: count * dtype.itemsize].view(dtype)
        byte_strides = [s * dtype.itemsize if n > 1 else 0 for n, s in zip(shape, strides, strict=True)]
        return np.lib.stride_tricks.as_strided(elements[offset:], shape, byte_strides)

    def _raw(self, value: int) -> np.dtype[Any]:
        dtype = self._file.dtype(value)
        require(dtype is not None, self._file.path, f"value {value} has the dtype {self._file.dtype_name(value)!r}, which is not known")
        assert dtype is not None
        return dtype.raw

    def _keep(self, value: int, made: Bytes) -> None:
        if value in self._made or made.size > _CACHE_BYTES:
            return
        self._made[value] = made
        self._made_bytes += made.size
        while self._made_bytes > _CACHE_BYTES:
            self._made_bytes -= self._made.popitem(last=False)[1].size
