"""`HeldWeight`: a parameter that was recorded, so that the next call finds its value without reading it.

Where its contents were replaced without counting a version (`parameter.data.copy_`), samples of it show
that, taken once a step; reading every weight again would cost as much as a decode step.
"""

from __future__ import annotations

from weakref import ref

from torch import Tensor

from layerdiff.record.identity import version_of
from layerdiff.record.samples import sample
from layerdiff.record.sink import Value


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
