"""Which tensors were recorded already: the same elements of the same storage at the same version.

A key only *proposes* that a value is an earlier one. Kernels outside torch write without counting
versions, and inference tensors have no versions, so whoever asks must still compare the bits. The
address of a storage stays taken while a weak reference to it lives, so it can't come to mean another.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from torch import Tensor, UntypedStorage, device
from torch.multiprocessing.reductions import StorageWeakRef

T = TypeVar("T")
Place = tuple[Any, ...]
_PRUNE_ABOVE: Final = 64


def version_of(tensor: Tensor) -> int | None:
    """How often torch wrote to the tensor in place; None for an inference tensor, which does not say."""
    return None if tensor.is_inference() else tensor._version


class Memory(Generic[T]):
    """One storage, for as long as it lives."""

    __slots__ = ("device", "epoch", "number", "places", "runs", "storage", "untouched")

    def __init__(self, storage: StorageWeakRef, number: int, device: str) -> None:
        self.storage = storage
        self.number = number
        """In order of first sight, never reused."""
        self.device = device
        """As text."""
        self.epoch = 0
        """How many writes were seen; counts only while operators are recorded."""
        self.places: dict[Place, T] = {}
        """What was recorded of it."""
        self.runs: list[Any] = []
        """The runs of it that were recorded with their bytes (versions.py), the last one first."""
        self.untouched: bytes | None = None
        """A few of its bytes as it was allocated, until somebody writes to it."""


class Identities(Generic[T]):
    """What was recorded, by storage. Storages that are gone are forgotten."""

    def __init__(self) -> None:
        self.by_address: dict[int, Memory[T]] = {}
        """By the address of the storage, `_cdata`."""
        self._devices: dict[device, str] = {}
        self._count = 0
        self._limit = _PRUNE_ABOVE

    def memory(self, storage: UntypedStorage) -> Memory[T]:
        """What is known of a storage."""
        found = self.by_address.get(storage._cdata)
        if found is None:
            if len(self.by_address) > self._limit:
                self.prune()
                self._limit = max(_PRUNE_ABOVE, 2 * len(self.by_address))
            where = storage.device
            text = self._devices.get(where) or self._devices.setdefault(where, str(where))
            found = self.by_address[storage._cdata] = Memory(StorageWeakRef(storage), self._count, text)
            self._count += 1
        return found

    def prune(self) -> None:
        """Forget storages that were freed."""
        expired = UntypedStorage._expired
        for address in [address for address, memory in self.by_address.items() if expired(memory.storage.cdata)]:
            del self.by_address[address]

    def __len__(self) -> int:
        return len(self.by_address)


def place_of(tensor: Tensor, version: object) -> Place:
    """Which elements of its storage a tensor is, and at which version."""
    return (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), version)
