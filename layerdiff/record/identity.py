"""Which tensors were recorded already: the same elements of the same storage at the same version.

A key only *proposes* that a value is an earlier one. Kernels outside torch write without counting
versions, and inference tensors have no versions, so whoever asks must still compare the bits. The
address of a storage stays taken while a weak reference to it lives, so it can't come to mean another.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

T = TypeVar("T")
Place = tuple[Any, ...]
_PRUNE_ABOVE: Final = 4096


def version_of(tensor: Tensor) -> int | None:
    """How often torch wrote to the tensor in place; None for an inference tensor, which does not say."""
    return None if tensor.is_inference() else tensor._version


class Identities(Generic[T]):
    """What was recorded, by storage. Storages that are gone are forgotten."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, dict[Place, T]]] = {}

    def find(self, tensor: Tensor, place: Place) -> T | None:
        """What was remembered for these elements at this version; `place` is the tensor's `place_of`."""
        entry = self._storages.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[1].get(place)

    def remember(self, tensor: Tensor, place: Place, thing: T) -> None:
        """Let `find` return `thing` until the tensor is written to or freed."""
        storage = tensor.untyped_storage()
        entry = self._storages.get(storage._cdata)
        if entry is None:
            if len(self._storages) > _PRUNE_ABOVE:
                self.prune()
            entry = self._storages[storage._cdata] = (StorageWeakRef(storage), {})
        entry[1][place] = thing

    def prune(self) -> None:
        """Forget storages that were freed."""
        self._storages = {address: entry for address, entry in self._storages.items() if not entry[0].expired()}

    def __len__(self) -> int:
        return len(self._storages)


def place_of(tensor: Tensor) -> Place:
    """Which elements of its storage a tensor is, and at which version."""
    return (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), version_of(tensor))
