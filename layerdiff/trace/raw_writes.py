"""Writes that go on until all is written."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def write_all(fd: int, data: bytes) -> None:
    """Write `data` at the position of `fd`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def pwrite_all(fd: int, parts: Sequence[NDArray[np.uint8] | bytes], address: int) -> None:
    """Write `parts` one after another from `address` on, however many calls it takes."""
    views = [memoryview(part if isinstance(part, bytes) else part.data).cast("B") for part in parts if len(part)]
    while views:
        done = os.pwritev(fd, views[:1024], address)
        address += done
        while views and done >= views[0].nbytes:
            done -= views[0].nbytes
            views.pop(0)
        if done:
            views[0] = views[0][done:]
