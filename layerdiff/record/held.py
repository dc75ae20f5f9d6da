"""`HeldWeight`: a parameter that was recorded, so that the next call finds its value without reading it.

Where its contents were replaced without counting a version (`parameter.data.copy_`), a sum over samples
of it shows that, taken once a step; reading every weight again would cost as much as a decode step.
"""

from __future__ import annotations

from typing import Final
from weakref import ref

import torch
from torch import Tensor

from layerdiff.record.fingerprint import octets
from layerdiff.record.identity import version_of
from layerdiff.record.sink import Value

_SAMPLES: Final = 16


class HeldWeight:
    """A parameter that was recorded, and what would tell that it is another by now."""

    __slots__ = ("address", "sampled", "step", "tensor", "value", "version")

    def __init__(self, tensor: Tensor, value: Value, step: object) -> None:
        self.tensor = ref(tensor)
        self.value = value
        self.version = version_of(tensor)
        self.address = tensor.data_ptr()
        self.sampled = sample(tensor)
        self.step = step

    def is_unchanged(self, tensor: Tensor, step: object) -> bool:
        """Whether `tensor` is this weight with the same contents; looked at once a `step`."""
        if self.tensor() is not tensor or self.version != version_of(tensor) or self.address != tensor.data_ptr():
            return False
        if self.step == step:
            return True
        self.step = step
        return self.sampled == sample(tensor)


def sample(tensor: Tensor) -> object:
    """A sum over elements spread evenly over a CPU tensor, as its repr; over all of a small one."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)
    spread = flat[:: max(1, flat.numel() // _SAMPLES)]
    if spread.dtype is torch.float32:
        return repr(spread.sum().item())
    return int(octets(spread.contiguous()).sum())
