"""`Memory`: the memory that the calls of a region shared, simulated.

Each storage of the recorded run is one flat tensor, and every value a view of it at its recorded place. A write in place is seen through
every other view, and a value that something else wrote in between is noticed by its version and asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.replay.recorded import Operation, Place, Recorded, row_major
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]


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


class Memory:
    """The memory of one process; `incoming` gives the contents of a value that was not made here.

    `measures`: memories of whole numbers that hold float64 here.
    """

    def __init__(self, run: Recorded, incoming: Callable[[int], Array], measures: frozenset[tuple[int, str]] = frozenset()) -> None:
        self._run = run
        self._incoming = incoming
        self._measures = measures
        self._flats: dict[tuple[int, str], _Flat] = {}

    def read(self, value: int, *, owned: bool = False) -> Tensor:
        """The contents of a value, as a view of its memory; what is not known of it comes in. `owned`: it may be written to."""
        place = self._run.place(value)
        flat = self._flat(place)
        if flat is None:
            self.write(value, self._incoming(value))
        elif flat.defined is not None and not bool((defined := _seen(flat.defined, place)).all()):
            here, coming = _seen(flat.contents, place), self._incoming(value)
            _require_size(coming, place)
            self._put(place, torch.where(defined, here, self._tensor(coming, place)))
        known = self._flats[place.memory]
        if owned:
            known.own()
        return _seen(known.contents, place)

    def write(self, value: int, contents: Array) -> None:
        """Put `contents` where a value lies. It is kept where that is possible, and written to later if it is writeable."""
        place = self._run.place(value)
        _require_size(contents, place)
        self._put(place, self._tensor(contents, place), borrowed=not np.asarray(contents).flags.writeable)

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

    def _tensor(self, contents: Array, place: Place) -> Tensor:
        return _tensor(contents, place, torch.float64 if place.memory in self._measures else _dtype(place.memory[1]))

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


def _tensor(contents: Array, place: Place, dtype: torch.dtype) -> Tensor:
    """Contents as a tensor of the place's shape, in the same memory where that is possible."""
    array = np.asarray(contents)
    if not array.flags.writeable:
        array = np.asarray(_Lent(array)) if array.size else np.array(array)
    tensor = torch.from_numpy(array)
    if tensor.is_complex() and not dtype.is_complex:
        raise CannotReplay("a value is complex in one run and real in the other")
    return tensor.to(dtype).reshape(place.shape)


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


def _dtype(memory: str) -> torch.dtype:
    name = memory.partition(" ")[0]
    known = dtype_named(name)
    if known is None:
        raise CannotReplay(f"the dtype {name} is unknown here")
    if known.kind == "complex":
        return torch.complex128
    if known.kind == "float":
        return torch.float64
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else torch.int64
