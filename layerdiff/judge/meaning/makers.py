"""`Makers`: in one program of a body, which call made what each call is given, and where it goes: views left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.meaning.equals import Equals
from layerdiff.judge.programs.bodies import Pair
from layerdiff.judge.programs.constants import unmasked
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import NOTHING
from layerdiff.measure.rows import row_difference
from layerdiff.replay.recorded import Operation, Place, Recorded
from layerdiff.sides import Both
from layerdiff.trace.joined import own_of

Array = NDArray[Any]
Reader = tuple[int | Pair, str]
"""Who is given a value, and at which position: an operator call, a child, or the body's own pair, which returns it."""
COPIES: Final = frozenset({"clone", "copy_", "_to_copy", "contiguous", "lift_fresh_copy"})


class Makers:
    """Of the program of one side."""

    def __init__(self, programs: Programs, side: str) -> None:
        run: Recorded = getattr(programs.runs, side)
        self._run, body = run, programs.body
        here = 0 if side == "reference" else 1
        self._children = {pair[here]: (pair, interface) for pair, interface in body.children.items()}
        self._maker: dict[Reader, int | None] = {}
        self._value: dict[Reader, int] = {}
        self._readers: dict[int, list[Reader]] = {}
        self._latest: dict[int, int] = {}
        own = own_of(run.file)
        for item in getattr(body.items, side):
            if item in self._children:
                pair, interface = self._children[item]
                for position, values in interface.inputs:
                    self._note((pair, position), values[here])
                for _, values in interface.outputs:
                    self._latest.pop(run.place(values[here]).memory[0], None)
            elif item in own:
                self._cross(run.operation(item))
            elif not run.is_view(operation := run.operation(item)):
                for position, value in operation.inputs.items():
                    self._note((item, position), value)
                written = [operation.inputs[position] for position in operation.writes if position in operation.inputs]
                for value in (*operation.outputs.values(), *written):
                    self._latest[run.place(value).memory[0]] = item
        for position, values in body.interface.outputs:
            self._note((body.calls, position), values[here])

    def _cross(self, operation: Operation) -> None:
        """What is put together, or taken apart, was made by whoever made it, or the last part of it."""
        given, made = ([self._run.place(value).memory[0] for value in of.values()] for of in (operation.inputs, operation.outputs))
        maker = self._latest.get(given[-1])
        for memory in made:
            self._latest.pop(memory, None)
            if maker is not None:
                self._latest[memory] = maker

    def _note(self, reader: Reader, value: int) -> None:
        maker = self._latest.get(self._run.place(value).memory[0])
        self._maker[reader], self._value[reader] = maker, value
        if maker is not None:
            self._readers.setdefault(maker, []).append(reader)

    def value(self, reader: Reader) -> int | None:
        """The value that is read there."""
        return self._value.get(reader)

    def copied(self, reader: Reader) -> int | None:
        """The value that is read there, before copies."""
        return self._value.get(self._first(reader))

    def source(self, reader: Reader) -> int | None:
        """The operator call that made what is read there, copies left out; None where it came in."""
        return self._maker.get(self._first(reader))

    def made(self, reader: Reader, ran: Ran) -> Array | None:
        """What that call made, as the program was run; None where it came in, or nothing was kept."""
        first = self._first(reader)
        maker = self._maker.get(first)
        if maker is None:
            return None
        memory = self._run.place(self._value[first]).memory[0]
        outputs = self._run.operation(maker).outputs.items()
        return next((ran.results.get(maker, {}).get(at) for at, value in outputs if self._run.place(value).memory[0] == memory), None)

    def part(self, reader: Reader, instead: Array) -> Array | None:
        """What would be read there of a value, if that lay where the call put its result; None where it has another shape."""
        maker = self._maker.get(reader)
        if maker is None:
            return None
        read = self._run.place(self._value[reader])
        places = [self._run.place(value) for value in self._run.operation(maker).outputs.values()]
        place = next((one for one in places if one.memory == read.memory), None)
        if place is None or place.shape != instead.shape:
            return None
        begin = min(place.offset, read.offset)
        lies = np.zeros(max(place.extent, read.extent) - begin, instead.dtype)
        _lying(lies, begin, place)[...] = instead
        return np.array(_lying(lies, begin, read))

    def _first(self, reader: Reader) -> Reader:
        """Before copies."""
        while (maker := self._maker.get(reader)) is not None and self.is_copy(maker):
            reader = maker, "in[0]"
        return reader

    def is_copy(self, call: int) -> bool:
        """Whether a call hands on what it is given in memory of its own."""
        operation = self._run.operation(call)
        return operation.base in COPIES and "in[0]" in operation.inputs and not operation.writes

    def given(self, call: int) -> list[Reader]:
        """What an operator call is given."""
        return [(call, position) for position in self._run.operation(call).inputs]

    def readers(self, call: int) -> list[Reader]:
        """Who is given what a call made, through copies."""
        found: list[Reader] = []
        for reader in self._readers.get(call, ()):
            found += self.readers(reader[0]) if isinstance(reader[0], int) and self.is_copy(reader[0]) else [reader]
        return found


class Paired:
    """Both programs of a body, as run, side by side: what reads the same in both, and what stands in the place of what."""

    def __init__(self, programs: Programs, ours: Ran, theirs: Ran, near: float = NOTHING) -> None:
        self._programs, self._ran, self._near = programs, Both(ours, theirs), near
        self.makers = Both(Makers(programs, "reference"), Makers(programs, "target"))
        self._partner = Both(programs.aligned, {t: r for r, t in programs.aligned.items()})

    def same(self, ours: Reader, theirs: Reader) -> bool:
        """Whether the same is read at two places, one of each program: equal values, or of aligned calls where these were not kept."""
        makers = self.makers
        sources = Both(makers.reference.source(ours), makers.target.source(theirs))
        values = Both(makers.reference.copied(ours), makers.target.copied(theirs))
        one, other = self.contents("reference", ours), self.contents("target", theirs)
        if sources.reference is None and sources.target is None and values.reference is not None and values.target is not None:
            incoming = self._programs.incoming
            apart = one is not None and other is not None and one.size == other.size and not alike(one, other, self._near)
            if not apart and incoming.number("reference", values.reference) == incoming.number("target", values.target):
                return True
        if one is None or other is None:
            here, there = sources.reference, sources.target
            return here is not None and there is not None and self._programs.aligned.get(here) == there
        if one.size != other.size and any(self._programs.together):
            return False  # what one step has is no part that a fused product makes
        return alike(one, other, self._near)

    def contents(self, side: str, reader: Reader) -> Array | None:
        """What is read at a place, where that was kept."""
        ran: Ran = getattr(self._ran, side)
        if not isinstance(reader[0], int):
            return ran.cuts.get((reader[0][0 if side == "reference" else 1], reader[1]))
        if (reader[0], reader[1]) in ran.read:
            return ran.read[reader[0], reader[1]]
        makers: Makers = getattr(self.makers, side)
        value, before = makers.value(reader), makers.copied(reader)
        if value in ran.came_in:
            return ran.came_in[value]
        made = makers.made(reader, ran)
        return made if made is not None or before is None else ran.came_in.get(before)

    def agree(self, target: int) -> bool:
        """Whether a call of the target's makes what its partner makes, and no more."""
        ours = self._ran.reference.results.get(self._partner.target.get(target, -1))
        theirs = self._ran.target.results.get(target)
        if not ours or not theirs or ours.keys() != theirs.keys():
            return False
        return all(made.size == theirs[at].size and alike(made, theirs[at], self._near) for at, made in ours.items())

    def equal_calls(self, target: int) -> list[int]:
        """The reference's calls that make what one of the target's does."""
        there = self._ran.target.results.get(target, {}).get("out")
        if there is None:
            return []
        results = self._ran.reference.results.items()
        return [call for call, made in results if any(alike(one, there, self._near) for one in made.values())]

    def between(self, side: str, call: int) -> int | None:
        """Of calls without partner, `call` and what hangs on it, the one after which the other program goes on where these end.

        That is: wherever their results go, in calls that both programs make, the other program gives on what it is given. Of a module
        that the target never runs the first call stands for them. None where the other program does not go on so.
        """
        makers: Makers = getattr(self.makers, side)
        if any(self._programs.together) and getattr(self._programs.runs, side).operation(call).writes:
            return None  # what steps put in a cache one after the other is no more than what one puts there
        for inside in (self._around(side, call, before=before) for before in (True, False)):
            group = sorted(inside)
            ends = [end for one in group for end in makers.readers(one) if end[0] not in inside]
            begins = [given for one in group for given in makers.given(one) if makers.source(given) not in inside]
            for begin in begins if ends else ():
                if all(self._goes_on(side, begin, end) and not self._beside(makers, begin, end) for end in ends):
                    first = begin[0] if isinstance(begin[0], int) else call
                    lacking = [one for one in group if self._is_in_other_module(one)] if side == "reference" else []
                    return min(lacking, default=first)
        return None

    def _is_in_other_module(self, reference: int) -> bool:
        return int(self._programs.runs.reference.file.calls.parent[reference]) in self._programs.body.unpaired.reference

    def _goes_on(self, side: str, given: Reader, end: Reader) -> bool:
        """Whether the other program gives on, where one reads the end of a way, what that way begins with."""
        there = self._there(side, end)
        if self.same(there, given) if side == "target" else self.same(given, there):
            return True
        other: Literal["reference", "target"] = "target" if side == "reference" else "reference"
        whole, read, makers = self.contents(side, given), self.contents(other, there), getattr(self.makers, side)
        part = None if whole is None else makers.part(end, whole)
        return part is not None and read is not None and part.shape == read.shape and alike(part, read, self._near)

    def _beside(self, makers: Makers, given: Reader, end: Reader) -> bool:
        """Whether what a way begins with is given to where it ends anyway: a sum of both may have them in either order."""
        if not isinstance(end[0], int):
            return False
        source, value = makers.source(given), makers.value(given)
        return any(
            makers.source(other) == source and (source is not None or makers.value(other) == value)
            for other in makers.given(end[0])
            if other != end
        )

    def _there(self, side: str, end: Reader) -> Reader:
        """The place in the other program."""
        partner: Mapping[int, int] = getattr(self._partner, side)
        return (partner[end[0]], end[1]) if isinstance(end[0], int) else end

    def _around(self, side: str, call: int, *, before: bool) -> set[int]:
        """A call and those without partner that are given what it makes, or also make what it is given."""
        makers: Makers = getattr(self.makers, side)
        partner: Mapping[int, int] = getattr(self._partner, side)
        found, left = {call}, [call]
        while left:
            one = left.pop()
            near: list[int | Pair | None] = [reader[0] for reader in makers.readers(one)]
            near += [makers.source(given) for given in makers.given(one)] if before else []
            for other in near:
                if isinstance(other, int) and other not in partner and other not in found:
                    found.add(other)
                    left.append(other)
        return found

    def is_in_place_of(self, reference: int, target: int) -> bool:
        """Whether two calls without partner are given the same, and what they make goes to the same places.

        The target's may be given a part of it: a product without its bias.
        """
        makers = self.makers
        given = makers.reference.given(reference), makers.target.given(target)
        ends = {self._paired(reader) for reader in makers.reference.readers(reference)}
        left = iter(given[0])
        return (
            bool(given[1])
            and all(any(self.same(one, other) for one in left) for other in given[1])
            and None not in ends
            and bool(ends)
            and ends == set(makers.target.readers(target))
        )

    def _paired(self, reader: Reader) -> Reader | None:
        """A place of the reference's in the target's program."""
        if not isinstance(reader[0], int):
            return reader
        there = self._programs.aligned.get(reader[0])
        return None if there is None else (there, reader[1])


def _lying(memory: Array, begin: int, place: Place) -> Array:
    """The elements of a memory that lie at a place; `begin`: where the memory begins."""
    return np.lib.stride_tricks.as_strided(memory[place.offset - begin :], place.shape, [memory.itemsize * step for step in place.strides])


def alike(one: Array, other: Array, near: float = NOTHING) -> bool:
    """Whether two values are the same."""
    if one.shape != other.shape:
        return Equals([other], near).has(one) or Equals([one], near).has(other)
    return row_difference(unmasked(one), unmasked(other)).figure <= near
