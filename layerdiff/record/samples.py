"""A few bytes of a tensor, to notice that its contents were replaced."""

from __future__ import annotations

from ctypes import string_at
from typing import Final

import torch
from torch import Tensor, UntypedStorage

_BYTES: Final = 64


def sample(tensor: Tensor) -> bytes:
    """The bytes at the start, in the middle and at the end of a CPU tensor; nothing where it has no memory of its own.

    Read as memory: the fastest of torch's own ways costs ten times as much, for every tensor in every call.
    """
    address, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    if not address or not nbytes or not tensor.is_contiguous():
        return b""
    return _read(address, nbytes)


def sample_run(storage: UntypedStorage, first: int, nbytes: int) -> bytes:
    """The same of `nbytes` bytes from byte `first` of a storage on any device, waiting for it; nothing where the storage ends before."""
    if not nbytes or storage.nbytes() < first + nbytes:
        return b""
    if storage.device.type == "cpu":
        address = storage.data_ptr()
        return _read(address + first, nbytes) if address else b""
    octets = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, first, (nbytes,), (1,))
    size = min(nbytes, _BYTES)
    middle = (nbytes - size) // 2
    return torch.cat([octets[:size], octets[middle : middle + size], octets[nbytes - size :]]).cpu().numpy().tobytes()


def _read(address: int, nbytes: int) -> bytes:
    if nbytes <= 3 * _BYTES:
        return string_at(address, nbytes)
    return string_at(address, _BYTES) + string_at(address + (nbytes - _BYTES) // 2, _BYTES) + string_at(address + nbytes - _BYTES, _BYTES)
