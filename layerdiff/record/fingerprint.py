"""Fingerprints on any torch device; the formula and the CPU's implementation are in trace/fingerprint.py.

A device computes the same integers as numpy does, so equal bits have equal fingerprints wherever
they lie. Nothing waits for the device.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from layerdiff.trace.fingerprint import BLOCK_SEEDS, BLOCK_WORDS, fingerprint, splitmix64, word_weights

_CHUNK_BLOCKS: Final = 256
_weights: dict[str, tuple[Tensor, Tensor]] = {}


def octets(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, as uint8 of one dimension, without a copy."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # of one element, or none
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


class _Borrowed:
    """Memory for numpy to look at. `Tensor.numpy()` would do, if it did not forbid the model to resize its tensor ever after."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def fingerprint_on_host(tensor: Tensor) -> tuple[int, int]:
    """The fingerprint (high, low) of a contiguous CPU tensor."""
    return fingerprint(np.asarray(_Borrowed(tensor.data_ptr(), tensor.numel() * tensor.element_size())))


def fingerprint_on_device(tensor: Tensor) -> Tensor:
    """The fingerprint of a contiguous tensor: int64 of shape (2,), high and low, on its device.

    Raises RuntimeError where the device has no int64 arithmetic.
    """
    flat = octets(tensor)
    missing = -flat.numel() % 4
    words = (torch.cat([flat, flat.new_zeros(missing)]) if missing else _aligned(flat)).view(torch.int32)
    weights = _word_weights(tensor.device)
    total = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    whole = words.numel() // BLOCK_WORDS
    blocks = words[: whole * BLOCK_WORDS].view(whole, BLOCK_WORDS)
    for first in range(0, whole, _CHUNK_BLOCKS):
        wide = blocks[first : first + _CHUNK_BLOCKS].long()
        total += _weighted(wide, weights, first, len(wide))
    tail = words[whole * BLOCK_WORDS :]
    if tail.numel():
        total += _weighted(tail.long().view(1, -1), tuple(w[: tail.numel()] for w in weights), whole, 1)
    return total


def pair_of(numbers: list[int]) -> tuple[int, int]:
    """(high, low) from the two int64 that a device computed."""
    mask = (1 << 64) - 1
    return numbers[0] & mask, numbers[1] & mask


def as_hex(pair: tuple[int, int]) -> str:
    """A fingerprint as 32 hex digits, high half first."""
    return f"{pair[0]:016x}{pair[1]:016x}"


def roundings(tensor: Tensor) -> dict[str, str]:
    """Fingerprints of a float32 CPU tensor rounded to bfloat16 and float16, as hex.

    A run in a narrower type holds exactly these bits when it was given the same weights.
    """
    return {name: as_hex(fingerprint_on_host(tensor.to(getattr(torch, name)).contiguous())) for name in ("bfloat16", "float16")}


def _weighted(wide: Tensor, weights: tuple[Tensor, ...], first: int, count: int) -> Tensor:
    halves = []
    for half, weight in enumerate(weights):
        scale = (splitmix64(BLOCK_SEEDS[half], first, count) | np.uint64(1)).view(np.int64)
        halves.append(((wide * weight).sum(1) * torch.from_numpy(scale).to(wide.device, non_blocking=True)).sum())
    return torch.stack(halves)


def _word_weights(device: torch.device) -> tuple[Tensor, Tensor]:
    found = _weights.get(str(device))
    if found is None:
        found = (torch.from_numpy(word_weights(0)).to(device), torch.from_numpy(word_weights(1)).to(device))
        _weights[str(device)] = found
    return found


def _aligned(flat: Tensor) -> Tensor:
    return flat if flat.storage_offset() % 4 == 0 else flat.clone()
