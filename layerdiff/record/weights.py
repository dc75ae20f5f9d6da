"""Parameters and buffers of the modules that are called, as values.

A parameter is recorded once per version (held.py says how a change without one is found on the CPU; on
other devices, where looking would mean to wait, parameters are taken at their version's word). Buffers are
state: they are compared in full at each call, like activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from layerdiff.record.held import HeldWeight
from layerdiff.record.keep import Policy
from layerdiff.record.options import Weights as Choice
from layerdiff.record.quiet import quiet
from layerdiff.record.sink import Value
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.record.values import Values
from layerdiff.trace.schema import ValueKind

NO_BYTES: Final = "weight bytes not recorded, pass --checkpoint"


class _NoBytes(Policy):
    def refuse(self, nbytes: int) -> str | None:
        return NO_BYTES


class Weights:
    """The weights of a recording."""

    def __init__(self, values: Values, choice: Choice, *, measures: bool) -> None:
        self._values = values
        nothing, all_of_it = _NoBytes(bytes_kept=False), Policy()
        self.policies: dict[ValueKind, Policy] = {
            ValueKind.PARAMETER: nothing if choice in ("none", "checkpoint") else all_of_it,
            ValueKind.BUFFER: nothing if choice == "none" else all_of_it,  # many are in no checkpoint
        }
        """What is kept of each kind."""
        self._measures = measures

    def of(self, module: nn.Module, path: str, known: dict[str, HeldWeight], step: object) -> Iterator[tuple[str, Value]]:
        """The weights that `module` itself holds, with their names in it.

        `known` is kept from call to call; `step` is any mark of the step.
        """
        if module._parameters:
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                tensor: Tensor = parameter
                held = known.get(name)
                if held is not None and held.is_unchanged(tensor, step):
                    yield name, held.value
                elif is_ordinary(tensor) and (not self._measures or tensor.device.type == "cpu"):
                    with quiet():
                        value = self._values.record(tensor, self.policies[ValueKind.PARAMETER], ValueKind.PARAMETER, _qualified(path, name))
                    known[name] = HeldWeight(tensor, value, step)
                    yield name, value
                else:
                    yield from self._record(tensor, ValueKind.PARAMETER, path, name)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield from self._record(buffer, ValueKind.BUFFER, path, name)

    def _record(self, tensor: Tensor, kind: ValueKind, path: str, name: str) -> Iterator[tuple[str, Value]]:
        trusted = kind is ValueKind.PARAMETER and tensor.device.type != "cpu"
        record, policy, qualified = self._values.record, self.policies[kind], _qualified(path, name)
        with quiet():  # a part of a distributed tensor is made by an operator
            found = [
                (name + part.suffix, record(part.tensor, policy, kind, qualified + part.suffix, part=part, trusted=trusted))
                for part in plain(tensor)
            ]
        yield from found

    def record_all(self, root: nn.Module, step: object) -> None:
        """The weights of every module of a root, called or not."""
        for path, module in root.named_modules():
            for _ in self.of(module, path, {}, step):
                pass


def _qualified(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class NamedStorages:
    """Where the parameters and buffers of the models lie that ran. A storage keeps its address while it is here, also once it was freed."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, dict[Any, str], ValueKind]] = {}

    def find(self, root: nn.Module) -> None:
        """Add those of a model, as they lie now; forget what was freed."""
        modules = list(root.named_modules())
        parameters = [(path, name, tensor) for path, module in modules for name, tensor in module._parameters.items()]
        buffers = [(path, name, tensor) for path, module in modules for name, tensor in module._buffers.items()]
        known = self._storages
        found: dict[int, tuple[StorageWeakRef, dict[Any, str], ValueKind]] = {}
        for kind, weights in ((ValueKind.PARAMETER, parameters), (ValueKind.BUFFER, buffers)):
            for path, name, tensor in weights:
                if tensor is None or not is_ordinary(tensor):
                    continue
                storage = tensor.untyped_storage()
                address = storage._cdata
                if address not in found:  # one that is known is the same: its reference keeps the address
                    found[address] = known[address][0] if address in known else StorageWeakRef(storage), {}, kind
                found[address][1].setdefault((tensor.storage_offset(), tensor.shape, tensor.stride()), _qualified(path, name))
        self._storages = {address: one for address, one in known.items() if not one[0].expired()} | found

    def arrived(self, module: nn.Module, path: str, tensor: Tensor) -> tuple[ValueKind, str | None] | None:
        """The same of what `module` itself holds by now, where it is loaded for each call anew (offloaded models)."""
        storage = tensor.untyped_storage()
        for kind, weights in ((ValueKind.PARAMETER, module._parameters), (ValueKind.BUFFER, module._buffers)):
            for name, weight in weights.items():
                if weight is None or not is_ordinary(weight) or weight.untyped_storage()._cdata != storage._cdata:
                    continue
                place = (weight.storage_offset(), weight.shape, weight.stride())
                self._storages[storage._cdata] = StorageWeakRef(weight.untyped_storage()), {place: _qualified(path, name)}, kind
                return self.of(tensor)
        return None

    def of(self, tensor: Tensor) -> tuple[ValueKind, str | None] | None:
        """The kind of the weight in whose storage a tensor lies, and its name where it is all of it."""
        found = self._storages.get(tensor.untyped_storage()._cdata)
        if found is None:
            return None
        _, places, kind = found
        return kind, places.get((tensor.storage_offset(), tensor.shape, tensor.stride()))
