"""Wiring: what each value of a body is, as an expression over what comes in, without running anything.

Two expressions are one number where both programs apply the same operators with the same scalars, in the same views, to the same
things. So a cut whose two values have one number computes the same, whatever the values are, and the order of independent
calls does not matter. Casts between float dtypes are left out, as in the programs themselves.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any, Final

from layerdiff.judge.programs.bodies import Body, Pair
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named

_EXACT: Final = 1 << 53
"""Up to which a whole number is a float, and no other one is the same float."""
_NO_MEANING: Final = frozenset({"device", "pin_memory", "layout", "non_blocking"})
"""Keyword arguments that say where a result lies, not what it is."""


class Wiring:
    """The expressions of one body: a number for each value that crosses a cut, comparable between both sides."""

    def __init__(self, runs: Both[Recorded], body: Body, incoming: Incoming) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.cuts: Both[dict[tuple[int, str], int]] = Both({}, {})
        """By call (a child, or the body's own) and position."""
        self.scalars: Both[dict[int, str]] = Both({}, {})
        """What each operator call is besides its tensors, by call."""
        for side in ("reference", "target"):
            self._trace(side, getattr(runs, side), body, incoming)

    def _number(self, *key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _trace(self, side: str, run: Recorded, body: Body, incoming: Incoming) -> None:
        here = 0 if side == "reference" else 1
        cuts, scalars = getattr(self.cuts, side), getattr(self.scalars, side)
        of_value: dict[int, int] = {}
        of_memory: dict[int, int] = {}
        children = body.child_of(side)
        own = body.calls[here]

        def read(value: int) -> int:
            found = of_value.get(value)
            if found is None:
                place = run.place(value)
                written = of_memory.get(place.memory[0])
                if written is not None:
                    found = self._number("part", written, place.offset, place.shape, place.strides)
                else:
                    found = self._number("incoming", incoming.number(side, value))
                of_value[value] = found
            return found

        for _, pair in body.interface.inputs:
            of_value[pair[here]] = self._number("incoming", incoming.number(side, pair[here]))
        for item in getattr(body.items, side):
            if item in children:
                pair, interface = children[item]
                for position, values in interface.inputs:
                    cuts[item, position] = read(values[here])
                for _, values in interface.outputs:
                    of_value[values[here]] = self._number("incoming", incoming.number(side, values[here]))
                continue
            operation = run.operation(item)
            if run.is_float_cast(operation):
                of_value[operation.outputs["out"]] = read(operation.inputs["in[0]"])
                continue
            tensors = {position: read(value) for position, value in operation.inputs.items()}
            scalars[item] = _scalars(operation)
            key: tuple[Hashable, ...] = (operation.name, scalars[item], tuple(sorted(tensors.items())))
            if operation.random:
                key = (*key, incoming.draw(side, item))
            fresh = not run.is_view(operation)
            for position, value in operation.outputs.items():
                of_value[value] = self._number("made", key, position)
                if fresh and not operation.writes:
                    of_memory[run.place(value).memory[0]] = of_value[value]
            for position in operation.writes:
                if position in operation.inputs:
                    place = run.place(operation.inputs[position])
                    before = of_memory.get(place.memory[0], -1)
                    of_memory[place.memory[0]] = self._number("written", before, key, place.offset, place.shape, place.strides)
        for position, values in body.interface.outputs:
            cuts[own, position] = read(values[here])

    def same(self, calls: Pair, position: str) -> bool:
        """Whether both programs hand the same expression to (or return it at) `position` of a pair of calls."""
        ours, theirs = self.cuts.reference.get((calls[0], position)), self.cuts.target.get((calls[1], position))
        return ours is not None and ours == theirs


def _scalars(operation: Operation) -> str:
    """The arguments that are no tensors, as one text; float dtypes are all one."""
    picture = operation.picture or {"args": [], "kwargs": {}}
    kwargs = {name: item for name, item in picture["kwargs"].items() if name not in _NO_MEANING}
    return json.dumps([_neutral(picture["args"]), _neutral(kwargs)], sort_keys=True)


def _neutral(thing: Any) -> Any:
    if isinstance(thing, Mapping):
        dtype = thing.get("dtype")
        if isinstance(dtype, str) and len(thing) == 1:
            known = dtype_named(dtype.removeprefix("torch."))
            return {"dtype": "float" if known is not None and known.kind == "float" else dtype}
        return {name: _neutral(item) for name, item in thing.items()}
    if isinstance(thing, list):
        return [_neutral(item) for item in thing]
    return float(thing) if isinstance(thing, int) and not isinstance(thing, bool) and abs(thing) <= _EXACT else thing
