"""Parameters and buffers of the modules that are called, as values.

A parameter is recorded once per version. Where its contents were replaced without counting a version
(`parameter.data.copy_`), a sum over samples of its bits shows it, taken once a step on the CPU; reading
every weight again would cost as much as a decode step. On other devices, where the sum would have to be
waited for, parameters are taken at their version's word. Buffers are state: they are compared in full at
each call, like activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from layerdiff.record.fingerprint import octets
from layerdiff.record.identity import place_of
from layerdiff.record.keep import Policy
from layerdiff.record.options import Weights as Choice
from layerdiff.record.sink import Value
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.record.values import Values
from layerdiff.trace.schema import ValueKind

NO_BYTES: Final = "weight bytes not recorded: weights=none"
_RUNS: Final = 8
_RUN: Final = 512


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
                if tensor is None:
                    continue
                qualified = f"{path}.{name}" if path else name
                if is_ordinary(tensor):
                    yield name, self._value(tensor, kind, qualified, step)
                    continue
                for part in plain(tensor):
                    yield name + part.suffix, self._values.record_plain(part.tensor, self._policy, kind, qualified + part.suffix, part=part)

    def record_all(self, root: nn.Module, step: object) -> None:
        """The weights of every module of a root, called or not."""
        for path, module in root.named_modules():
            for _ in self.of(module, path, step):
                pass

    def _value(self, tensor: Tensor, kind: ValueKind, name: str, step: object) -> Value:
        values = self._values
        if kind is ValueKind.BUFFER or not self._measures:
            return values.record_plain(tensor, self._policy, kind, name)
        if tensor.device.type != "cpu":
            return values.record_plain(tensor, self._policy, kind, name, trusted=True)
        known = values.known.find(tensor, place_of(tensor))
        if known is not None and isinstance(known.checked, tuple):
            if known.checked[0] == step:
                return known
            sampled = sample(tensor)
            if sampled == known.checked[1]:
                known.checked = (step, sampled)
                return known
        value = values.record_plain(tensor, self._policy, kind, name)
        value.checked = (step, sample(tensor))
        return value


def sample(tensor: Tensor) -> object:
    """A sum over evenly spread runs of the elements of a CPU tensor; over all of a small one."""
    count = tensor.numel()
    if count > _RUNS * _RUN and tensor.is_contiguous():
        tensor = tensor.as_strided((_RUNS, _RUN), (count // _RUNS, 1))
    if tensor.dtype is torch.float32:
        return repr(tensor.sum().item())
    return int(octets(tensor.contiguous()).sum())
