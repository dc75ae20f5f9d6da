"""What a body reads and did not make, and which value of the other run that is.

In order: what the module was given and its children returned; weights, by name; what another call made, by that call's
partner; equal bits; and last the value that the aligned call reads at the same place. What comes in is the target's on both sides,
save a weight that differs by more than rounding: then the reference's own is used, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from layerdiff.judge.programs.bodies import Body, Pair
from layerdiff.judge.programs.codes import is_coded
from layerdiff.judge.programs.constants import Constants, as_mask, read_weight
from layerdiff.judge.programs.together import Together
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]


class Incoming:
    """The incoming values of one body. Values of the reference are found their partner in the target where there is one."""

    def __init__(
        self,
        runs: Both[Recorded],
        body: Body,
        constants: Constants,
        calls: Mapping[int, int],
        aligned: Mapping[int, int],
        contents: Callable[[Recorded, int], Array],
    ) -> None:
        self._runs, self._forms = runs, body.forms
        self._constants = constants
        self._calls = calls
        self._aligned = aligned
        self._contents = contents
        self._together = Together.both(runs, body.items)
        self._partner: dict[int, int | None] = {}
        self.own_choices = False
        """Whether the reference's program is given its own run's whole numbers and choices: where the target's lead it elsewhere."""
        self.alone: set[int] = set()
        """Floats of the reference's that have no partner, and were read: the programs do not start from the same numbers."""
        self.sources: dict[int, int] = {}
        """Pairs of values that no recorded call made: to be compared by themselves."""
        self._readers: dict[int, tuple[int, str]] = {}
        for pairs in (body.interface.inputs, *(interface.outputs for interface in body.children.values())):
            for _, (reference, target) in pairs:
                self._partner.setdefault(reference, target)
        self._items = frozenset(body.items.target)
        self._crossing: dict[int, int] = {}
        for pairs in (body.interface.outputs, *(interface.inputs for interface in body.children.values())):
            for _, (reference, target) in pairs:
                self._crossing.setdefault(reference, target)
        for item in body.items.reference:
            if not runs.reference.is_module(item):
                for position, value in runs.reference.operation(item).inputs.items():
                    self._readers.setdefault(value, (item, position))

    def partner(self, value: int) -> int | None:
        """The target's value for an incoming value of the reference, None where there is none."""
        if value not in self._partner:
            self._partner[value] = self._find(value)
        return self._partner[value]

    def _find(self, value: int) -> int | None:
        reference, target = self._runs
        call = int(reference.producer[value])
        reader = self._readers.get(value)
        there: int | None = None
        other = None if reader is None else self._aligned.get(self._together.reference.calls(reader[0])[-1])
        if reader is not None and other is not None:  # of state that steps hand on, what the first of them is given
            there = target.operation(self._together.target.calls(other)[0]).inputs.get(reader[1])
            if there is not None and not self._fits(value, there):
                there = None
        if call >= 0:
            made = self._calls.get(call)
            if made is not None:
                found = target.operation(made).outputs.get(reference.output_position.get(value, "out"))
                if found is not None and self._fits(value, found):
                    now = self._crossing.get(value) if there is None else there
                    return now if now is not None and self._is_written_over(found, now) else found
            return there
        known = reference.place(value).memory[0] in reference.made_memories
        if there is not None and int(target.producer[there]) < 0 and not known:
            self.sources[value] = there
        return there

    def _is_written_over(self, made: int, now: int) -> bool:
        """Whether a value of the target's is what it made, written to since by calls of other bodies that the reference does not make.

        Those are judged where they stand: what reads it, or hands it on, is no second fault.
        """
        run, places = self._runs.target, [self._runs.target.place(value) for value in (made, now)]
        if replace(places[0], version=places[1].version) != places[1] or places[1].version <= places[0].version:
            return False
        since = range(places[0].version + 1, places[1].version + 1)
        writers = []
        for call in run.readers([places[0].memory[0]]):
            operation = run.operation(call)
            written = [run.place(value) for value in operation.outputs.values() if operation.writes]
            if any(place.memory == places[0].memory and place.version in since for place in written):
                writers.append(call)
        return bool(writers) and all(self._is_added(call) for call in writers)

    def _is_added(self, target: int) -> bool:
        """Whether a call of the target's in another body has no partner, and stands in a module that has such."""
        known, parent = set(self._calls.values()), self._runs.target.file.calls.parent
        if target in known or target in self._items:
            return False
        judged, module = {int(parent[call]) for call in known}, int(parent[target])
        while module >= 0 and module not in judged:
            module = int(parent[module])
        return module >= 0

    def _fits(self, reference: int, target: int) -> bool:
        files = self._runs.map(lambda run: run.file)
        if is_coded(files.reference.dtype_name(reference), files.target.dtype_name(target)):
            return False  # state that one of the runs keeps in codes: each reads its own
        return self._forms.same(files.reference.shape(reference), files.target.shape(target))

    def reader(self, value: int) -> tuple[int, str] | None:
        """The first operator call of the reference that reads a value, and at which position."""
        return self._readers.get(value)

    def aligned(self, call: int) -> int:
        """The target's call of an operator call of the reference, -1 for none."""
        return self._aligned.get(call, -1)

    def number(self, side: str, value: int) -> object:
        """What an incoming value is, the same for both sides where it is the same thing."""
        run: Recorded = getattr(self._runs, side)
        weight = run.weight(value)
        if weight is not None:
            offset = weight.place.offset - run.place(weight.whole).offset
            return ("weight", self._constants.number(side, weight.name), offset, weight.place.shape, weight.place.strides)
        if side == "target":
            return ("target", value)
        partner = self.partner(value)
        return ("reference", value) if partner is None else ("target", partner)

    def is_same_weight(self, reference: str, target: str) -> bool:
        """Whether two weights, by name, are one constant."""
        return self._constants.number("reference", reference) == self._constants.number("target", target)

    def draw(self, side: str, call: int) -> object:
        """What a random call drew: the same thing on both sides where the calls are aligned."""
        return ("draw", call if side == "target" else self._aligned.get(call, -1 - call))

    def for_reference(self, value: int) -> Array:
        """The contents that the reference's program reads. Raises CannotReplay."""
        weight = self._runs.reference.weight(value)
        if weight is not None:
            return self._constants.contents(weight, value)
        partner = self.partner(value)
        if partner is None:
            kind = dtype_named(self._runs.reference.file.dtype_name(value))
            if (
                kind is not None
                and kind.kind == "float"
                and self._runs.reference.place(value).memory[0] in self._runs.reference.made_memories
            ):
                self.alone.add(value)
            return self._contents(self._runs.reference, value)
        known = dtype_named(self._runs.reference.file.dtype_name(value))
        if self.own_choices and known is not None and known.kind == "integer":
            return self._contents(self._runs.reference, value)
        shape = self._runs.reference.file.shape(value)
        found = read_weight(self._runs.target, partner, self._contents)
        contents = self._forms.for_reference(found, shape, lambda: self._contents(self._runs.reference, value))
        dtypes = self._runs.reference.file.dtype_name(value), self._runs.target.file.dtype_name(partner)
        if "bool" in dtypes and dtypes[0] != dtypes[1]:
            return as_mask(contents, self._contents(self._runs.reference, value))
        return contents

    def for_target(self, value: int) -> Array:
        """The contents that the target's program reads. Raises CannotReplay."""
        return read_weight(self._runs.target, value, self._contents)


__all__ = ["Incoming", "Pair"]
