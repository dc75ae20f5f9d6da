"""Rows of elementwise calls and of a softmax over the last dimension, and how far each lies from the call in fp32.

A row is what lies at one index of the last dimension but one, of all operands that have it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Array
from layerdiff.arithmetic.formats import FLOAT32, Format
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.rows import UNIT, Rows, blocks, distance, farthest, narrow
from layerdiff.trace.arguments import Arguments

_WORTH: Final = 64
"""Multiplications that looking at an element in float64 costs as much as."""
_UNITS: Final = {"mul": 2.0, "add": 2.0, "sub": 2.0, "div": 2.0, "silu": 4.0, "gelu": 8.0, "_softmax": 16.0, "softmax": 16.0}
"""Roundings in fp32 that count as one sigma of each."""


def pointwise_rows(name: str, arguments: Arguments) -> Rows | None:
    """The rows of the call `aten.<name>`; None where it is none of those known here. Raises ValueError for shapes that do not fit."""
    units, contract = _UNITS.get(name), contract_of(f"aten.{name}.default")
    arrays = [thing for thing in arguments.args if isinstance(thing, np.ndarray)]
    if units is None or contract is None or contract.exact is None or not arrays:
        return None
    if any(x.dtype.kind != "f" for x in arrays) or any(isinstance(thing, np.ndarray) for thing in arguments.kwargs.values()):
        return None
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    if len(shape) < 2 or ("softmax" in name and (len(arguments.args) < 2 or arguments.args[1] not in (-1, len(shape) - 1))):
        return None
    exact, count = contract.exact, shape[-2]

    def some(rows: Any, kind: Any) -> Arguments:
        def of(thing: Any) -> Any:
            if not isinstance(thing, np.ndarray):
                return thing
            return np.asarray(thing[..., rows, :] if thing.ndim > 1 and thing.shape[-2] > 1 else thing, kind)

        return Arguments(tuple(of(thing) for thing in arguments.args), arguments.kwargs)

    def take(rows: NDArray[np.intp]) -> Arguments:
        return some(rows, np.float64)

    def distances(recorded: tuple[Array, ...], format: Format) -> NDArray[np.float64]:
        found = np.zeros(count)
        for part in blocks(count, math.prod(shape) // max(count, 1)):
            made = narrow(exact(some(part, np.float32))[0])
            off = distance(recorded[0][..., part, :], made, format)
            sigma = np.abs(made)
            sigma *= np.float32(units * UNIT)
            sigma += np.float32(FLOAT32.smallest_normal)
            far = farthest(off, sigma)
            found[part] = far.reshape(-1, far.shape[-1]).max(0, initial=0.0)
        return found

    return Rows(f"aten.{name}.default", count, math.prod(shape) * _WORTH, take, (shape,), (len(shape) - 2,), distances)
