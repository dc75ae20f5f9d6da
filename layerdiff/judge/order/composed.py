"""A sum that one run makes in several calls: products over parts of the terms, cast and added up. Read from the program, not guessed.

Walking back from a value through casts, views and additions gives the products that it is the sum of; laid side by side they are
one product, which is analysed as if one call had made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.orders.summing import Product
from layerdiff.arithmetic.registry import contract_of
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.arguments import Arguments, decode
from layerdiff.trace.reader import TraceFile

Array = NDArray[Any]
Read = Callable[[int], Array]
_ADDS: Final = ("aten.add.Tensor", "aten.add_.Tensor")
_CASTS: Final = ("aten._to_copy.default", "aten.clone.default", "aten.contiguous.default", "aten.copy_.default")
_MOST_PARTS: Final = 1024


@dataclass(frozen=True)
class Part:
    """One product of a composed sum: its call, and its operands [M, K] and [K, N]."""

    call: int
    left: Array
    right: Array


@dataclass(frozen=True)
class Composed:
    """A sum made in several calls: the products in the order in which they are added, and how, in words."""

    parts: tuple[Part, ...]
    how: str
    dtype: str
    """What the partial sums are kept in before they are added."""

    @property
    def in_order(self) -> bool:
        """Whether the parts are added one after the other."""
        text = "0"
        for number in range(1, len(self.parts)):
            text = f"({text} + {number})"
        return text[1:-1] == self.how

    @property
    def product(self) -> Product:
        """All parts side by side."""
        return Product(np.concatenate([part.left for part in self.parts], -1), np.concatenate([part.right for part in self.parts], -2))


def composed_sum(run: Recorded, operation: Operation) -> Composed | None:
    """The products that the first output of a call is the sum of, where there are two at least; None where it is made otherwise."""
    if not operation.outputs:
        return None
    read = partial(read_value, run.file)
    found: list[Part] = []
    dtypes: list[str] = []

    def walk(at: int) -> str | None:
        """The sum behind a value as a text `((0 + 1) + 2)`; None where it is none."""
        if len(found) > _MOST_PARTS:
            return None
        call = int(run.producer[at])
        if call < 0:
            return None
        operation = run.operation(call)
        if operation.name in _CASTS or run.is_view(operation):
            source = _source(operation)
            return None if source is None else walk(source)
        if operation.name in _ADDS and _plain_addition(operation):
            operands = [operation.inputs[name] for name in sorted(operation.inputs)]
            one, other = walk(operands[0]), walk(operands[1])
            return None if one is None or other is None else f"({one} + {other})"
        part, before = _product(run, operation, read)
        if part is None:
            return None
        dtypes.append(run.file.dtype_name(at))
        start = None
        if before is not None:
            start = walk(before)
            if start is None:
                return None
        found.append(part)
        here = str(len(found) - 1)
        return here if start is None else f"({start} + {here})"

    how = walk(first_output(operation))
    if how is None or len(found) < 2:
        return None
    if len({(part.left.shape[:-1], part.right.shape[-1]) for part in found}) != 1:
        return None
    return Composed(tuple(found), how.removeprefix("(").removesuffix(")"), dtypes[0])


def _plain_addition(operation: Operation) -> bool:
    return len(operation.inputs) == 2 and operation.picture is not None and operation.picture["kwargs"].get("alpha", 1) == 1


def _source(operation: Operation) -> int | None:
    if not operation.inputs:
        return None
    names = sorted(operation.inputs)
    return operation.inputs[names[-1] if operation.name == "aten.copy_.default" else names[0]]


def _product(run: Recorded, operation: Operation, read: Read) -> tuple[Part | None, int | None]:
    """The product that a call makes, and the value that it adds to it."""
    contract = contract_of(operation.name)
    if contract is None or contract.product is None or not operation.complete:
        return None, None
    try:
        product = contract.product(arguments_of(operation, read))
    except ContractError:
        return None, None
    if product is None or product.scale != 1.0 or product.right.ndim != 2:
        return None, None
    before = None
    if product.start is not None:
        added = [name for name in sorted(operation.inputs) if read(operation.inputs[name]).shape == run.file.shape(first_output(operation))]
        if not added or operation.name not in ("aten.addmm.default", "aten.baddbmm.default"):
            return None, None
        before = operation.inputs[added[0]]
    return Part(operation.call, product.left.reshape(-1, product.left.shape[-1]), product.right), before


def arguments_of(operation: Operation, read: Read) -> Arguments:
    """The arguments of a call, with what `read` makes of its operands. Raises ContractError where an operand was not recorded."""

    def operand(position: str) -> Array:
        if position not in operation.inputs:
            raise ContractError(f"its operand {position} was not recorded")
        return read(operation.inputs[position])

    return decode(operation.picture, operand)


def covered_terms(composed: Composed, whole: Array) -> tuple[list[tuple[int, int] | None], list[tuple[int, int]]]:
    """Which rows of the reference's right operand [K, N] each part multiplies, by their bits, and the ranges that no part does.

    A part whose rows are not found gets None; then nothing is said of the ranges.
    """
    ranges: list[tuple[int, int] | None] = []
    covered = np.zeros(whole.shape[0], bool)
    for part in composed.parts:
        at = _found_at(part.right, whole)
        ranges.append(at)
        if at is not None:
            covered[at[0] : at[1]] = True
    if None in ranges:
        return ranges, []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], ~covered, [False]]).astype(np.int8)))
    return ranges, [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _found_at(rows: Array, whole: Array) -> tuple[int, int] | None:
    if rows.shape[1] != whole.shape[1] or rows.shape[0] > whole.shape[0] or not rows.shape[0]:
        return None
    starts = np.flatnonzero(np.all(whole[: whole.shape[0] - rows.shape[0] + 1] == rows[0], axis=1))
    for start in starts.tolist():
        if np.array_equal(whole[start : start + rows.shape[0]], rows):
            return start, start + rows.shape[0]
    return None


def first_output(operation: Operation) -> int:
    """The value of the first output that a call has."""
    return operation.outputs[min(operation.outputs)]


def read_value(file: TraceFile, value: int) -> Array:
    """A value as numbers, floats in float32 or wider; booleans as such. Raises TraceError without bytes."""
    found = file.read(value)
    return found.astype(np.bool_) if file.dtype_name(value) == "bool" else found
