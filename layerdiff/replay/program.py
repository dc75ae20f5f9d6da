"""`run_calls` and `run_together`: the calls of a region run again in float64, in the memory that they shared.

Each storage of the recorded run is one flat tensor here, and every value is a view of it at its recorded place. So views need not
run at all, a write in place is seen through every other view, and a value that something else wrote in between is noticed by
its version and taken from outside. What is never written here and read all the same is asked of `incoming`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.arithmetic.registry import contract_of
from layerdiff.errors import TraceError
from layerdiff.replay.casts import of_measures
from layerdiff.replay.memory import Memory
from layerdiff.replay.operators import CannotReplay, run64
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import NotRecorded
from layerdiff.replay.sizes import first_line
from layerdiff.trace.arguments import Arguments, decode
from layerdiff.trace.schema import POINT_TO_POINT

Array = NDArray[Any]


class Watcher(Protocol):
    """What whoever runs a program decides while it runs."""

    def incoming(self, value: int) -> Array:
        """The contents of a value that the program reads and did not make. Raises CannotReplay."""

    def instead(self, operation: Operation) -> Mapping[str, Array] | None:
        """Results to take in place of running a call (a random draw); None to run it."""

    def made(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> Mapping[str, Array] | None:
        """A call has made `results`, by position. Other ones to go on with, or None for these. `args` hold arrays."""

    def handed(self, call: int, position: str, contents: Array) -> None:
        """What a child call is handed; or, for the region's own call, what it returns."""

    def cannot(self, operation: Operation, reason: str) -> Mapping[str, Array]:
        """A call cannot be run: the results to go on with. Raises CannotReplay where there are none."""


@dataclass(frozen=True)
class Child:
    """A call inside a region that is judged by itself: what it is handed is looked at, what it returns comes from outside."""

    handed: Mapping[str, int] = field(default_factory=dict)
    """Value by position."""
    returned: Sequence[int] = ()
    """Values whose contents are asked of `incoming`."""


@dataclass(frozen=True)
class Part:
    """What is run: `items` (operators, and children) of the module call `call`, in order.

    `inputs`: the values that the call was given; `outputs`: those that it returned, by position.
    """

    run: Recorded
    call: int
    items: Sequence[int]
    children: Mapping[int, Child]
    inputs: Sequence[int]
    outputs: Mapping[str, int]
    pictures: Mapping[int, Any] = field(default_factory=dict)
    """By call, arguments to run it with in place of the recorded ones."""
    measures: frozenset[tuple[int, str]] = frozenset()
    """Memories of whole numbers in which measures lie instead: float64."""


@dataclass(frozen=True)
class Meeting:
    """A collective at which a program stands: what it puts in, by position. It goes on with what comes out."""

    operation: Operation
    given: Mapping[str, Array]
    on_its_way: bool = False
    """Whether the program goes on without: of a message it stands only where something is done with the memory that it comes to. Two
    ranks that send to each other would else wait for each other."""


def run_calls(part: Part, watcher: Watcher) -> None:
    """Run a part by itself; what comes out of a collective is asked of `incoming`. Raises CannotReplay where it was not recorded."""
    program = steps(part, watcher)
    with torch.no_grad():
        while advance(program, None) is not None:
            pass


def run_together(
    programs: Sequence[tuple[Part, Watcher]], meet: Callable[[Mapping[Stand, Meeting]], Mapping[Stand, Mapping[str, Array]]]
) -> None:
    """Run the parts of several processes, each as far as it comes without the others.

    `meet`: of the collectives that programs have come to makes the results of those of which all ranks are there.
    Raises CannotReplay where something was not recorded, or none of the collectives can go on.
    """
    running = [steps(part, watcher) for part, watcher in programs]
    met: dict[Stand, Meeting] = {}
    made: dict[Stand, Mapping[str, Array]] = {}
    standing: dict[int, int] = {}
    ready: dict[int, Mapping[str, Array] | None] = dict.fromkeys(range(len(running)))
    with torch.no_grad():
        while ready:
            for i, results in ready.items():
                meeting = advance(running[i], results)
                while meeting is not None and meeting.on_its_way:
                    met[i, meeting.operation.call] = meeting
                    meeting = advance(running[i], None)
                if meeting is not None:
                    standing[i] = call = meeting.operation.call
                    if (i, call) not in made:
                        met.setdefault((i, call), meeting)
            made |= meet(met) if met else {}
            met = {at: meeting for at, meeting in met.items() if at not in made}
            ready = {i: made.pop((i, call)) for i, call in standing.items() if (i, call) in made}
            standing = {i: call for i, call in standing.items() if i not in ready}
    if standing:
        raise CannotReplay("a collective inside has ranks that take no part in it here")


Stand = tuple[int, int]
"""A program by its number, and a call."""
Program = Generator[Meeting, "Mapping[str, Array] | None", None]


def advance(program: Program, results: Mapping[str, Array] | None) -> Meeting | None:
    """Run on to the next collective; None at the end. `results`: those of the one at which it stands."""
    try:
        return program.send(results)
    except StopIteration:
        return None


def steps(part: Part, watcher: Watcher) -> Program:
    """A part as a program that stops at every collective, and is sent what comes out of it."""
    run, memory = part.run, Memory(part.run, watcher.incoming, part.measures)
    for value in part.inputs:
        memory.write(value, watcher.incoming(value))
    coming: list[Operation] = []
    for item in part.items:
        child = part.children.get(item)
        if child is not None:
            yield from _arrived(run, memory, coming, [*child.handed.values(), *child.returned])
            for position, value in child.handed.items():
                watcher.handed(item, position, memory.read(value).numpy().copy())
            for value in child.returned:
                memory.write(value, watcher.incoming(value))
            continue
        operation = run.operation(item)
        if item in part.pictures:
            operation = replace(operation, picture=part.pictures[item])
        if coming and not run.is_view(operation):
            yield from _arrived(run, memory, coming, [*operation.inputs.values(), *operation.outputs.values()])
        if run.is_collective(item):
            given = {position: memory.read(value).numpy().copy() for position, value in operation.inputs.items()}
            meeting = Meeting(operation, given, operation.name in POINT_TO_POINT)
            results = yield meeting
            if meeting.on_its_way:
                coming.append(operation)
            else:
                memory.replace(operation, results or {})
        else:
            _execute(run, memory, operation, watcher, part.measures)
    yield from _arrived(run, memory, coming, list(part.outputs.values()))
    for position, value in part.outputs.items():
        watcher.handed(part.call, position, memory.read(value).numpy().copy())


def _arrived(run: Recorded, memory: Memory, coming: list[Operation], values: Sequence[int]) -> Program:
    """Stand at the messages that are on their way to the memory of some values."""
    places = {run.place(value).memory for value in values} if coming else set()
    for operation in [one for one in coming if any(run.place(value).memory in places for value in one.outputs.values())]:
        coming.remove(operation)
        results = yield Meeting(operation, {})
        memory.replace(operation, results or {})


def _execute(run: Recorded, memory: Memory, operation: Operation, watcher: Watcher, measures: frozenset[tuple[int, str]]) -> None:
    instead = watcher.instead(operation)
    if instead is not None:
        memory.accept(operation, instead)
        return
    if run.is_view(operation):  # nothing moves; what it shows is asked for when it is read
        return
    try:
        if not operation.complete:
            raise CannotReplay("it was recorded only in part")
        writes = bool(operation.writes) or _may_write(operation.name)
        args = decode(operation.picture, lambda position: memory.read(operation.inputs[position], owned=writes))
        name = operation.name
        if measures and any(run.place(value).memory in measures for value in (*operation.inputs.values(), *operation.outputs.values())):
            name, args = of_measures(name, args)
        made = _run(run, name, args)
    except KeyError as error:
        results: Mapping[str, Array] = watcher.cannot(operation, f"its operand {error} was not recorded")
        memory.accept(operation, results)
        return
    except (CannotReplay, TraceError) as error:
        memory.accept(operation, watcher.cannot(operation, str(error)))
        return
    memory.wrote(operation)
    positions = positions_of(operation, len(made))
    if not operation.writes:
        made = _apart(made, args)
    made_here = {position: tensor.numpy() for position, tensor in zip(positions, made, strict=False) if position in operation.outputs}
    shown = _arrays(args)
    other = watcher.made(operation, shown, made_here)
    memory.accept(operation, made_here if other is None else other)


def _apart(made: tuple[Tensor, ...], args: Arguments) -> tuple[Tensor, ...]:
    """Results in memory of their own: an operator that had nothing to do returns its operand."""
    given = {tensor.untyped_storage().data_ptr() for tensor in _tensors_in([*args.args, *args.kwargs.values()])}
    return tuple(tensor.clone() if tensor.untyped_storage().data_ptr() in given else tensor for tensor in made)


def _tensors_in(things: Any) -> Iterator[Tensor]:
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, (list, tuple)):
            yield from _tensors_in(thing)


def _run(run: Recorded, name: str, args: Arguments) -> tuple[Tensor, ...]:
    """An operator in float64: by torch, or by the contract that somebody registered for an operator that is not torch's."""
    contract = None if name.startswith("aten.") else contract_of(name)
    if contract is None or contract.exact is None:
        return run64(name, args, trust=run.trust)
    try:
        made = contract.exact(_arrays(args))
    except Exception as error:  # a user's own function may raise anything
        raise CannotReplay(f"the contract of {name} failed: {first_line(error)}") from None
    return tuple(torch.from_numpy(np.array(result)) for result in made)


def positions_of(operation: Operation, count: int) -> list[str]:
    """Where the results of an operator stand, in order."""
    if count == 1 and "out" in operation.outputs:
        return ["out"]
    return [f"out[{i}]" for i in range(count)]


def _arrays(args: Arguments) -> Arguments:
    return args.mapped(lambda thing: thing.numpy() if isinstance(thing, Tensor) else thing)


def _may_write(name: str) -> bool:
    """Whether an operator's name says that it writes to an operand, whatever was recorded of it."""
    function, _, overload = name.partition(".")[2].partition(".")
    return function.endswith("_") or "out" in overload


def contents(run: Recorded, value: int) -> Array:
    """What was recorded of a value, as float64 (complex128, or whole numbers as they are).

    Raises CannotReplay where its bytes were not kept.
    """
    if not run.file.has_bytes(value):
        reason = run.file.why_without_bytes(value)
        name = run.file.text(int(run.file.values.name[value]))
        raise NotRecorded(f"the bytes of {name or 'a value that it reads'} were not recorded: {reason}")
    read = run.file.read(value)
    if run.file.dtype_name(value) == "bool":
        return read.astype(np.bool_)
    if read.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # memory that nothing was written to may hold a signalling NaN
            return read.astype(np.float64)
    return read.astype(np.complex128) if read.dtype.kind == "c" else read
