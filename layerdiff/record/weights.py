"""Parameters and buffers of the modules that are called, as values.

Each is recorded once per version. A write that counts no version (`parameter.data.copy_`, a kernel of
its own) is found by a sum of the bits, taken once a step on the CPU; on other devices, where the sum
would have to be waited for, parameters are taken at their version's word, and buffers never are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from layerdiff.record.fingerprint import octets
from layerdiff.record.keep import Policy
from layerdiff.record.options import Weights as Choice
from layerdiff.record.sink import Value
from layerdiff.record.tensors import plain
from layerdiff.record.values import Values
from layerdiff.trace.schema import ValueKind

NO_BYTES = "weight bytes not recorded: weights=none"


class _NoBytes(Policy):
    def refuse(self, nbytes: int) -> str | None:
        return NO_BYTES


class Weights:
    """The weights of a recording."""

    def __init__(self, values: Values, choice: Choice, *, measures: bool) -> None:
        self._values = values
        self._policy: Policy = _NoBytes(bytes_kept=False) if choice == "none" else Policy()
        self._measures = measures

    def of(self, module: nn.Module, path: str, step: object) -> Iterator[tuple[str, Value]]:
        """The weights that `module` itself holds, with their names in it. `step` is any mark of the step."""
        for kind, held in ((ValueKind.PARAMETER, module._parameters), (ValueKind.BUFFER, module._buffers)):
            for name, tensor in held.items():
                if tensor is not None:
                    qualified = f"{path}.{name}" if path else name
                    for part in plain(tensor):
                        yield name + part.suffix, self._value(part, kind, qualified + part.suffix, step)

    def _value(self, part: Any, kind: ValueKind, name: str, step: object) -> Value:
        values = self._values
        if not self._measures or part.reason is not None:
            return values.record_plain(part, self._policy, kind, name)
        tensor = part.tensor
        on_host = tensor.device.type == "cpu"
        known = values.known.find(tensor)
        checked: tuple[object, int] | None = None
        if on_host:
            if known is not None and isinstance(known.checked, tuple):
                if known.checked[0] == step:
                    return known
                checked = (step, bit_sum(tensor))
                if checked[1] == known.checked[1]:
                    known.checked = checked
                    return known
            checked = checked or (step, bit_sum(tensor))
        value = values.record_plain(part, self._policy, kind, name, trusted=not on_host and kind is ValueKind.PARAMETER)
        value.checked = checked
        return value


def bit_sum(tensor: Tensor) -> int:
    """The sum of the bits of a CPU tensor, as integers: one pass over memory."""
    flat = octets(tensor.detach().contiguous())
    whole = flat.numel() // 8 * 8
    if flat.storage_offset() % 8 == 0 and whole:
        return int(flat[:whole].view(torch.int64).sum()) ^ int(flat[whole:].sum())
    return int(flat.sum())
