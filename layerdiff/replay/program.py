"""`run_calls` and `run_together`: the calls of a region run again in float64, in the memory that they shared.

Each storage of the recorded run is one flat tensor here, and every value is a view of it at its recorded place. So views need not
run at all, a write in place is seen through every other view, and a value that something else wrote in between is noticed by
its version and taken from outside. What is never written here and read all the same is asked of `incoming`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.arithmetic.registry import contract_of
from layerdiff.errors import TraceError
from layerdiff.replay.operators import CannotReplay, run64
from layerdiff.replay.recorded import Operation, Place, Recorded, row_major
from layerdiff.replay.refusal import NotRecorded
from layerdiff.replay.sizes import first_line
from layerdiff.trace.arguments import Arguments, decode
from layerdiff.trace.dtypes import dtype_named

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


@dataclass(frozen=True)
class Meeting:
    """A collective at which a program stands: what it puts in, by position. It goes on with what comes out."""

    operation: Operation
    given: Mapping[str, Array]


def run_calls(part: Part, watcher: Watcher) -> None:
    """Run a part by itself; what comes out of a collective is asked of `incoming`. Raises CannotReplay where it was not recorded."""
    program = steps(part, watcher)
    with torch.no_grad():
        while advance(program, None) is not None:
            pass


def run_together(
    programs: Sequence[tuple[Part, Watcher]], meet: Callable[[Mapping[int, Meeting]], Mapping[int, Mapping[str, Array]]]
) -> None:
    """Run the parts of several processes, each as far as it comes without the others.

    `meet`: of the collectives at which programs stand, by program, makes the results of those of which all ranks are there.
    Raises CannotReplay where something was not recorded, or none of the collectives can go on.
    """
    running = [steps(part, watcher) for part, watcher in programs]
    waiting: dict[int, Meeting] = {}
    results: Mapping[int, Mapping[str, Array] | None] = dict.fromkeys(range(len(running)))
    with torch.no_grad():
        while results:
            for i, made in results.items():
                waiting.pop(i, None)
                meeting = advance(running[i], made)
                if meeting is not None:
                    waiting[i] = meeting
            results = meet(waiting) if waiting else {}
    if waiting:
        raise CannotReplay("a collective inside has ranks that take no part in it here")


Program = Generator[Meeting, "Mapping[str, Array] | None", None]


def advance(program: Program, results: Mapping[str, Array] | None) -> Meeting | None:
    """Run on to the next collective; None at the end. `results`: those of the one at which it stands."""
    try:
        return program.send(results)
    except StopIteration:
        return None


def steps(part: Part, watcher: Watcher) -> Program:
    """A part as a program that stops at every collective, and is sent what comes out of it."""
    run, memory = part.run, _Memory(part.run, watcher)
    for value in part.inputs:
        memory.write(value, watcher.incoming(value))
    for item in part.items:
        child = part.children.get(item)
        if child is not None:
            for position, value in child.handed.items():
                watcher.handed(item, position, memory.read(value).numpy().copy())
            for value in child.returned:
                memory.write(value, watcher.incoming(value))
            continue
        operation = run.operation(item)
        if run.is_collective(item):
            given = {position: memory.read(value).numpy().copy() for position, value in operation.inputs.items()}
            results = yield Meeting(operation, given)
            memory.replace(operation, results or {})
        else:
            _execute(run, memory, operation, watcher)
    for position, value in part.outputs.items():
        watcher.handed(part.call, position, memory.read(value).numpy().copy())


def _execute(run: Recorded, memory: _Memory, operation: Operation, watcher: Watcher) -> None:
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
        made = _run(run, operation.name, args)
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
    shown = Arguments(_arrays(args.args), _arrays(args.kwargs))
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
        made = contract.exact(Arguments(_arrays(args.args), _arrays(args.kwargs)))
    except Exception as error:  # a user's own function may raise anything
        raise CannotReplay(f"the contract of {name} failed: {first_line(error)}") from None
    return tuple(torch.from_numpy(np.array(result)) for result in made)


def positions_of(operation: Operation, count: int) -> list[str]:
    """Where the results of an operator stand, in order."""
    if count == 1 and "out" in operation.outputs:
        return ["out"]
    return [f"out[{i}]" for i in range(count)]


def _arrays(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return thing.numpy()
    if isinstance(thing, dict):
        return {name: _arrays(item) for name, item in thing.items()}
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return tuple(_arrays(item) for item in thing)
    if isinstance(thing, list):
        return [_arrays(item) for item in thing]
    return thing


@dataclass
class _Flat:
    """One storage."""

    contents: Tensor
    defined: Tensor | None
    """Which elements were written; None where all were."""
    version: int
    borrowed: bool = False
    """Whether somebody else reads the contents, so that they are copied before they are written to."""

    def own(self) -> None:
        if self.borrowed:
            self.contents, self.borrowed = self.contents.clone(), False


class _Memory:
    def __init__(self, run: Recorded, watcher: Watcher) -> None:
        self._run = run
        self._watcher = watcher
        self._flats: dict[tuple[int, str], _Flat] = {}

    def read(self, value: int, *, owned: bool = False) -> Tensor:
        """The contents of a value, as a view of its memory; what is not known of it comes in. `owned`: it may be written to."""
        place = self._run.place(value)
        flat = self._flat(place)
        if flat is None:
            self.write(value, self._watcher.incoming(value))
        elif flat.defined is not None and not bool((defined := _seen(flat.defined, place)).all()):
            here, coming = _seen(flat.contents, place), self._watcher.incoming(value)
            _require_size(coming, place)
            self._put(place, torch.where(defined, here, _tensor(coming, place)))
        known = self._flats[place.memory]
        if owned:
            known.own()
        return _seen(known.contents, place)

    def write(self, value: int, contents: Array) -> None:
        """Put `contents` where a value lies. It is kept where that is possible, and written to later if it is writeable."""
        place = self._run.place(value)
        _require_size(contents, place)
        self._put(place, _tensor(contents, place), borrowed=not np.asarray(contents).flags.writeable)

    def accept(self, operation: Operation, results: Mapping[str, Array]) -> None:
        """Put the results of a call where they lie."""
        for position, contents in results.items():
            value = operation.outputs.get(position)
            if value is not None:
                self.write(value, contents)

    def replace(self, operation: Operation, results: Mapping[str, Array]) -> None:
        """Put the results of a call in the memory that they were put in, other elements of it staying as they are."""
        for position in results:
            value = operation.outputs.get(position)
            flat = None if value is None else self._flats.get(self._run.place(value).memory)
            if value is not None and flat is not None:
                flat.version = self._run.place(value).version
        self.accept(operation, results)

    def wrote(self, operation: Operation) -> None:
        """A call has written to some of its operands."""
        for position in operation.writes:
            value = operation.inputs.get(position)
            if value is None:
                continue
            place = self._run.place(value)
            flat = self._flat(place)
            if flat is None:
                continue
            flat.version = place.version + 1
            if flat.defined is not None:
                _seen(flat.defined, _once(place)).fill_(True)

    def _flat(self, place: Place) -> _Flat | None:
        """The storage of a place, large enough; None where nothing is known of it at this version."""
        flat = self._flats.get(place.memory)
        if flat is None or place.version != flat.version:  # something else wrote there
            self._flats.pop(place.memory, None)
            return None
        missing = place.extent - flat.contents.numel()
        if missing > 0:
            if flat.defined is None:
                flat.defined = torch.ones(flat.contents.numel(), dtype=torch.bool)
            flat.contents, flat.borrowed = torch.cat([flat.contents, flat.contents.new_zeros(missing)]), False
            flat.defined = torch.cat([flat.defined, flat.defined.new_zeros(missing)])
        return flat

    def _put(self, place: Place, contents: Tensor, *, borrowed: bool = False) -> None:
        flat = self._flat(place)
        if flat is None or flat.contents.numel() == contents.numel():
            lying = _lying(place, contents)
            # the whole of it, as far as anybody has seen: what lies beyond is added when somebody looks
            if lying is not None:
                if flat is None or flat.contents.data_ptr() != lying.data_ptr():
                    self._flats[place.memory] = _Flat(lying, None, place.version, borrowed)
                return
        if flat is None:
            size = place.extent
            flat = _Flat(contents.new_zeros(size), torch.zeros(size, dtype=torch.bool), place.version)
            self._flats[place.memory] = flat
        self._fill(flat, place, contents)

    def _fill(self, flat: _Flat, place: Place, contents: Tensor) -> None:
        once = _once(place)
        for d, (size, full) in enumerate(zip(once.shape, place.shape, strict=True)):
            if size != full:
                contents = contents.narrow(d, 0, size)
        flat.own()
        target = _seen(flat.contents, once)
        if target.data_ptr() != contents.data_ptr() or target.stride() != contents.stride():
            try:
                target.copy_(contents)
            except RuntimeError:  # its elements overlap in memory
                where = _seen(torch.arange(flat.contents.numel()), once).reshape(-1)
                flat.contents[where] = contents.reshape(-1)
        if flat.defined is not None:
            seen = _seen(flat.defined, once)
            seen.fill_(True)
            if seen.numel() == flat.defined.numel():
                flat.defined = None


def _require_size(contents: Array, place: Place) -> None:
    if np.size(contents) != math.prod(place.shape):
        raise CannotReplay(f"a value has the shape {list(np.shape(contents))} in one run and {list(place.shape)} in the other")


def _lying(place: Place, contents: Tensor) -> Tensor | None:
    """Contents as one row of memory, where they lie in it as the place says and fill it from its first element on; else None."""
    if place.offset or place.extent != contents.numel() or not contents.numel():
        return None
    if place.strides == row_major(place.shape):
        return contents.reshape(-1) if contents.is_contiguous() else None
    strides = zip(place.shape, place.strides, contents.stride(), strict=True)
    if any(size != 1 and ours != theirs for size, ours, theirs in strides):
        return None
    return contents.as_strided((contents.numel(),), (1,))


class _Lent:
    """An array that is read only, as one that is not: torch knows no other, and who writes here owns first."""

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array


def _tensor(contents: Array, place: Place) -> Tensor:
    """Contents as a tensor of the place's shape and kind, in the same memory where that is possible."""
    array = np.asarray(contents)
    if not array.flags.writeable:
        array = np.asarray(_Lent(array)) if array.size else np.array(array)
    tensor = torch.from_numpy(array)
    return tensor.to(_dtype(place.memory[1])).reshape(place.shape)


def _may_write(name: str) -> bool:
    """Whether an operator's name says that it writes to an operand, whatever was recorded of it."""
    function, _, overload = name.partition(".")[2].partition(".")
    return function.endswith("_") or "out" in overload


def _once(place: Place) -> Place:
    """A place without the repeats of an expanded dimension."""
    if 0 not in place.strides:
        return place
    shape = tuple(1 if stride == 0 and size > 1 else size for size, stride in zip(place.shape, place.strides, strict=True))
    return Place(place.memory, place.offset, shape, place.strides, place.version)


def _seen(flat: Tensor, place: Place) -> Tensor:
    if 0 in place.shape:
        return flat.new_zeros(place.shape)
    return flat.as_strided(place.shape, place.strides, place.offset)


def _dtype(name: str) -> torch.dtype:
    known = dtype_named(name)
    if known is None:
        raise CannotReplay(f"the dtype {name} is unknown here")
    if known.kind == "complex":
        return torch.complex128
    if known.kind == "float":
        return torch.float64
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else torch.int64


def contents(run: Recorded, value: int) -> Array:
    """What was recorded of a value, as float64 (complex128, or whole numbers as they are).

    Raises CannotReplay where its bytes were not kept.
    """
    if not run.file.has_bytes(value):
        reason = run.file.text(int(run.file.values.reason[value])) or "by the keep policy"
        name = run.file.text(int(run.file.values.name[value]))
        raise NotRecorded(f"the bytes of {name or 'a value that it reads'} were not recorded: {reason}")
    read = run.file.read(value)
    if run.file.dtype_name(value) == "bool":
        return read.astype(np.bool_)
    if read.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # memory that nothing was written to may hold a signalling NaN
            return read.astype(np.float64)
    return read.astype(np.complex128) if read.dtype.kind == "c" else read
