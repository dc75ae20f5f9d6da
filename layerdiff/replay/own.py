"""Own replay of the target's calls: each on its own recorded operands, against its own recorded results.

A residual that the reference's call of the same operator has too is the way that this operator is computed on both machines; it
is said with its figure, and convicts nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.formats import accumulator_for, format_named
from layerdiff.arithmetic.own import own_replay, replay_call
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.sampled import replay_sampled
from layerdiff.arithmetic.verdict import Own
from layerdiff.errors import TraceError
from layerdiff.replay.condition import generic_spread
from layerdiff.replay.once import tensors_of_arrays
from layerdiff.replay.operators import CannotReplay, is_random, run64
from layerdiff.replay.program import positions_of
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.sizes import first_line
from layerdiff.trace.arguments import decode

Array = NDArray[Any]
CONVICTING: Final = ("broken", "defect", "unexplained", "precision")
_ALIKE: Final = 4.0
"""A residual of the target up to this many times the reference's own is the operator's way, not the target's fault."""
_NOT_REPLAYED: Final = ("aten._local_scalar_dense.default", "aten.lift_fresh.default")


def replay_own(run: Recorded, operation: Operation, contents: Callable[[Recorded, int], Array]) -> Own | None:
    """The ladder for one call; None for a view, which computes nothing.

    Raises CannotReplay where operands or results were not recorded, or the operator cannot be run.
    """
    if run.is_view(operation) or not operation.outputs or operation.name in _NOT_REPLAYED:
        return None
    if operation.random or is_random(operation.name):
        return None
    if not operation.complete:
        raise CannotReplay("recorded only in part")
    if leaves_unwritten(run, operation):
        return None
    kept: dict[str, Array] = {}

    def operand(position: str) -> Array:
        if position not in operation.inputs:
            raise CannotReplay(f"its operand {position} was not recorded")
        if position not in kept:
            kept[position] = contents(run, operation.inputs[position])
        return kept[position]

    try:
        arguments = decode(operation.picture, operand)
    except TraceError as error:
        raise CannotReplay(str(error)) from None
    outputs = _in_order(operation)
    recorded = [contents(run, value) for value in outputs]
    dtypes = [run.file.dtype_name(value) for value in outputs]
    contract = contract_of(operation.name)
    if contract is not None and contract.exact is not None:
        sampled = replay_sampled(operation.name, arguments, recorded, dtypes)
        if sampled is not None:
            return sampled
        try:
            return replay_call(contract, arguments, recorded, dtypes)
        except ContractError as error:
            if not operation.name.startswith("aten."):  # somebody's own function, and torch has no other
                raise CannotReplay(f"the contract of {operation.name} failed: {first_line(error)}") from None
    tensors = tensors_of_arrays(arguments)
    made = run64(operation.name, tensors, trust=run.trust)
    chosen = [i for i, position in enumerate(positions_of(operation, len(made))) if position in operation.outputs]
    results = tuple(made[i].numpy() for i in chosen)
    accumulator = accumulator_for(*dtypes)
    if contract is not None:
        try:
            return own_replay(recorded, dtypes, results, contract.spread(arguments, results, accumulator), accumulator)
        except ContractError:
            pass
    if operation.writes:  # running it changed its operands
        tensors = tensors_of_arrays(arguments)
    found = generic_spread(operation.name, tensors, made, accumulator, inner=format_named(dtypes[0]), trust=run.trust)
    own = own_replay(recorded, dtypes, results, [found.spreads[i] for i in chosen], accumulator)
    return replace(own, rung=f"{own.rung}; {found.rule}")


_UNWRITTEN: Final = "memory that nothing was written to yet"


def leaves_unwritten(run: Recorded, operation: Operation) -> bool:
    """Whether a call returned memory to which nothing was written: what lies in it is no result."""
    outputs = operation.outputs.values()
    return bool(outputs) and all(run.file.text(int(run.file.values.reason[value])) == _UNWRITTEN for value in outputs)


def excused(own: Own, reference: Own | None) -> bool:
    """Whether the reference's own call has the residual too."""
    if reference is None or reference.verdict not in CONVICTING or own.verdict == "broken" != reference.verdict:
        return False
    if own.rung.partition(":")[0] != reference.rung.partition(":")[0] and own.verdict != reference.verdict:
        return False
    if not (np.isfinite(own.measured) and np.isfinite(reference.measured)):
        return own.measured == reference.measured
    return own.measured <= _ALIKE * reference.measured


def _in_order(operation: Operation) -> list[int]:
    return [operation.outputs[position] for position in sorted(operation.outputs, key=_index)]


def _index(position: str) -> tuple[int, str]:
    inner = position.partition("[")[2].partition("]")[0]
    return (int(inner) if inner.isdecimal() else 0, position)
