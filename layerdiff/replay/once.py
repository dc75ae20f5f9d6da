"""`run_once`: one recorded call run again by itself in float64, on operands of somebody else's choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.replay.inner import InnerRounding
from layerdiff.replay.operators import run64
from layerdiff.replay.program import positions_of
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments, decode

Array = NDArray[Any]


def run_once(run: Recorded, operation: Operation, operands: Mapping[str, Array]) -> dict[str, Array]:
    """The results of a call by position, on operands by position. Raises CannotReplay."""
    if operation.writes or not operation.complete:
        raise CannotReplay("it writes to its operands, or was recorded only in part")
    try:
        args = decode(operation.picture, lambda position: torch.from_numpy(np.array(operands[position])))
        with torch.no_grad():
            made = run64(operation.name, args, trust=run.trust)
    except (KeyError, TraceError) as error:
        raise CannotReplay(f"its operands are not those: {error}") from None
    return {position: np.array(tensor.numpy()) for position, tensor in zip(positions_of(operation, len(made)), made, strict=False)}


def with_steps_rounded(run: Recorded, name: str, args: Arguments, unit: float, seed: int) -> tuple[Array, ...]:
    """The results of an operator that is a layer, with each of its steps rounded at random. Raises CannotReplay."""
    inner = InnerRounding(unit, torch.Generator().manual_seed(seed))
    made = run64(name, tensors_of_arrays(args), trust=run.trust, inner=inner)
    return tuple(tensor.numpy() for tensor in made)


def tensors_of_arrays(args: Arguments) -> Arguments:
    """The same arguments with a tensor, a copy, for each array."""
    return args.mapped(lambda thing: torch.from_numpy(np.array(thing)) if isinstance(thing, np.ndarray) else thing)


def operands_by_position(operation: Operation, given: Arguments) -> dict[str, Array]:
    """The tensors among the arguments of a call, by position. Raises CannotReplay where they are not as they were recorded."""
    try:
        named = decode(operation.picture, lambda position: position)
    except (KeyError, TraceError) as error:
        raise CannotReplay(str(error)) from None
    found: dict[str, Array] = {}
    _walk([*named.args, *named.kwargs.values()], [*given.args, *given.kwargs.values()], found)
    return found


def _walk(names: Any, things: Any, found: dict[str, Array]) -> None:
    for name, thing in zip(names, things, strict=False):
        if isinstance(thing, np.ndarray):
            found[str(name)] = thing
        elif isinstance(thing, (list, tuple)) and isinstance(name, (list, tuple)):
            _walk(name, thing, found)
