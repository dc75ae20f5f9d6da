"""`Reading`: recorded values as arrays, from a bounded cache.

Where one run kept no bytes of a value (no weights, statistics only), those of a value of the other run with the same
fingerprint and dtype are the same bits, and are read in their place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.replay.program import contents
from layerdiff.replay.recorded import Recorded

Array = NDArray[Any]
CACHE_BYTES: Final = 1 << 28
"""What a call makes is read by the next ones: four times as much is no faster, and all of it is memory that has to be mapped."""
_Bits = tuple[tuple[int, int], str, tuple[int, ...]]
"""Fingerprint, dtype and shape."""


class Reading:
    """The values of two runs, or of all processes of them."""

    def __init__(self, runs: Iterable[Recorded]) -> None:
        self._runs = tuple(runs)
        self._cache: OrderedDict[tuple[int, int], Array] = OrderedDict()
        self._cached = 0

    def __call__(self, run: Recorded, value: int) -> Array:
        """A recorded value: float64, complex128, or whole numbers and booleans as they are; read only. Raises CannotReplay."""
        key = (id(run), value)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        found = np.asarray(contents(*self._with_bytes(run, value)))
        found.flags.writeable = False
        self._cache[key] = found
        self._cached += found.nbytes
        while self._cached > CACHE_BYTES and len(self._cache) > 1:
            _, old = self._cache.popitem(last=False)
            self._cached -= old.nbytes
        return found

    def _with_bytes(self, run: Recorded, value: int) -> tuple[Recorded, int]:
        if not run.file.has_bytes(value) and (bits := _bits(run, value)) is not None:
            for other, known in zip(self._runs, self._known, strict=True):
                if bits in known:
                    return other, known[bits]
        return run, value

    @cached_property
    def _known(self) -> list[dict[_Bits, int]]:
        """The values of each run that have bytes and a fingerprint."""

        def known(run: Recorded) -> dict[_Bits, int]:
            values = (value for value in range(len(run.file.values)) if run.file.has_bytes(value))
            return {bits: value for value in values if (bits := _bits(run, value)) is not None}

        return [known(run) for run in self._runs]


def _bits(run: Recorded, value: int) -> _Bits | None:
    print_ = run.file.fingerprint(value)
    return None if print_ is None else (print_, run.file.dtype_name(value), run.file.shape(value))
