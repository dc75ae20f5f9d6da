"""`Recorded`: one process's trace as a program: which calls stand inside a module call, what each operator consumed and made.

Nothing is run here and torch is not needed. Calls and values are numbers, as in the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.replay.weights import Weight, Weights
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import ABSENT, CallKind, CallStatus, Role

_PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "convolution", "_grouped_mm", "addmv", "mv", "dot"})
_CASTS: Final = frozenset({"aten._to_copy.default"})
_LAZY: Final = {"aten._conj.default": "conj", "aten._neg_view.default": "neg"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator call as recorded."""

    call: int
    name: str
    """`aten.addmm.default`."""
    picture: dict[str, Any] | None
    """The picture of its arguments, a list `args` and a mapping `kwargs` (see `trace.arguments`); None where there is none."""
    inputs: dict[str, int]
    """Value by position, as consumed."""
    outputs: dict[str, int]
    writes: tuple[str, ...]
    """Positions of the inputs that it wrote to."""
    random: bool
    results: Any
    """The picture of its results; a number where it returned one."""
    complete: bool
    """Whether it returned, and was recorded to its end."""

    @property
    def base(self) -> str:
        """`addmm` of `aten.addmm.default`; all of a name that is no operator's."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else self.name

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, a convolution or attention: what autocast computes in the lower dtype."""
        return self.base in _PRODUCTS or "attention" in self.base


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lay: which elements of which memory, at which version."""

    memory: tuple[int, str]
    """Number of the storage (or, where it is unknown, -1 - value) and the dtype that it was read as; `complex64 conj`, or with ` neg`,
    where what lies there was to be conjugated, or negated, when it was read."""
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    version: int

    @property
    def extent(self) -> int:
        """How many elements of the memory there must be."""
        if 0 in self.shape:
            return 0
        return self.offset + 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


class Recorded:
    """The calls and values of one file. `trust`: namespaces, beside ATen, whose operators may be run again."""

    def __init__(self, file: TraceFile, trust: Collection[str] = frozenset()) -> None:
        self.file = file
        self.trust = frozenset(trust)
        self._operations: dict[int, Operation] = {}
        self._places: dict[int, Place] = {}
        self._views: dict[int, bool] = {}

    @cached_property
    def children(self) -> list[list[int]]:
        """The calls directly inside each call, in the order in which they began."""
        found: list[list[int]] = [[] for _ in range(len(self.file.calls))]
        for call, parent in enumerate(self.file.calls.parent.tolist()):
            if parent >= 0:
                found[parent].append(call)
        return found

    def is_module(self, call: int) -> bool:
        """Whether a call is a module's."""
        return int(self.file.calls.kind[call]) == CallKind.MODULE

    def is_collective(self, call: int) -> bool:
        """Whether a call is a communication of several ranks."""
        return int(self.file.calls.kind[call]) == CallKind.COLLECTIVE

    def edges(self, call: int, role: Role) -> dict[str, int]:
        """Value by position, of one role."""
        return {edge.position: edge.value for edge in self.file.edges_of(call) if edge.role == role}

    def operation(self, call: int) -> Operation:
        """An operator call."""
        found = self._operations.get(call)
        if found is None:
            calls = self.file.calls
            detail = self.file.json(int(calls.detail[call]))
            detail = detail if isinstance(detail, dict) else {}
            writes, picture = detail.get("writes"), _picture(detail.get("arguments"))
            found = self._operations[call] = Operation(
                call,
                self.file.text(int(calls.operator[call])) or "",
                picture,
                self.edges(call, Role.INPUT),
                self.edges(call, Role.OUTPUT),
                tuple(str(position) for position in writes) if isinstance(writes, list) else (),
                detail.get("random") is True and not _draws_nothing(self.file.text(int(calls.operator[call])) or "", picture),
                detail.get("results"),
                int(calls.status[call]) == CallStatus.RETURNED and picture is not None,
            )
        return found

    def place(self, value: int) -> Place:
        """Where a value lay."""
        found = self._places.get(value)
        if found is None:
            columns = self.file.values
            shape = self.file.shape(value)
            strides = self.file.json(int(columns.strides[value]))
            fits = isinstance(strides, list) and len(strides) == len(shape) and all(type(n) is int and n >= 0 for n in strides)
            memory, offset = int(columns.memory[value]), int(columns.memory_offset[value])
            if memory < 0 or offset < 0:
                memory, offset = -1 - value, 0
            found = self._places[value] = Place(
                (memory, " ".join([self.file.memory_dtype(value), *sorted(self._lazily.get(value, ()))])),
                offset,
                shape,
                tuple(strides) if fits else row_major(shape),
                int(columns.version[value]),
            )
        return found

    @cached_property
    def _lazily(self) -> dict[int, frozenset[str]]:
        """What is to be done to what lies in memory when a value is read, of those that were conjugated or negated without a copy."""
        operator, memory = self.file.calls.operator, self.file.values.memory
        lazy = {name: text for name in np.unique(operator).tolist() if (text := _LAZY.get(self.file.text(name) or "")) is not None}
        found: dict[int, frozenset[str]] = {}
        for call in np.flatnonzero(self.file.calls.kind == CallKind.OPERATOR).tolist() if lazy else ():
            operation = self.operation(call)
            given = operation.inputs.get("in[0]")
            if given is None or operation.writes:
                continue
            done = found.get(given, frozenset()) ^ ({lazy[operator[call]]} if operator[call] in lazy else frozenset())
            for value in operation.outputs.values() if done else ():
                if memory[value] == memory[given] >= 0:
                    found[value] = done
        return found

    def is_view(self, operation: Operation) -> bool:
        """Whether a call only looks at the memory of one of its operands in another way."""
        known = self._views.get(operation.call)
        if known is None:
            known = self._views[operation.call] = self._looks_only(operation)
        return known

    def _looks_only(self, operation: Operation) -> bool:
        if operation.writes or not operation.outputs or not operation.inputs:
            return False
        memories = {self.place(value).memory for value in operation.inputs.values()}
        return all(self.place(value).memory in memories for value in operation.outputs.values())

    @cached_property
    def producer(self) -> NDArray[np.int64]:
        """The operator call that made each value, -1 where no recorded one did. Shape (values,).

        A call that returns the very value that it was given (`lift_fresh` of a literal) did not make it.
        """
        edges, calls = self.file.edges, self.file.calls
        found = np.full(len(self.file.values), ABSENT, np.int64)
        operators = calls.kind[edges.call] == CallKind.OPERATOR
        key = edges.call.astype(np.int64) * len(found) + edges.value
        given = np.isin(key, key[operators & (edges.role == Role.INPUT)])
        chosen = (edges.role == Role.OUTPUT) & operators & ~given
        rows = np.flatnonzero(chosen)[::-1]
        found[edges.value[rows]] = edges.call[rows]
        return found

    @cached_property
    def made_memories(self) -> set[int]:
        """The memories that some recorded operator call made or wrote to: what lies in them is no source.

        A view makes nothing: `lift_fresh` returns a literal tensor of the program, which is one.
        """
        kinds = self.file.calls.kind
        operations = (self.operation(call) for call in np.flatnonzero(kinds == CallKind.OPERATOR).tolist())
        return {
            self.place(value).memory[0] for operation in operations if not self.is_view(operation) for value in operation.outputs.values()
        }

    @cached_property
    def output_position(self) -> dict[int, str]:
        """At which position of its producer a value was returned."""
        edges = self.file.edges
        rows = np.flatnonzero(edges.role == Role.OUTPUT)
        return {int(edges.value[row]): self.file.text(int(edges.position[row])) or "" for row in rows[::-1].tolist()}

    def is_float_cast(self, operation: Operation) -> bool:
        """Whether a call does nothing but change one float dtype to another."""
        if operation.name not in _CASTS or set(operation.inputs) != {"in[0]"} or set(operation.outputs) != {"out"}:
            return False
        kinds = [dtype_named(self.file.dtype_name(value)) for value in (operation.inputs["in[0]"], operation.outputs["out"])]
        return all(kind is not None and kind.kind == "float" for kind in kinds)

    @cached_property
    def product_dtype(self) -> str | None:
        """The dtype of most matrix products; None where there are none."""
        counted = Counter[str]()
        for call in np.flatnonzero(self.file.calls.kind == CallKind.OPERATOR).tolist():
            if (operation := self.operation(call)).is_product:
                counted.update(self.file.dtype_name(value) for value in list(operation.outputs.values())[:1])
        return counted.most_common(1)[0][0] if counted else None

    def weight(self, value: int) -> Weight | None:
        """The parameter or buffer that a value is, or is a part of, in its own dtype or as a cast (autocast); None for none.

        A buffer that was written to while recording is state, and no weight. Several may lie in one memory (flat parameters): then it
        is the smallest in which the value lies whole.
        """
        return self._weights.of(value)

    def trained(self, value: int) -> tuple[int, Place] | None:
        """Of a cast of a weight that the run writes to: what it is a cast of, and where the value lies in that; None for all else."""
        return self._weights.trained(value)

    @cached_property
    def _weights(self) -> Weights:
        return Weights(self)

    def readers(self, memories: Iterable[int]) -> set[int]:
        """The operator calls that read one of these memories."""
        known = self._readers
        return {call for memory in memories for call in known.get(memory, ())}

    def read_elsewhere(self, memories: Iterable[int], inside: set[int]) -> bool:
        """Whether an operator call outside `inside` reads one of these memories."""
        return not self.readers(memories) <= inside

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """The operator calls that read each memory."""
        edges, calls, columns = self.file.edges, self.file.calls, self.file.values
        found: dict[int, set[int]] = {}
        rows = np.flatnonzero((edges.role == Role.INPUT) & (calls.kind[edges.call] == CallKind.OPERATOR))
        for call, memory in zip(edges.call[rows].tolist(), columns.memory[edges.value[rows]].tolist(), strict=True):
            found.setdefault(memory, set()).add(call)
        return found

    def walk(self, call: int, stop: set[int]) -> Iterator[int]:
        """The calls inside `call` in order: operators, and module calls in `stop`; other module calls are walked into."""
        for child in self.children[call]:
            if self.is_module(child) and child not in stop:
                yield from self.walk(child, stop)
            else:
                yield child

    def modules_inside(self, call: int, stop: set[int]) -> Iterator[int]:
        """The module calls that `walk` walks into."""
        for child in self.children[call]:
            if self.is_module(child) and child not in stop:
                yield child
                yield from self.modules_inside(child, stop)


def _picture(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    return {"args": args, "kwargs": kwargs} if isinstance(args, list) and isinstance(kwargs, dict) else None


def _draws_nothing(name: str, picture: dict[str, Any] | None) -> bool:
    """Whether a call that may drop out at random was asked not to: its probability is zero, or left out."""
    known = picture or {"args": [], "kwargs": {}}
    numbers = [item for item in known["args"] if isinstance(item, float)]
    if "attention" in name:
        return not any(numbers) and not known["kwargs"].get("dropout_p")
    return "dropout" in name and bool(numbers) and not any(numbers)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(shape[d + 1], 1)
    return tuple(strides)
