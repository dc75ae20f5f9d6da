"""`Stored`: incoming values in which weights may be drawn again from what one rounding at their own dtype may have made of them.

A weight that an engine folded into another is stored once more, so each of its elements lies up to half a unit in the last place from
the exact product. Of whole numbers that stand for a weight (int8, unpacked int4), the unit is one. Weights that are the other run's,
rounded or not, are never moved, nor are those all of whose elements are one number: the ones that a folded norm keeps are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import Format, format_named
from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.constants import Constants, viewed
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.noise import Noise
from layerdiff.judge.programs.running import Redone
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
PRODUCTS: Final = ("mm", "_int_mm", "bmm", "addmm", "baddbmm")
"""Operators that multiply the last two of their operands."""
_PACKED: Final = (1, 2, 4, 8)
"""How many codes lie in one number: as many calls may unpack one weight."""


class Stored(Incoming):
    """The incoming values of a module taken whole. `move` says which roundings of the weights are drawn; None for none."""

    def __init__(
        self,
        runs: Both[Recorded],
        body: Body,
        constants: Constants,
        calls: Mapping[int, int],
        aligned: Mapping[int, int],
        contents: Callable[[Recorded, int], Array],
    ) -> None:
        super().__init__(runs, body, constants, calls, aligned, contents)
        self._moved: dict[tuple[str, int], Array | None] = {}
        self._random = np.random.default_rng(0)
        self._drawing = False
        self._scaled: tuple[str, float | Array] | None = None
        self.own_weights = Both(_alone(runs.reference, constants, body, "reference"), _alone(runs.target, constants, body, "target"))
        """Weights of each side that are not the other's, by name."""
        self.codes = Both(
            _codes(runs.reference, body, 0, _sizes(runs.target, self.own_weights.target)),
            _codes(runs.target, body, 1, _sizes(runs.reference, self.own_weights.reference)),
        )
        """Calls that make floats of the whole numbers that stand for a weight, or multiply by these: where they are given them."""

    def move(self, number: int | None) -> None:
        """Move the weights by the `number`-th roundings; None for where they are."""
        self._moved.clear()
        self._drawing = number is not None
        self._random = np.random.default_rng((20240502, number or 0))

    def is_real(self, name: str) -> bool:
        """Whether the target's weight of that name holds floats."""
        run = self._runs.target
        return any(run.file.weight_name(row) == name and _kind(run, row) == "float" for row in range(len(run.file.values)))

    def has_codes(self) -> bool:
        """Whether the target keeps weights of its own in whole numbers, or in floats of 8 bits."""
        run = self._runs.target
        own = (row for row in range(len(run.file.values)) if run.file.weight_name(row) in self.own_weights.target)
        coarse = (known for row in own if (known := dtype_named(run.file.dtype_name(row))) is not None)
        return bool(self.codes.target) or any(known.kind == "float" and known.itemsize == 1 for known in coarse)

    def dtype_of_codes(self) -> str | None:
        """The dtype of the whole numbers that stand for weights in either program; None where there are none."""
        for side, run in (("target", self._runs.target), ("reference", self._runs.reference)):
            if getattr(self.codes, side):
                for row in range(len(run.file.values)):
                    if run.file.weight_name(row) in getattr(self.own_weights, side) and _kind(run, row) == "integer":
                        return run.file.dtype_name(row)
        return None

    def scale(self, name: str | None, by: float | Array = 1.0) -> None:
        """Multiply the target's weight of that name, by a number or element by element; None for none."""
        self._scaled = None if name is None else (name, by)

    def for_reference(self, value: int) -> Array:
        """The contents that the reference's program reads. Raises CannotReplay."""
        moved = self._drawn("reference", value) if self._drawing else None
        return super().for_reference(value) if moved is None else moved

    def for_target(self, value: int) -> Array:
        """The contents that the target's program reads. Raises CannotReplay."""
        moved = self._drawn("target", value) if self._drawing else None
        if self._scaled is not None and (weight := self._runs.target.weight(value)) is not None and weight[0] == self._scaled[0]:
            whole = np.array(self._contents(self._runs.target, weight[1]) * self._scaled[1])
            return viewed(self._runs.target, whole, weight[1], weight[2])
        return super().for_target(value) if moved is None else moved

    def rounding_of_codes(self, side: str) -> Noise:
        """Noise that moves codes by up to half of one, and nothing else."""
        codes: Mapping[int, str] = getattr(self.codes, side)

        def noisy(operation: Operation, args: Arguments, results: dict[str, Array]) -> dict[str, Array]:
            if operation.call not in codes or "out" not in results:
                return results
            made = results["out"]
            if operation.base in PRODUCTS:
                factors = _factors(args, codes[operation.call])
                return {"out": np.array(made + _times(factors, self._random.uniform(-0.5, 0.5, factors.codes.shape)))}
            step: Any = 1.0
            if "mul" in operation.name:
                step = next((thing for thing in args.args if isinstance(thing, np.ndarray) and thing.dtype.kind == "f"), 1.0)
            return {"out": np.array(made + step * self._random.uniform(-0.5, 0.5, made.shape))}

        return noisy

    def codes_shifted(self, by: float) -> dict[int, Redone]:
        """The target's calls that make floats of codes, or multiply by these, with all codes by so much more."""

        def way(at: str, base: str) -> Redone:
            if base not in PRODUCTS:
                return lambda _, made: {"out": made["out"] + by}
            return lambda given, made: {"out": made["out"] + _times(one := _factors(given, at), np.full(one.codes.shape, by))}

        return {call: way(at, self._runs.target.operation(call).base) for call, at in self.codes.target.items()}

    def _drawn(self, side: str, value: int) -> Array | None:
        run: Recorded = getattr(self._runs, side)
        weight = run.weight(value)
        if weight is None or weight[0] not in getattr(self.own_weights, side):
            return None
        key = side, weight[1]
        if key not in self._moved:
            format = format_named(run.file.dtype_name(weight[1]))
            whole = self._contents(run, weight[1])
            one = format is None or whole.dtype.kind != "f" or not whole.size or bool(np.all(whole == whole.reshape(-1)[0]))
            self._moved[key] = None if one or format is None else rounding_drawn(whole, format, self._random)
        moved = self._moved[key]
        return None if moved is None else viewed(run, moved, weight.whole, weight.place)


class _Factors(NamedTuple):
    """Of a product."""

    codes: Array
    other: Array
    codes_last: bool


def _factors(args: Arguments, position: str) -> _Factors:
    one, other = args.args[-2:]
    last = position == f"in[{len(args.args) - 1}]"
    return _Factors(other, one, last) if last else _Factors(one, other, last)


def _times(factors: _Factors, codes: Array) -> Array:
    return np.asarray(factors.other @ codes if factors.codes_last else codes @ factors.other)


def rounding_drawn(stored: Array, format: Format, random: np.random.Generator) -> Array:
    """What the exact values may have been of which `stored` are the nearest numbers of the format: within half a unit in the last place."""
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(stored)))
    half = np.maximum(format.unit * np.exp2(np.where(np.isfinite(exponent), exponent, -np.inf)), format.smallest_subnormal / 2)
    return np.array(stored + half * random.uniform(-1.0, 1.0, stored.shape))


def _alone(run: Recorded, constants: Constants, body: Body, side: str) -> frozenset[str]:
    found = set()
    for item in getattr(body.items, side):
        if not run.is_module(item):
            for value in run.operation(item).inputs.values():
                weight = run.weight(value)
                if weight is not None:
                    found.add(weight[0])
    return frozenset(name for name in found if not constants.is_elsewhere(side, name))


def _sizes(run: Recorded, names: frozenset[str]) -> set[int]:
    """The numbers of elements of a run's float matrices of these names."""
    found = set()
    for row in range(len(run.file.values)):
        name = run.file.weight_name(row)
        if name in names and len(run.file.shape(row)) >= 2 and _kind(run, row) == "float":
            found.add(int(np.prod(run.file.shape(row))))
    return found


def _codes(run: Recorded, body: Body, side: int, sizes: set[int]) -> dict[int, str]:
    """The calls that make floats of whole numbers that come from weights alone, as many as a weight of the other run that has no equal;
    or that multiply measures by them as they are. And where they are given them.

    One buffer may be unpacked by several calls. Positions, zero points and tables are whole numbers too: those are exact. int64 is never
    a code.
    """
    coming = (body.interface.inputs, *(interface.outputs for interface in body.children.values()))
    known: dict[int, frozenset[str] | None] = {run.place(pair[side]).memory[0]: None for pairs in coming for _, pair in pairs}
    made: dict[frozenset[str], list[tuple[int, str, int]]] = {}
    for item in list(body.items)[side]:
        if run.is_module(item):
            continue
        operation = run.operation(item)
        if run.is_view(operation) or operation.random or not operation.outputs:
            continue
        if operation.writes:
            for at in operation.writes:
                known.pop(run.place(operation.inputs[at]).memory[0] if at in operation.inputs else -1, None)
            continue
        names = [_names(run, value, known) for value in operation.inputs.values()]
        if operation.base in PRODUCTS and (one := _multiplied(run, operation, names)) is not None:
            made.setdefault(one[0], []).append((item, *one[1:]))
        if any(one is None for one in names):
            known |= dict.fromkeys(run.place(value).memory[0] for value in operation.outputs.values())
            continue
        for value in operation.outputs.values():
            known[run.place(value).memory[0]] = frozenset().union(*(one for one in names if one is not None))
        if _unpacks(run, operation):
            whole = [
                (at, name) for (at, value), name in zip(operation.inputs.items(), names, strict=True) if _kind(run, value) == "integer"
            ]
            count = int(np.prod(run.file.shape(operation.outputs["out"])))
            made.setdefault(whole[0][1] or frozenset(), []).append((item, whole[0][0], count))
    found: dict[int, str] = {}
    stored = _stored_sizes(run)
    for made_of, calls in made.items():
        total = sum(count for *_, count in calls)
        if any(
            size and total % size == 0 and all(count and size % count == 0 and size // count in _PACKED for *_, count in calls)
            for size in sizes
            if any(stored.get(name, 0) * packed == size for name in made_of for packed in _PACKED)  # zero points are repeated
        ):
            found |= {call: at for call, at, _ in calls}
    return found


def _stored_sizes(run: Recorded) -> dict[str, int]:
    """The numbers of elements of a run's weights, by name."""
    named = ((row, run.file.weight_name(row)) for row in range(len(run.file.values)))
    return {name: int(np.prod(run.file.shape(row))) for row, name in named if name is not None}


def _multiplied(run: Recorded, operation: Operation, names: Iterable[frozenset[str] | None]) -> tuple[frozenset[str], str, int] | None:
    """The weights whose codes something else is multiplied by, where the call is given them, and how many there are."""
    given = list(zip(operation.inputs.items(), names, strict=True))
    whole = [(name, at, value) for (at, value), name in given if name and _kind(run, value) == "integer"]
    if len(whole) != 1 or run.file.dtype_name(whole[0][2]) == "int64" or all(name is not None for _, name in given):
        return None
    name, at, value = whole[0]
    return name, at, int(np.prod(run.file.shape(value)))


def _names(run: Recorded, value: int, known: Mapping[int, frozenset[str] | None]) -> frozenset[str] | None:
    """The weights that a value was made of; None where something else was, too. A literal of the program is made of nothing."""
    weight, memory = run.weight(value), run.place(value).memory[0]
    if weight is not None:
        return frozenset({weight[0]})
    return known.get(memory, None if memory in run.made_memories else frozenset())


def _unpacks(run: Recorded, operation: Operation) -> bool:
    """Whether a call makes a matrix of floats of one of whole numbers, element by element."""
    made = operation.outputs.get("out")
    if made is None or operation.base not in ("_to_copy", "mul") or _kind(run, made) != "float" or len(run.file.shape(made)) < 2:
        return False
    given = [v for v in operation.inputs.values() if _kind(run, v) == "integer" and run.file.dtype_name(v) != "int64"]
    return len(given) == 1 and np.prod(run.file.shape(given[0])) == np.prod(run.file.shape(made))


def _kind(run: Recorded, value: int) -> str | None:
    known = dtype_named(run.file.dtype_name(value))
    return None if known is None else known.kind
