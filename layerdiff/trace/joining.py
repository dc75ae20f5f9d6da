"""`Joining`: the tables of a trace in which several steps of a root stand as one (see `trace/joined.py`).

Calls of the steps go together by module and occurrence. Inside a module first the operators of the first step run, as far as to the next
module inside, then those of the second: what a later one reads of an earlier one, such as a cache, was made by then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.along import First, How, in_json, ways
from layerdiff.trace.chunks import Chunks, Spot
from layerdiff.trace.joined_versions import versions_in_order
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import ABSENT, CALLS, EDGES, VALUES, CallKind, CallStatus, Known, Role, Storage

Column = NDArray[Any]
WHOLE: Final = "joined.whole.default"
PART: Final = "joined.part.default"
_HIDES: Final = -1e4
"""A number as low hides a score that it is added to."""


@dataclass(frozen=True)
class Whole:
    """A value that is made of several, or of one. `fill`: bits of their dtype."""

    parts: tuple[int, ...]
    how: How | First
    fill: Any = 0


@dataclass
class Tables:
    """What was made: columns by name, texts beyond those of the file, and the values beyond its own."""

    calls: dict[str, Column]
    values: dict[str, Column]
    edges: dict[str, Column]
    texts: list[str]
    wholes: dict[int, Whole]
    lasts: dict[int, tuple[int, ...]]
    """By value that stands for those of all steps, although these are others: all of them."""
    own: frozenset[int]
    """Calls that nobody made: how values are put together and taken apart."""
    pieces: dict[int, tuple[Chunks, int]]
    """By operator call inside steps that are one: which these are, and of which of them it is."""
    roots: dict[int, Chunks]
    """By root call of such."""
    moved: dict[int, int]
    """By root call of the file which it is now; of such the last."""


class Joining:
    """Makes the tables."""

    def __init__(self, file: TraceFile, chunks: Sequence[Chunks], refused: frozenset[int] = frozenset()) -> None:
        """`refused`: values, the last of those of all steps, that are not one with these."""
        self._file, self._refused = file, refused
        calls = file.calls
        self._columns: dict[str, list[int]] = {name: [] for name in CALLS}
        self._given: dict[str, list[int]] = {name: np.asarray(getattr(calls, name)).tolist() for name in CALLS}
        self._edges: list[tuple[int, int, int, int]] = []
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._first_text = file.text_count
        self.wholes: dict[int, Whole] = {}
        self._lasts: dict[int, tuple[int, ...]] = {}
        self._known: dict[tuple[tuple[int, ...], How], int | None] = {}
        self._own: set[int] = set()
        self._pieces: dict[int, tuple[Chunks, int]] = {}
        self._state: set[int] = set()
        self._roots: dict[int, Chunks] = {}
        self._moved: dict[int, int] = {}
        self._versions = np.array(file.values.version)
        self._has_operators = bool(np.any(np.asarray(calls.kind) == CallKind.OPERATOR))
        self._beyond = int(np.asarray(calls.step).max(initial=0)) + 2
        """A step that nobody made: of the calls that are this file's own."""
        self._children: list[list[int]] = [[] for _ in range(len(calls))]
        tops: list[int] = []
        for call, parent in enumerate(self._given["parent"]):
            (self._children[parent] if parent >= 0 else tops).append(call)
        of_root = {root: one for one in chunks for root in one.roots}
        for call in tops:
            one = of_root.get(call)
            self._moved[call] = len(self._columns["parent"])
            if one is None:
                self._copy(call, ABSENT)
            elif call == one.roots[-1]:
                self._now, self._order = one, list[int]()
                self._step = self._given["step"][one.roots[0]]
                self._roots[len(self._columns["parent"])] = one
                self._module(list(one.roots), ABSENT)
                self._versions = versions_in_order(file, self._order, self._versions)

    def tables(self) -> Tables:
        """All of it."""
        calls = {name: np.array(self._columns[name], dtype) for name, dtype in CALLS.items()}
        edges = dict(zip(EDGES, np.array(self._edges, np.int64).reshape(-1, len(EDGES)).T, strict=True))
        texts, wholes = self._texts, self.wholes
        values = {name: np.asarray(getattr(self._file.values, name)) for name in VALUES} | {"version": self._versions}
        if wholes:
            more = {name: np.array(column, VALUES[name]) for name, column in self._columns_of_wholes().items()}
            values = {name: np.concatenate([values[name], more[name]]) for name in VALUES}
        return Tables(
            calls,
            values,
            {name: column.astype(EDGES[name]) for name, column in edges.items()},
            texts,
            wholes,
            self._lasts,
            frozenset(self._own),
            self._pieces,
            self._roots,
            self._moved,
        )

    # calls

    def _row(self, call: int, parent: int, **others: int) -> int:
        """Append a call as it was recorded, but for its parent and `others`."""
        for name, column in self._columns.items():
            column.append(others[name] if name in others else self._given[name][call])
        self._columns["parent"][-1] = parent
        return len(self._columns["parent"]) - 1

    def _copy(self, call: int, parent: int, piece: int = ABSENT, number: int = ABSENT) -> None:
        """A call and all inside, as recorded. Of one of steps that are one: of which, and which of its name it is now in its module."""
        new = self._row(call, parent, **({} if piece < 0 else {"number": number, "step": self._step}))
        for edge in self._file.edge_order[self._file.edge_start[call] : self._file.edge_start[call + 1]].tolist():
            edges = self._file.edges
            self._edges.append((new, int(edges.role[edge]), int(edges.position[edge]), int(edges.value[edge])))
        if piece >= 0:
            self._order.append(call)
            self._pieces[new] = self._now, piece
        for child in self._children[call]:
            self._copy(child, new, piece, self._given["number"][child])

    def _module(self, calls: Sequence[int], parent: int) -> None:
        """One call for those of all steps; ABSENT where a step has none."""
        there = [call for call in calls if call >= 0]
        failed = [call for call in there if self._given["status"][call] != CallStatus.RETURNED]
        occurrence = self._given["occurrence"][there[0]]
        new = self._row((failed or there)[-1], parent, step=self._step, occurrence=occurrence)
        given = self._crossing(calls, (Role.INPUT, Role.WEIGHT), parent)
        for role, position, value in given:
            self._edges.append((new, role, self._number(position), value))
        self._take_apart(new, [value for _, _, value in given])
        if parent == ABSENT:
            self._state = self._handed_on(calls, [value for _, _, value in given])
            self._handed_before(new, calls[0], {position for _, position, _ in given})
        numbers: dict[int, int] = {}
        waiting = [list(self._children[call]) if call >= 0 else [] for call in calls]
        for key in self._in_order(waiting):
            inside = [self._run_to(new, piece, own, key, numbers) for piece, own in enumerate(waiting)]
            crossing = self._crossing(inside, (Role.INPUT,), new)
            self._put_together(new, [value for _, _, value in crossing])
            self._module(inside, new)
            self._take_apart(new, [value for _, _, value in self._crossing(inside, (Role.OUTPUT,), new)])
        for piece, own in enumerate(waiting):
            self._run_to(new, piece, own, None, numbers)
        made = self._crossing(calls, (Role.OUTPUT,), parent)
        self._put_together(new, [value for _, _, value in made])
        for role, position, value in made:
            self._edges.append((new, role, self._number(position), value))

    def _handed_on(self, calls: Sequence[int], given: Sequence[int]) -> set[int]:
        """Of the floats that a root is handed in later steps those that are no part of what it is `given` in all: state."""
        parts = {part for value in given if value in self.wholes for part in self.wholes[value].parts}
        later = {edge.value for call in calls[1:] for edge in self._file.edges_of(call) if edge.role == Role.INPUT}
        return {value for value in later - parts if self._is_float(value)}

    def _handed_before(self, new: int, first: int, given: Collection[str]) -> None:
        """What a root is handed of tokens that one run had before anything was recorded. `first`: its first call; `given`: what is told."""
        for position, (value, way) in self._now.before.items():
            self._edges.append((new, Role.INPUT, self._number(position), self._whole_of((value,), way, 0)))
        for edge in self._file.edges_of(first) if self._now.begun else ():
            if edge.role == Role.INPUT and edge.position not in given and self._is_float(edge.value):
                self._edges.append((new, Role.INPUT, self._number(edge.position), edge.value))

    def _is_module(self, call: int) -> bool:
        return self._given["kind"][call] == CallKind.MODULE

    def _key(self, call: int) -> tuple[int, int]:
        return self._given["module"][call], self._given["occurrence"][call]

    def _in_order(self, waiting: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """The modules inside, those that not all steps ran among the others."""
        found: list[tuple[int, int]] = []
        for own in waiting:
            at = 0
            for key in (self._key(call) for call in own if self._is_module(call)):
                if key in found:
                    at = found.index(key) + 1
                else:
                    found.insert(at, key)
                    at += 1
        return found

    def _run_to(self, parent: int, piece: int, waiting: list[int], key: tuple[int, int] | None, numbers: dict[int, int]) -> int:
        """What a step runs before it calls a module, and that call; ABSENT where it does not. All that is left where `key` is None."""
        calls = [call for call in waiting if self._is_module(call) and self._key(call) == key]
        if key is not None and not calls:
            return ABSENT
        while waiting and not self._is_module(waiting[0]):
            call = waiting.pop(0)
            operator = self._given["operator"][call]
            numbers[operator] = numbers.get(operator, -1) + 1
            self._copy(call, parent, piece, numbers[operator])
        if calls:
            waiting.remove(calls[0])
        return calls[0] if calls else ABSENT

    def _made_here(self, parent: int, operator: str, inputs: Mapping[str, int], outputs: Mapping[str, int], args: list[Any]) -> None:
        """A call that is this file's own."""
        detail = self._number(json.dumps({"arguments": {"args": args, "kwargs": {}}}))
        absent = dict.fromkeys(("type", "stack"), ABSENT)
        new = self._row(
            0,
            parent,
            kind=CallKind.OPERATOR,
            status=CallStatus.RETURNED,
            root=self._columns["root"][parent],
            module=self._columns["module"][parent],
            operator=self._number(operator),
            number=len(self._own),
            step=self._beyond,
            occurrence=0,
            detail=detail,
            **absent,
        )
        self._own.add(new)
        self._edges += [(new, Role.INPUT, self._number(position), value) for position, value in inputs.items()]
        self._edges += [(new, Role.OUTPUT, self._number(position), value) for position, value in outputs.items()]

    def _put_together(self, parent: int, values: Sequence[int]) -> None:
        for value in dict.fromkeys(values) if self._has_operators else ():
            whole = self.wholes.get(value)
            if whole is not None and not isinstance(whole.how, First):
                inputs = {f"in[0][{i}]": part for i, part in enumerate(whole.parts)}
                args = [[{"tensor": position} for position in inputs], in_json(whole.how), _fill_in_json(self._file, whole)]
                self._made_here(parent, WHOLE, inputs, {"out": value}, args)

    def _take_apart(self, parent: int, values: Sequence[int]) -> None:
        for value in dict.fromkeys(values) if self._has_operators else ():
            whole = self.wholes.get(value)
            if whole is not None and not isinstance(whole.how, First):
                outputs = {f"out[{i}]": part for i, part in enumerate(whole.parts)}
                shapes = [list(self._file.shape(part)) for part in whole.parts]
                args = [{"tensor": "in[0]"}, in_json(whole.how), _fill_in_json(self._file, whole), shapes]
                self._made_here(parent, PART, {"in[0]": value}, outputs, args)

    # values

    def _crossing(self, calls: Sequence[int], roles: Sequence[Role], parent: int) -> list[tuple[int, str, int]]:
        """What calls that are one are given, or hand on: role, position and value."""
        there = [call for call in calls if call >= 0]
        each = [{(edge.role, edge.position): edge.value for edge in self._file.edges_of(call) if edge.role in roles} for call in there]
        found: list[tuple[int, str, int]] = []
        module = self._file.text(self._given["module"][there[0]]) or ""
        for role, position in each[0]:
            values = [own.get((role, position), ABSENT) for own in each]
            spot = module, self._given["occurrence"][there[0]], int(role), position
            one = None if ABSENT in values else self._one(values, spot, whole=len(there) == len(calls), top=parent == ABSENT)
            if one is not None:
                found.append((int(role), position, one))
        return found

    def _one(self, values: Sequence[int], spot: Spot, *, whole: bool, top: bool) -> int | None:
        """One value for those of all steps; None where they are not one."""
        alone = len(self._now.roots) == 1
        if len(set(values)) == 1 and (spot[2] == Role.WEIGHT or not (alone and self._now.layout.order)):
            return values[0]  # a weight may be as long as a step
        shapes = [self._file.shape(value) for value in values]
        if not whole or values[-1] in self._refused or len({self._file.dtype_name(value) for value in values}) != 1:
            return None
        fitting, expected = list(ways(shapes, self._now.layout)), self._now.expected.get(spot, ())
        chosen = next((way for way in fitting if way.shape in expected), next(iter(fitting), None))
        filled = None if chosen is None else chosen.filled_up(expected).along
        if filled is not None:
            return self._whole(tuple(values), filled)
        if chosen is None or alone:
            return values[0] if alone else None
        first, last = values[0], values[-1]
        given = spot[2] == Role.INPUT
        is_state = given and ((top and self._is_float(first)) or self._state.issuperset(values[1:]))
        if self._place(first) == self._place(last) or (is_state and not self._now.layout.order):
            return first if given else last  # memory that each writes to, or state that each is handed: as it was before
        if chosen.grown:
            return last
        prints = {self._file.fingerprint(value) for value in values}
        if len(prints) > 1 or None in prints:
            if self._now.layout.order:
                return None  # the last step is not the last of each request
            self._lasts[last] = tuple(values)
        return last

    def _place(self, value: int) -> tuple[object, ...]:
        columns = self._file.values
        memory, offset = int(columns.memory[value]), int(columns.memory_offset[value])
        return (value,) if memory < 0 else (memory, offset, self._file.shape(value), int(columns.strides[value]))

    def _is_float(self, value: int) -> bool:
        dtype = self._file.dtype(value)
        return dtype is not None and dtype.kind == "float"

    def _whole(self, parts: tuple[int, ...], how: How) -> int | None:
        key = parts, how
        if key not in self._known:
            fill = self._fill(parts) if how.keys else 0
            self._known[key] = None
            if fill is not None:
                self._known[key] = self._whole_of(parts, how, fill)
        return self._known[key]

    def _whole_of(self, parts: tuple[int, ...], how: How | First, fill: Any) -> int:
        value = len(self._file.values) + len(self.wholes)
        self.wholes[value] = Whole(parts, how, fill)
        return value

    def _fill(self, parts: tuple[int, ...]) -> Any:
        """The bits of what stands where a step has no key yet: what hides it in a mask, and 0 of probabilities; None of anything else."""
        dtype = self._file.dtype(parts[0])
        if dtype is None or dtype.kind not in ("boolean", "float") or not all(self._file.has_bytes(part) for part in parts):
            return None
        if dtype.kind == "boolean":
            return 0
        raw = [self._file.raw(part) for part in parts]
        numbers = [dtype.decode(x) for x in raw]
        least = [float(x.min()) if x.size and not np.isnan(x).any() else 0.0 for x in numbers]
        hides = int(np.argmin(least))
        if least[hides] <= _HIDES:
            return raw[hides].reshape(-1)[int(numbers[hides].argmin())]
        shares = [np.abs(x.astype(np.float64).sum(-1) - 1).max(initial=0.0) for x in numbers]
        return 0 if min(least) >= 0 and max(shares) < 2**-5 else None

    def _columns_of_wholes(self) -> dict[str, list[Any]]:
        file, columns = self._file, self._file.values
        memory = int(np.asarray(columns.memory).max(initial=ABSENT))
        found: dict[str, list[Any]] = {name: [] for name in VALUES}
        for number, whole in enumerate(self.wholes.values()):
            last = whole.parts[-1]
            shape = whole.how.shape([file.shape(part) for part in whole.parts])
            others = dict.fromkeys(("name", "strides", "base", "view", "container", "detail", "placement"), ABSENT)
            others |= dict.fromkeys(("version", "offset", "memory_offset"), 0)
            others |= {"storage": Storage.NONE, "known": Known.NOTHING, "memory": memory + 1 + number}
            nbytes = sum(int(columns.nbytes[part]) for part in whole.parts)
            if isinstance(whole.how, First):
                nbytes = nbytes // max(file.shape(last)[whole.how.axis], 1) * whole.how.count
            others |= {"shape": self._number(json.dumps(list(shape))), "nbytes": nbytes}
            for name, column in found.items():
                column.append(others[name] if name in others else getattr(columns, name)[last])
        return found

    def _number(self, text: str) -> int:
        """The number of a text."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = self._first_text + len(self._texts)
            self._texts.append(text)
        return found


def _fill_in_json(file: TraceFile, whole: Whole) -> Any:
    """What a value is filled up with, in the picture of an argument."""
    dtype = file.dtype(whole.parts[0])
    if not whole.how.keys or dtype is None or dtype.kind == "boolean":
        return 0
    number = float(dtype.decode(np.array([whole.fill], dtype.raw))[0])
    return {"float": str(number)} if np.isinf(number) else number
