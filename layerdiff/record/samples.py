"""A few bytes of a tensor, to notice that its contents were replaced."""

from __future__ import annotations

from ctypes import string_at
from typing import Final

from torch import Tensor

_BYTES: Final = 64


def sample(tensor: Tensor) -> bytes:
    """The bytes at the start, in the middle and at the end of a CPU tensor; nothing where it has no memory of its own.

    Read as memory: the fastest of torch's own ways costs ten times as much, for every tensor in every call.
    """
    address, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    if not address or not nbytes or not tensor.is_contiguous():
        return b""
    size = min(nbytes, _BYTES)
    return string_at(address, size) + string_at(address + (nbytes - size) // 2, size) + string_at(address + nbytes - size, size)
