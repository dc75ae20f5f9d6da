"""Choices (top-k, argmax, comparisons, casts to whole numbers): what a call decides, what follows of it, and how far apart two are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.jumps import to_jump
from layerdiff.replay.discrete import is_discrete
from layerdiff.replay.recorded import Operation
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
_CASTS: Final = ("aten._to_copy.default",)


@dataclass
class Decision:
    """A discrete call of a program whose exact result is not what the target decided."""

    operation: Operation
    own: dict[str, Array]
    margin: Array
    """How far from the border each element, or row, of the deciding operand is; 0 where both decide alike."""
    scale: Array
    """The size of the operand there."""
    differs: Array
    """Where the two decide otherwise; of the form of `margin`, or of one that it is spread to."""

    @property
    def places(self) -> list[str]:
        """Positions of the results that were decided, as against values that were found there."""
        return decided(self.own)


def decided(results: Mapping[str, Array]) -> list[str]:
    """Positions of whole numbers and truth values, of others where there are no such."""
    return [position for position, made in results.items() if made.dtype.kind in "iub"] or list(results)


def as_many(recorded: Mapping[str, Array], results: Mapping[str, Array]) -> dict[str, Array]:
    """Recorded decisions, of a sort the first ones, as many as there are results."""
    found = dict(recorded)
    for position, made in results.items():
        one = found.get(position)
        if one is not None and one.ndim == made.ndim > 0:
            found[position] = one[..., : made.shape[-1]]
    return found


def decides(operation: Operation, args: Arguments, results: Mapping[str, Array]) -> bool:
    """Whether a float operand decides a discrete result of this call."""
    floats = any(_is_float(thing) for thing in [*args.args, *args.kwargs.values()])
    if not floats or args.kwargs.get("decimals"):  # to tenths: what is recorded is rounded besides, and no code
        return False
    if is_discrete(operation.name) or args.kwargs.get("rounding_mode"):
        return True
    return operation.name in _CASTS and any(made.dtype.kind in "iub" for made in results.values())


def follow(args: Arguments, results: Mapping[str, Array], recorded: Mapping[str, Array]) -> dict[str, Array] | None:
    """The results that follow recorded decisions: recorded indices and codes, and the exact operand at those indices."""
    if not recorded or any(position not in recorded or recorded[position].shape != made.shape for position, made in results.items()):
        return None
    found: dict[str, Array] = {}
    for position, made in results.items():
        if position == "out[0]" and _names_places(results):
            found[position] = _at(args, recorded["out[1]"], made)
        else:
            found[position] = recorded[position].astype(made.dtype)
    return found


def _names_places(results: Mapping[str, Array]) -> bool:
    """Whether a choice hands out floats, and beside each where in its operand it stood."""
    made, at = results.get("out[0]"), results.get("out[1]")
    return made is not None and at is not None and made.dtype.kind == "f" and at.dtype.kind in "iu" and made.shape == at.shape


def _at(args: Arguments, indices: Array, made: Array) -> Array:
    """The operand at the indices that a choice along one dimension named."""
    operand = args.args[0]
    if not operand.ndim:
        return np.asarray(operand.reshape(made.shape))
    numbers = [thing for thing in [*args.args[1:], *args.kwargs.values()] if isinstance(thing, int) and not isinstance(thing, bool)]
    candidates = (
        [args.kwargs["dim"]] if isinstance(args.kwargs.get("dim"), int) else [n for n in numbers if -operand.ndim <= n < operand.ndim]
    )
    for dim in [*reversed(candidates), operand.ndim - 1]:
        shaped = indices if indices.ndim == operand.ndim else np.expand_dims(indices, dim) if indices.ndim == operand.ndim - 1 else None
        if shaped is None:
            continue
        others = [d for d in range(operand.ndim) if d != dim % operand.ndim]
        if all(shaped.shape[d] == operand.shape[d] for d in others) and (not shaped.size or int(shaped.max()) < operand.shape[dim]):
            return np.take_along_axis(operand, shaped, dim).reshape(made.shape)
    return made


def compare_decisions(operation: Operation, args: Arguments, own: Mapping[str, Array], other: Mapping[str, Array]) -> Decision | None:
    """What a program would have decided against what the target did; None where they agree."""
    keys = decided(own)
    if all(np.array_equal(own[position], other[position], equal_nan=True) for position in keys):
        return None
    made = {position: np.array(result) for position, result in own.items()}
    if _names_places(own):
        one, two = own["out[0]"], other["out[0]"]
        margin = np.where(_beyond(args, other["out[1]"]), np.inf, apart(one, two))
        return Decision(operation, made, margin, np.maximum(np.abs(one), np.abs(two)), own["out[1]"] != other["out[1]"])
    position = keys[0]
    differs = (own[position] != other[position]) & ~(np.isnan(own[position]) & np.isnan(other[position]))
    operands = [thing for thing in args.args if _is_float(thing) and isinstance(thing, np.ndarray)]
    first = operands[0]
    if operation.base in ("argmax", "argmin") and own[position].shape != first.shape:
        flat = own[position].ndim == 0 or own[position].size == 1
        if np.any(_beyond(args, other[position], flat=flat)):
            return Decision(operation, made, np.where(differs, np.inf, 0.0), np.ones(differs.shape), differs)
        one, two = _chosen(first, made[position], flat), _chosen(first, np.array(other[position]), flat)
        return Decision(operation, made, apart(one, two), np.maximum(np.abs(one), np.abs(two)), differs.reshape(one.shape))
    second: Any = args.args[1] if len(args.args) > 1 and not isinstance(args.args[1], (list, tuple, str)) else 0.0
    if not isinstance(second, (int, float, np.ndarray)):
        second = 0.0
    jump = to_jump(operation, args, other[position])
    if jump is not None:
        return Decision(operation, made, np.where(differs, jump[0], 0.0), jump[1], differs)
    try:
        margin, scale = apart(first, np.asarray(second)), np.maximum(np.abs(first), np.abs(second))
    except ValueError:
        margin = scale = np.zeros(0)
    if margin.shape != differs.shape:  # how far from its border such a result is, is not known
        return Decision(operation, made, np.where(differs, np.inf, 0.0), np.ones(differs.shape), differs)
    return Decision(operation, made, np.where(differs, margin, 0.0), scale, differs)


def apart(one: Array, other: Array) -> Array:
    """How far apart two arrays are, element by element: 0 where both are the same infinity or NaN, infinite where one alone is."""
    with np.errstate(invalid="ignore"):
        off = np.abs(one - other)
    off = np.where(np.isnan(off), np.inf, off)
    same: Array = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, off)
    return same


def _beyond(args: Arguments, indices: Array, *, flat: bool = False) -> NDArray[np.bool_]:
    """Which indices name no place of the operand that was chosen from: there is none to choose, however little it would lack."""
    shape = args.args[0].shape or (1,)
    last = not flat and indices.shape[: len(shape) - 1] == shape[:-1]
    return np.asarray(indices >= (math.prod(shape) if flat else shape[-1] if last else max(shape)))


def _chosen(operand: Array, indices: Array, flat: bool) -> Array:
    if flat:
        return np.array(operand.reshape(-1)[indices.reshape(-1)])
    for dim in range(operand.ndim - 1, -1, -1):
        shape = operand.shape[:dim] + operand.shape[dim + 1 :]
        if indices.shape == shape:
            return np.take_along_axis(operand, np.expand_dims(indices, dim), dim)
        if indices.shape == (*operand.shape[:dim], 1, *operand.shape[dim + 1 :]):
            return np.take_along_axis(operand, indices, dim)
    return operand.reshape(-1)[:1]


def _is_float(thing: Any) -> bool:
    if isinstance(thing, (list, tuple)):
        return any(_is_float(item) for item in thing)
    return isinstance(thing, np.ndarray) and thing.dtype.kind in "fc"
