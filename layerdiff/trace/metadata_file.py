"""The file through which HDF5 writes its own metadata while a trace is recorded.

HDF5 cannot fail gracefully: when a write of its metadata finds the disk full, closing the file fails,
and the library crashes the process when that exits (seen with HDF5 2.0). So HDF5 writes through this
object, which keeps an error to itself for the writer to raise, and never lets HDF5 see one. The bytes of
values do not pass through here.
"""

from __future__ import annotations

import os
from typing import Any


class MetadataFile:
    """A seekable file over a descriptor, as h5py's `fileobj` driver wants one. Never raises."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0
        self.error: OSError | None = None
        """The first write that failed."""
        self.abandoned = False
        """True in a forked child, which must not touch the parent's file."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read or write."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size()}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The position of the next read or write."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; what lies beyond the end reads as zeros, as HDF5 expects of space that it reserved."""
        view = memoryview(buffer).cast("B")
        try:
            done = 0 if self.abandoned else os.preadv(self._fd, [view], self._position)
        except OSError as error:
            self.error, done = self.error or error, 0
        view[done:] = bytes(len(view) - done)
        self._position += len(view)
        return len(view)

    def read(self, size: int) -> bytes:
        """`size` bytes, as `readinto` has them."""
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def write(self, data: Any) -> int:
        """Write all of `data`, or note why that failed."""
        view = memoryview(data).cast("B")
        length, position = len(view), self._position
        self._position += length
        try:
            while view and not self.abandoned and self.error is None:
                done = os.pwrite(self._fd, view, position)
                view, position = view[done:], position + done
        except OSError as error:
            self.error = error
        return length

    def truncate(self, size: int | None = None) -> int:
        """Set the length of the file."""
        size = self._position if size is None else size
        try:
            if not self.abandoned and self.error is None:
                os.ftruncate(self._fd, size)
        except OSError as error:
            self.error = error
        return size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def _size(self) -> int:
        return 0 if self.abandoned else os.fstat(self._fd).st_size
