"""`Together`: operator calls of one program that are one call in pieces, each of a step of several that stand as one (`trace/joined.py`).

What they make, put together along the tokens, is what the other run makes at once: so is it compared, and so does one of them stand for
all. The last one does: it has what those before left, too.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.sequence import align_sequences
from layerdiff.judge.programs.left_out import left_out
from layerdiff.judge.programs.of_step import Part, parts_of_step, without_own
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.along import How, Layout, Shape, Way, ways
from layerdiff.trace.chunks import Chunks
from layerdiff.trace.joined import Joined, own_of
from layerdiff.trace.schema import ABSENT

Array = NDArray[Any]


@dataclass(frozen=True)
class Group:
    """The calls that are one, in order.

    `chunks`: the steps. Where the first ones have no such call, as there was no cache yet, all that it makes is what has grown.
    """

    calls: tuple[int, ...]
    chunks: Chunks

    def ways(self, shapes: Sequence[Shape]) -> list[Way]:
        """How values of these shapes, one of each call, may be one."""
        layout, count = self.chunks.layout, len(self.calls)
        if count == len(layout.grids):
            return list(ways(shapes, layout))
        if layout.order:
            return []
        return [way for way in ways(shapes, Layout(layout.grids[-count:])) if way.along is None]

    def own(self) -> list[int]:
        """Of each call how many tokens its request has last that its run alone has, where it is of one."""
        pieces = self.chunks.layout.pieces
        return [of_step[0][-1] if len(of_step) == 1 else 0 for of_step in pieces] if pieces else [0] * len(self.calls)


@dataclass(frozen=True)
class Block:
    """How a value lies whose pieces have not all keys, their shapes, and of how many keys the other run may have some."""

    how: How
    shapes: tuple[Shape, ...]
    keys: tuple[int, ...]

    def seen(self, shape: Shape) -> NDArray[np.bool_]:
        """Where a value of that shape has such keys."""
        parts = self.how.parts(np.ones(shape, np.bool_), self.shapes)
        return self.how.whole([part[..., :count] for part, count in zip(parts, self.keys, strict=True)])


class _Described(NamedTuple):
    """The calls of a step, in order, and what they do, exactly and at least."""

    calls: Sequence[int]
    exact: Sequence[Hashable]
    loose: Sequence[Hashable]


def _beside(of_step: _Described, last: _Described) -> dict[int, int]:
    """By call of the last step the one of an earlier step that does the same."""
    pairs = align_sequences(of_step.exact, last.exact, [of_step.loose, last.loose])
    return {last.calls[j]: of_step.calls[i] for i, j in pairs}


class Together:
    """Of the operator calls among `items` of one program. Where a size may be that of tokens or another, it is as the other run has it."""

    def __init__(self, run: Recorded, items: Sequence[int]) -> None:
        self._run, self._items = run, items
        self._likely: Mapping[str, Collection[Shape]] = {}
        self.own = own_of(run.file)
        self._groups: dict[int, Group] = {}
        self._ones: dict[int, bool] = {}
        """By the last call of a group."""
        self._chunks: list[Chunks] = []
        self._parts: dict[tuple[Shape, int], dict[int, list[Part]]] = {}
        if isinstance(run.file, Joined):
            self._find(run.file, [item for item in items if item in run.file.pieces])

    @classmethod
    def both(cls, runs: Both[Recorded], items: Both[tuple[int, ...]]) -> Both[Together]:
        """Of the programs of both sides."""
        found = Both(*(cls(run, of) for run, of in zip(runs, items, strict=True)))
        for one, other in ((found.reference, found.target), (found.target, found.reference)):
            if one:
                one._likely = other._shapes_made()
        return found

    def _shapes_made(self) -> dict[str, set[Shape]]:
        """By operator the shapes that calls make, together or by themselves."""
        run, found = self._run, dict[str, set[Shape]]()
        for item in self._items:
            if not run.is_module(item) and self.stands(item):
                group, operation = self._groups.get(item), run.operation(item)
                for position, value in operation.outputs.items():
                    shapes = self._shapes_at(item, position)
                    found.setdefault(operation.name, set()).update(
                        [run.file.shape(value)] if group is None else [way.shape for way in group.ways(shapes)]
                    )
        return found

    def _find(self, file: Joined, items: Sequence[int]) -> None:
        self._chunks = list({id(chunks): chunks for chunks, _ in (file.pieces[item] for item in items)}.values())
        by_steps: dict[int, list[int]] = {}
        for item in items:
            by_steps.setdefault(id(file.pieces[item][0]), []).append(item)
        for calls in by_steps.values():
            chunks = file.pieces[calls[0]][0]
            each: list[list[int]] = [[] for _ in chunks.roots]
            for call in calls:
                each[file.pieces[call][1]].append(call)
            sides = [self._described(chunks.layout, piece, of_step) for piece, of_step in enumerate(each)]
            beside = [_beside(side, sides[-1]) for side in sides[:-1]]
            for call in each[-1]:
                members = [other.get(call) for other in beside]
                known = [one for one in members if one is not None]
                whole = bool(known) or len(chunks.roots) == 1  # one step may lie otherwise
                if whole and members[len(members) - len(known) :] == known:  # of the first steps none: there was no cache yet
                    group = Group((*known, call), chunks)
                    self._groups.update(dict.fromkeys(group.calls, group))

    def _described(self, layout: Layout, piece: int, calls: Sequence[int]) -> _Described:
        """What the calls of one step do: operators, and shapes of results, sizes that follow from the number of tokens by name."""
        (requests, count), so_far = layout.grids[piece], sum(layout.tokens[: piece + 1])
        ends: dict[int, object] = {layout.ends[piece]: "ends"} if layout.ends else {}
        named: dict[int, object] = {**ends, so_far: "so far", requests * count: "all", count: "tokens"}
        operations = [self._run.operation(call) for call in calls]
        loose = [(operation.name, len(operation.inputs)) for operation in operations]
        shapes = [[self._run.file.shape(value) for value in operation.outputs.values()] for operation in operations]
        exact = [
            (*name, tuple(tuple(named.get(size, size) for size in shape) for shape in made))
            for name, made in zip(loose, shapes, strict=True)
        ]
        return _Described(calls, exact, loose)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def calls(self, call: int) -> tuple[int, ...]:
        """Those that one stands for, itself among them."""
        group = self._groups.get(call)
        return (call,) if group is None else group.calls

    def is_one(self, call: int) -> bool:
        """Whether a call is a piece of one, or is one whose values lie otherwise."""
        return call in self._groups

    def counts_a_step(self, call: int) -> bool:
        """Whether what a call is given besides values may be sizes of its step: the other pieces have others, or it is given no values."""
        operations = [self._run.operation(one) for one in self.calls(call)]
        own = not operations[0].inputs and (len(operations) > 1 or self.piece_of(call) >= 0)
        return own or any(one.picture != operations[0].picture for one in operations)

    def stands(self, call: int) -> bool:
        """Whether a call stands for itself, or for all of its group."""
        return call not in self.own and self.calls(call)[-1] == call

    def _way(self, group: Group, shapes: Sequence[Shape], like: Shape | None) -> Way | None:
        """How values of these shapes are one; `like` what the other run has there."""
        fitting, known = group.ways(shapes), self._likely.get(self._run.operation(group.calls[-1]).name, ())
        likely = (way for way in fitting if way.shape in known)
        found = next((way for way in fitting if way.shape == like), next(likely, next(iter(fitting), None)))
        return found if found is None or like is None else found.filled_up((like,))

    def _shapes_at(self, call: int, position: str) -> list[Shape]:
        values = [self._run.operation(one).outputs.get(position) for one in self.calls(call)]
        return [self._run.file.shape(value) for value in values if value is not None]

    def shape(self, call: int, position: str, like: Shape | None = None) -> Shape | None:
        """That of what calls make together at a position; None where that is not one."""
        group, shapes = self._groups.get(call), self._shapes_at(call, position)
        if group is None or len(shapes) != len(group.calls):
            return shapes[-1] if shapes else None
        way = self._way(group, shapes, like)
        return None if way is None else way.shape

    def joined(self, call: int, parts: Sequence[Array], like: Shape | None = None) -> tuple[Array, Block | None] | None:
        """What calls made, or were given, together, one part each; how it lies where a part has not all keys. None where it is not one."""
        group = self._groups.get(call)
        fits = group is not None and len(parts) == len(group.calls)
        way = self._way(group, [part.shape for part in parts], like) if group is not None and fits else None
        if group is None or way is None:
            return None
        if way.along is None:
            alike = len(parts) == len(group.chunks.roots) and all(np.array_equal(part, parts[-1]) for part in parts)
            return (parts[-1], None) if way.grown or alike else None
        shapes = tuple(part.shape for part in parts)
        keys = tuple(shape[-1] - own for shape, own in zip(shapes, group.own(), strict=True))
        return way.along.whole(parts), Block(way.along, shapes, keys) if way.along.keys else None

    def apart(self, call: int, position: str, whole: Array) -> list[Array]:
        """What calls make together, of each of them, with what was recorded of other tokens; nothing where it does not lie so."""
        group, shapes = self._groups.get(call), self._shapes_at(call, position)
        fitting = [] if group is None or len(shapes) != len(group.calls) else group.ways(shapes)
        way = next((way for way in fitting if way.shape == whole.shape and way.along is not None), None)
        if way is None or way.along is None:
            return []
        values = [self._run.operation(one).outputs[position] for one in self.calls(call)]
        rest = left_out(way.along, shapes, lambda: [self._run.file.read(value) for value in values])
        return way.along.parts(whole, shapes, rest)

    def piece_of(self, call: int) -> int:
        """Of which step a call is, where it stands for itself; -1 for others."""
        file, group = self._run.file, self._groups.get(call)
        known = file.pieces.get(call) if isinstance(file, Joined) else None
        return ABSENT if known is None or (group is not None and self._is_one(group)) else known[1]

    def _is_one(self, group: Group) -> bool:
        """Whether what calls make can be put together."""
        if (last := group.calls[-1]) not in self._ones:
            self._ones[last] = self._can_be_one(group)
        return self._ones[last]

    def _can_be_one(self, group: Group) -> bool:
        each = [self._shapes_at(group.calls[-1], position) for position in self._run.operation(group.calls[-1]).outputs]
        found = [self._way(group, shapes, None) for shapes in each if len(shapes) == len(group.calls)]
        return len(found) == len(each) and all(way is not None and (way.along is not None or way.grown) for way in found)

    def without_own(self, value: Array, piece: int) -> Iterator[Array]:
        """What a value of a step may have of both runs, where it has tokens, too, that its run alone has."""
        for layout in (chunks.layout for chunks in self._chunks if piece < len(chunks.layout.grids)):
            for part in without_own(layout, value.shape, piece):
                yield value[part]

    def is_alone(self, piece: int) -> bool:
        """Whether a step has no token that both runs have."""
        layouts = [chunks.layout for chunks in self._chunks if piece < len(chunks.layout.grids)]
        return bool(layouts) and all(layout.order and not layout.pieces[piece] for layout in layouts)

    def parts(self, shape: Shape, piece: int, size: int) -> Sequence[Part]:
        """What a step may have, of that size, of a value of that shape which the other run makes at once."""
        by_size = self._parts.get((shape, piece))
        if by_size is None:
            by_size = self._parts[shape, piece] = {}
            for layout in (chunks.layout for chunks in self._chunks if piece < len(chunks.layout.grids)):
                for part in parts_of_step(layout, shape, piece):
                    by_size.setdefault(part.size(shape), []).append(part)
        return by_size.get(size, ())
