"""Padded positions: what a model computes there means nothing, and two right programs compute different things.

A position is padded where the root's own `attention_mask` says so. Such rows are left out of the measures of meaning, all but their
NaN and Inf: those spread to rows that count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.schema import Role

Array = NDArray[Any]


def padded_positions(run: Recorded, call: int, contents: Callable[[Recorded, int], Array]) -> NDArray[np.bool_] | None:
    """Shape (batch, keys): where the root around `call` was told that there is no token; None where it was told nothing."""
    parents = run.file.calls.parent
    while int(parents[call]) >= 0:
        call = int(parents[call])
    for position, value in run.edges(call, Role.INPUT).items():
        shape = run.file.shape(value)
        if not position.endswith("attention_mask") or len(shape) != 2:
            continue
        try:
            mask = contents(run, value)
        except CannotReplay:
            return None
        padded = np.asarray(mask == 0)
        return padded if padded.any() else None
    return None


def without_padding(reference: Array, target: Array, padded: NDArray[np.bool_] | None) -> Array:
    """The reference, with what both have finite at padded positions made equal to the target. Shapes as they are."""
    dead = None if padded is None else _rows(reference.shape, padded)
    if dead is None:
        return reference
    finite = np.isfinite(reference) & np.isfinite(target) if reference.dtype.kind == "f" else np.ones(reference.shape, bool)
    return np.where(dead & finite, target, reference)


def _rows(shape: tuple[int, ...], padded: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which elements of a value of this shape belong to padded positions; None where its shape does not tell."""
    batch, keys = padded.shape
    axes = [axis for axis in (1, 2) if len(shape) > axis + 1 and shape[0] == batch and 1 < shape[axis] <= keys]
    whole = [axis for axis in axes if shape[axis] == keys]  # heads may be as many as some positions: they are not taken for them
    for axis in whole or (axes if len(shape) == 3 else []):
        here = padded[:, keys - shape[axis] :]
        return np.broadcast_to(here.reshape((batch, *(1,) * (axis - 1), shape[axis], *(1,) * (len(shape) - axis - 1))), shape)
    if len(shape) >= 2 and shape[0] % batch == 0 and 1 < shape[0] // batch <= keys:
        here = padded[:, keys - shape[0] // batch :]
        return np.broadcast_to(here.reshape(shape[0], *(1,) * (len(shape) - 1)), shape)
    return None
