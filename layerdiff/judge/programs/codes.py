"""`codes_of`: where one run alone rounds measures to codes: activations, or keys and values, that are kept in 8 bits.

A rounding to codes is a rounding, as a cast to bfloat16 is, and exact arithmetic has neither. So the program of that run goes on with the
measures, and where codes lie there are measures until they are made such again: a scale that is dropped, or another head's, shows as in
any other program, and what the rounding adds is a matter of precision. Where both runs round, one follows the codes that the other made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import Role

Array = NDArray[Any]
Memory = tuple[int, str]
"""Of a place: the number of the storage, and the dtype that it is read as."""
_CODED: Final = frozenset({"int8", "uint8", "int16", "int32"})
"""Whole numbers in which codes are kept, or their products summed. int64 counts and points, and is never a code."""
_PRODUCTS: Final = ("mm", "_int_mm", "bmm", "addmm", "baddbmm", "dot", "mv")
_COMPUTES: Final = frozenset(
    {
        *("_to_copy", "clone", "clamp", "clamp_min", "clamp_max", "add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "neg", "sum"),
        *("mm", "_int_mm", "bmm", "addmm", "baddbmm", "dot", "mv"),
    }
)
"""Operators that make of measures in place of codes the like."""
_MOVES: Final = {
    **dict.fromkeys(("cat", "stack", "constant_pad_nd", "repeat", "flip", "roll", "index", "index_select", "gather", "embedding"), "in[0]"),
    **dict.fromkeys(("slice_scatter", "select_scatter", "copy", "copy_", "where"), "in[1]"),
    **dict.fromkeys(("index_put", "index_put_"), "in[2]"),
    **dict.fromkeys(("scatter", "scatter_", "index_copy", "index_copy_"), "in[3]"),
}
"""Operators that move numbers, and where they are given these beside the memory that they come to: elsewhere they are given places."""


@dataclass(frozen=True)
class Codes:
    """Of the program of one run."""

    roundings: frozenset[int] = frozenset()
    """Calls that make whole numbers of measures."""
    memories: frozenset[Memory] = frozenset()
    """Those of whole numbers in which measures lie."""
    kept: frozenset[Memory] = frozenset()
    """Those of codes that were made before, and are read beside."""
    casts: frozenset[int] = frozenset()
    """Calls that cast measures to floats of 8 bits, in both runs or in one."""

    def coming(self, memory: Memory, contents: Array) -> Array:
        """What a program reads of codes that were made before."""
        return contents

    def moved(self, number: int) -> Codes:
        """Codes that were made before each moved by up to half of one, for the how-manieth time; the same each time."""
        return _Moved(self.roundings, self.memories | self.kept, self.kept, self.casts, np.random.default_rng((20240503, number)))

    def kept_as(self, run: Recorded, call: int) -> str:
        """The dtype of the codes that a rounding or a cast makes; of such as are made measures again as they are, what they are."""
        if call in self.casts:
            return run.file.dtype_name(run.operation(call).outputs["out"])
        return min((dtype for _, dtype in self.memories), key=lambda dtype: int(dtype.strip("uint")), default="whole numbers")


@dataclass(frozen=True)
class _Moved(Codes):
    random: np.random.Generator = field(default_factory=np.random.default_rng)

    def coming(self, memory: Memory, contents: Array) -> Array:
        return np.array(contents + self.random.uniform(-0.5, 0.5, contents.shape)) if memory in self.kept else contents


def is_coded(one: str, other: str) -> bool:
    """Whether values of these dtypes are measures and codes."""
    kinds = [known.kind if (known := dtype_named(name)) is not None else None for name in (one, other)]
    return (kinds[0] == "float" and other in _CODED) or (one in _CODED and kinds[1] == "float")


def codes_of(run: Recorded, items: Iterable[int], returned: Iterable[int], partnered: Collection[int]) -> Codes:
    """Of the calls of a body, in order. `returned`: values that it hands on; `partnered`: calls that the other run makes, too."""
    calls, values = list(items), list(returned)
    casts = frozenset(call for call in calls if _is_coarse(run, call))
    if not any(call not in partnered and not run.is_module(call) and _rounds(run, run.operation(call)) for call in calls):
        return Codes(casts=casts)
    refused: set[int] = set(partnered)
    while True:
        holds, roundings, others = _followed(run, calls, refused)
        others |= frozenset[int]().union(*(_held(run, value, holds) for value in values))
        if not others:
            return Codes(frozenset(roundings), frozenset(holds), _read_beside(run, calls, holds), casts)
        refused |= others


def _followed(run: Recorded, calls: Iterable[int], refused: Collection[int]) -> tuple[dict[Memory, frozenset[int]], set[int], set[int]]:
    """The memories that hold codes, and by which roundings; all roundings; and those whose codes are used as anything but measures."""
    holds: dict[Memory, frozenset[int]] = {}
    roundings: set[int] = set()
    others: set[int] = set()
    for call in calls:
        inputs = run.edges(call, Role.INPUT)
        given = {position: found for position, value in inputs.items() if (found := _held(run, value, holds))}
        coming = frozenset[int]().union(*given.values())
        if run.is_module(call):
            others |= coming
            continue
        operation = run.operation(call)
        if _rounds(run, operation) and call not in refused:
            roundings.add(call)
            coming |= {call}
        if not coming or run.is_view(operation):
            continue
        made = {run.place(value).memory for value in operation.outputs.values()}
        if given and (not _as_measures(run, operation, given) or any(dtype in ("bool", "int64") for _, dtype in made)):
            others |= coming
        for memory in made:
            if memory[1] in _CODED:
                holds[memory] = holds.get(memory, frozenset()) | coming
    return holds, roundings, others


def _read_beside(run: Recorded, calls: Iterable[int], holds: Mapping[Memory, frozenset[int]]) -> frozenset[Memory]:
    found: set[Memory] = set(holds)
    for call in calls if holds else ():
        operation = None if run.is_module(call) else run.operation(call)
        if operation is None or operation.base in _PRODUCTS or not any(run.place(v).memory in holds for v in operation.outputs.values()):
            continue
        values = [value for value in operation.inputs.values() if run.weight(value) is None]
        found |= {memory for value in values if (memory := run.place(value).memory)[1] in _CODED}
    return frozenset(found)


def _held(run: Recorded, value: int, holds: Mapping[Memory, frozenset[int]]) -> frozenset[int]:
    memory = run.place(value).memory
    return frozenset[int]().union(*(found for one, found in holds.items() if one[0] == memory[0]))


def _as_measures(run: Recorded, operation: Operation, given: Collection[str]) -> bool:
    """Whether a call takes what lies at these positions as numbers, in the dtype in which they were made."""
    if any(run.place(operation.inputs[position]).memory[1] not in _CODED for position in given if position in operation.inputs):
        return False
    if operation.base in _COMPUTES:
        return True
    taken = _MOVES.get(operation.base)
    return taken is not None and all(position == "in[0]" or position.startswith(taken) for position in given)


def _is_coarse(run: Recorded, call: int) -> bool:
    if run.is_module(call) or not run.is_float_cast(operation := run.operation(call)):
        return False
    kept, given = (dtype_named(run.file.dtype_name(value)) for value in (operation.outputs["out"], operation.inputs["in[0]"]))
    return kept is not None and given is not None and kept.itemsize == 1 < given.itemsize


def _rounds(run: Recorded, operation: Operation) -> bool:
    """Whether a call makes whole numbers of floats that may stand for them: nearest ones, or by a cast to a dtype of codes."""
    if set(operation.outputs) != {"out"} or operation.writes or not operation.complete:
        return False
    value = operation.inputs.get("in[0]")
    known = None if value is None else dtype_named(run.file.dtype_name(value))
    if known is None or known.kind != "float":
        return False
    return operation.name == "aten.round.default" or (
        operation.name == "aten._to_copy.default" and run.file.dtype_name(operation.outputs["out"]) in _CODED
    )
