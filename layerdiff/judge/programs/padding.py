"""Padded positions: what a model computes there means nothing, and two right programs compute different things.

A position is padded where the root's own `attention_mask` says so. Such rows are left out of the measures of meaning, all but their
NaN and Inf: those spread to rows that count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.pairs.padded_rows import mask_given
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.enclosing import root_of

Array = NDArray[Any]


def padded_positions(run: Recorded, call: int, contents: Callable[[Recorded, int], Array]) -> NDArray[np.bool_] | None:
    """Shape (batch, keys): where the root around `call` was told that there is no token; None where it was told nothing."""
    value = mask_given(run.file, root_of(run.file.calls.parent, call))
    if value is None:
        return None
    try:
        padded = np.asarray(contents(run, value) == 0)
    except CannotReplay:
        return None
    return padded if padded.any() else None


def without_padding(reference: Array, target: Array, padded: NDArray[np.bool_] | None) -> Array:
    """The reference, with what both have finite at padded positions made equal to the target. Shapes as they are.

    `padded` may be of shape (tokens,) too: then it says of each token, batch and positions as one, whether it counts.
    """
    dead = None if padded is None else dead_elements(reference.shape, padded)
    return reference if dead is None else where_finite(reference, target, dead)


def dead_elements(shape: tuple[int, ...], padded: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which elements of a value of this shape belong to what does not count; None where its shape does not tell. `padded`: as above."""
    return _tokens(shape, padded) if padded.ndim == 1 else _rows(shape, padded)


def where_finite(reference: Array, target: Array, dead: NDArray[np.bool_]) -> Array:
    """The reference, with dead elements that both have finite made equal to the target's."""
    finite = np.isfinite(reference) & np.isfinite(target) if reference.dtype.kind == "f" else np.ones(reference.shape, bool)
    return np.where(dead & finite, target, reference)


def dead_tokens(apart: NDArray[np.bool_], padded: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Shape (tokens,): tokens that were routed otherwise in the two runs, and those that are padding."""
    if padded is None or padded.ndim != 2 or apart.size % len(padded) or apart.size // len(padded) > padded.shape[1]:
        return apart
    found: NDArray[np.bool_] = apart | padded[:, padded.shape[1] - apart.size // len(padded) :].reshape(-1)
    return found


def _tokens(shape: tuple[int, ...], dead: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which elements of a value of this shape belong to dead tokens; None where neither its leading dimensions are the tokens nor the last
    positions behind heads, as a cache has them.
    """
    for leading in (1, 2):
        if len(shape) > leading and math.prod(shape[:leading]) == dead.size:
            return np.broadcast_to(dead.reshape(*shape[:leading], *(1,) * (len(shape) - leading)), shape)
    if len(shape) == 4 and shape[0] and dead.size % shape[0] == 0 and dead.size // shape[0] <= shape[2]:
        given = dead.reshape(shape[0], -1)
        before = np.zeros((shape[0], shape[2] - given.shape[1]), np.bool_)
        return np.broadcast_to(np.concatenate([before, given], axis=1)[:, None, :, None], shape)
    return None


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
