"""`Altered`: a trace file some of whose values read otherwise: with another filling, in another order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.derived import Derived
from layerdiff.trace.dtypes import Dtype
from layerdiff.trace.places import Place
from layerdiff.trace.reader import TraceFile

Array = NDArray[Any]


class Altered(TraceFile):
    """A trace file as another reads it. The fingerprints of what reads otherwise, or is seen of such, are no longer known."""

    def __init__(self, file: TraceFile) -> None:
        self.__dict__.update(file.__dict__)
        self._base = file
        self._derived = Derived(self, self.path.stat().st_size, self._stored_bytes)

    @abstractmethod
    def _change(self, value: int) -> Callable[[Array], Array] | None:
        """What makes the bits of a value other ones, of the same shape; None for those that stay."""

    @abstractmethod
    def _is_seen_of(self, value: int) -> bool:
        """Whether a value that stays is a part of one that does not."""

    def fingerprint(self, value: int) -> tuple[int, int] | None:
        """None of what reads otherwise."""
        return None if self._change(value) is not None or self._is_seen_of(value) else self._base.fingerprint(value)

    def raw(self, value: int) -> Array:
        """The bits of a value."""
        change = self._change(value)
        if change is not None:
            return change(self._base.raw(value))
        return super().raw(value) if self._is_seen_of(value) else self._base.raw(value)

    def read(self, value: int) -> Array:
        """A value as numbers."""
        dtype = self.dtype(value)
        if self._change(value) is not None and dtype is not None:
            return dtype.decode(self.raw(value))
        return super().read(value) if self._is_seen_of(value) else self._base.read(value)

    def _place(self, value: int, dtype: Dtype) -> Place | None:
        return None if self._change(value) is not None else self._base._place(value, dtype)

    def _stored_bytes(self, value: int) -> NDArray[np.uint8]:
        return self._base._stored_bytes(value) if self._change(value) is None else self.raw(value).reshape(-1).view(np.uint8)
