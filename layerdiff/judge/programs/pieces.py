"""`Pieces`: what is asked of calls that are one in pieces is asked of each, and what each makes is put together (`Together`).

So whoever runs a program sees one call, as in the other run, and changes all that are it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.together import Block, Together
from layerdiff.trace.along import Shape
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.joining import WHOLE

if TYPE_CHECKING:
    from layerdiff.judge.programs.running import Programs, Ran, Redone

Array = NDArray[Any]
Watch = bool | frozenset[int]


class Pieces:
    """Of the program of one side."""

    def __init__(self, programs: Programs, side: str) -> None:
        self._run = getattr(programs.runs, side)
        self._together: Together = getattr(programs.together, side)
        self._other: Together = programs.together.target if side == "reference" else programs.together.reference
        self._partner = programs.aligned if side == "reference" else programs.partners

    def __bool__(self) -> bool:
        return bool(self._together) or bool(self._together.own)

    def each(
        self,
        watch: Watch,
        taken: Mapping[int, Mapping[str, Array]],
        redone: Mapping[int, Redone],
        pictures: Mapping[int, Any],
    ) -> tuple[Watch, Mapping[int, Mapping[str, Array]], Mapping[int, Redone], Mapping[int, Any]]:
        """What is asked of calls, of each piece of them."""
        members = self._together.calls
        watched = watch if isinstance(watch, bool) else frozenset(one for call in watch for one in members(call))
        ways = {one: way for call, way in redone.items() for one in members(call)}
        others = {one: self._picture(call, one, picture) for call, picture in pictures.items() for one in members(call)}
        return watched, self._taken(taken), {**ways, **redone}, {**others, **pictures}

    def _taken(self, taken: Mapping[int, Mapping[str, Array]]) -> dict[int, Mapping[str, Array]]:
        found: dict[int, Mapping[str, Array]] = {}
        for call, results in taken.items():
            members = self._together.calls(call)
            for one in members:
                parts = {at: self._part(one, at, result) for at, result in results.items()}
                if one == call or (one not in taken and all(part is not results[at] for at, part in parts.items())):
                    found[one] = parts
        return found

    def _part(self, call: int, position: str, whole: Array) -> Array:
        """What one call has of results that may be those of all."""
        parts = self._together.apart(call, position, whole)
        return parts[self._together.calls(call).index(call)] if parts else whole

    def _picture(self, call: int, one: int, picture: Any) -> Any:
        """A call's other arguments, as those of another piece of it: what is not as it was recorded is as it is there."""
        known, own = self._run.operation(call).picture, self._run.operation(one).picture
        if one == call or known is None or own is None:
            return picture
        args = [
            own["args"][i] if i < min(len(own["args"]), len(known["args"])) and thing == known["args"][i] else thing
            for i, thing in enumerate(picture["args"])
        ]
        kwargs = {
            name: own["kwargs"][name] if name in own["kwargs"] and thing == known["kwargs"].get(name) else thing
            for name, thing in picture["kwargs"].items()
        }
        return {"args": args, "kwargs": kwargs}

    def _like(self, call: int, position: str) -> Shape | None:
        """The shape that the other run has there."""
        there = self._partner.get(self._together.calls(call)[-1])
        return None if there is None else self._other.shape(there, position)

    def as_one(self, ran: Ran) -> Ran:
        """What was made, and given, with the pieces put together."""
        lacking: dict[int, Block] = {}
        results: dict[int, dict[str, Array]] = {}
        for call in ran.results:
            if call in self._together.own:
                if self._run.operation(call).name == WHOLE:
                    results[call] = ran.results[call]
                continue
            calls = self._together.calls(call)
            if calls[-1] != call:
                continue
            each = [ran.results.get(one) for one in calls]
            whole = self._whole(call, each, lacking) if len(calls) > 1 else None
            if whole is None:
                results |= {one: ran.results[one] for one in calls if one in ran.results}
            else:
                results |= dict.fromkeys(reversed(calls), whole)
        operands = {call: self._operands(ran, call) for call in ran.operands}
        return replace(ran, results=results, read=self._read(ran), inside=self._inside(ran), operands=operands, lacking=lacking)

    def _whole(self, call: int, each: Sequence[dict[str, Array] | None], lacking: dict[int, Block]) -> dict[str, Array] | None:
        found: dict[str, Array] = {}
        for position in each[-1] or {}:
            parts = [one[position] for one in each if one is not None and position in one]
            joined = self._together.joined(call, parts, self._like(call, position)) if len(parts) == len(each) else None
            if joined is None:
                return None
            found[position] = joined[0]
            if joined[1] is not None:
                lacking[call] = joined[1]
        return found

    def _read(self, ran: Ran) -> dict[tuple[int, str], Array]:
        found: dict[tuple[int, str], Array] = {}
        for (call, position), own in ran.read.items():
            if call in self._together.own or (call, position) in found:
                continue
            calls = self._together.calls(call)
            known = [ran.read[one, position] for one in calls if (one, position) in ran.read]
            joined = self._together.joined(call, known) if len(known) == len(calls) > 1 else None
            found |= {(call, position): own} if joined is None else dict.fromkeys(((one, position) for one in calls), joined[0])
        return found

    def _inside(self, ran: Ran) -> dict[int, list[Array]]:
        found: dict[int, list[Array]] = {}
        for call, made in ran.inside.items():
            if call in found:
                continue
            calls = self._together.calls(call)
            each = [ran.inside.get(one, []) for one in calls]
            joined = [self._together.joined(call, parts) for parts in zip(*each, strict=False)] if len(each) > 1 else []
            if joined and all(one is not None for one in joined):
                whole = [one[0] for one in joined if one is not None]
                found |= {one: whole for one in calls}
            else:
                found[call] = [one[0] if one is not None else x for one, x in zip(joined, made, strict=False)] or made
        return found

    def _operands(self, ran: Ran, call: int) -> Arguments:
        """The operands of a choice."""
        own = ran.operands[call]
        each = [ran.operands.get(one) for one in self._together.calls(call)]
        if len(each) == 1 or any(one is None or len(one.args) != len(own.args) for one in each):
            return own
        args = []
        for i, thing in enumerate(own.args):
            parts = [one.args[i] for one in each if one is not None]
            joined = self._together.joined(call, parts) if all(isinstance(part, np.ndarray) for part in parts) else None
            args.append(thing if joined is None else joined[0])
        return Arguments(tuple(args), own.kwargs)
