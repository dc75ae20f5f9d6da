"""A few bytes of a tensor, to notice that its contents were replaced."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, UntypedStorage

from layerdiff.record.host_memory import read
from layerdiff.record.quiet import quiet

_BYTES: Final = 64


def sample(tensor: Tensor) -> bytes:
    """The bytes at the start, in the middle and at the end of a CPU tensor; nothing where it has no memory of its own.

    Read as memory: the fastest of torch's own ways costs ten times as much, for every tensor in every call.
    """
    address, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    if not address or not nbytes or not tensor.is_contiguous():
        return b""
    return _read(address, nbytes)


def sample_run(storage: UntypedStorage, on_host: bool, first: int, nbytes: int) -> bytes:
    """The same of `nbytes` bytes from byte `first` of a storage on any device, waiting for it; nothing where the storage ends before."""
    if not nbytes or storage.nbytes() < first + nbytes:
        return b""
    if on_host:
        address = storage.data_ptr()
        return _read(address + first, nbytes) if address else b""
    with quiet():
        octets = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, first, (nbytes,), (1,))
        size = min(nbytes, _BYTES)
        middle = (nbytes - size) // 2
        return torch.cat([octets[:size], octets[middle : middle + size], octets[nbytes - size :]]).cpu().numpy().tobytes()


def _read(address: int, nbytes: int) -> bytes:
    if nbytes <= 3 * _BYTES:
        return read(address, nbytes)
    middle = address + (nbytes - _BYTES) // 2
    return read(address, _BYTES) + read(middle, _BYTES) + read(address + nbytes - _BYTES, _BYTES)
