"""`Versions`: values while every operator is seen, so that writes are counted, and views and versions need no bytes.

A **run** is a stretch of a storage that was recorded with its bytes. A tensor inside it is a view of it. A write to a part of
it stores that part alone; the run's next version, made when somebody reads it, is the one before with the parts written. What is
stored is always read from memory after the write: an operator that wrote something else than its operands say is seen.

Writes of kernels that torch does not dispatch are not seen. A few bytes of every run and value are compared whenever it is
read again; where they differ, all that is known of the storage is dropped and what is there is recorded anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage

from layerdiff.record.fingerprint import octets
from layerdiff.record.identity import Memory, Place
from layerdiff.record.keep import Policy
from layerdiff.record.quiet import quiet
from layerdiff.record.samples import sample_run
from layerdiff.record.sink import Patch, Sink, Value
from layerdiff.record.tensors import ORDINARY, Plain, is_plain, lies_plainly
from layerdiff.record.values import UNWRITTEN, Spot, Values, What
from layerdiff.trace.schema import ValueKind, ValueRow

_MOST_RUNS: Final = 32
_KEEPS: Final = Policy()
Slices = tuple[int, Tensor, Tensor | None]
"""A dimension, the indices of the slices along it that an operator wrote, and the operand that they are copies of."""


class Run:
    """A stretch of a storage whose bytes were recorded."""

    __slots__ = ("dtype", "first", "nbytes", "patches", "sampled", "shape", "thing")

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], thing: Value, first: int, nbytes: int, sampled: bytes) -> None:
        self.dtype = dtype
        self.shape = shape
        self.thing = thing
        self.first = first
        self.nbytes = nbytes
        self.sampled = sampled
        self.patches: list[Patch] = []
        """What was written since `thing`."""

    def covers(self, first: int, last: int, itemsize: int) -> bool:
        """Whether the bytes from `first` up to `last` are some of these, at a distance of whole elements."""
        return self.first <= first and last <= self.first + self.nbytes and (first - self.first) % itemsize == 0


class Versions(Values):
    """Records tensors. Call with gradients, autocast and modes off (quiet.py)."""

    def __init__(self, sink: Sink, *, fingerprints: bool) -> None:
        super().__init__(sink, fingerprints=fingerprints)
        self._measures = sink.measures
        self._memories = self.known.by_address

    def record(
        self,
        tensor: Tensor,
        policy: Policy,
        kind: ValueKind = ValueKind.ACTIVATION,
        name: str | None = None,
        *,
        part: Plain | None = None,
        trusted: bool = False,
    ) -> Value:
        """The value of one tensor that `plain` returned, in `part` where there is more to say."""
        if part is not None and part.reason is not None and (self._measures or not tensor.is_meta):
            return self._without(tensor, part, kind, name)
        storage = tensor.untyped_storage()
        memory = self.known.memory(storage)
        place = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), is_plain(tensor) or lies_plainly(tensor))
        value = self._record_at(tensor, storage, memory, place, policy, kind, name, part)
        if part is not None and part.placement is not None:
            return self._placed(value, tensor, part, policy, kind, name, (memory, place, tensor.is_contiguous()))
        return value

    def value_of(self, tensor: Tensor, call: Any, what: Callable[[Any, Tensor], What]) -> Value | None:
        """The value of a plain tensor, known or new, as in `Values`."""
        if type(tensor) not in ORDINARY:
            return None
        try:
            storage = tensor.untyped_storage()
            place = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), True)
        except (RuntimeError, NotImplementedError):  # a sparse tensor, a nested one
            return None
        memory = self._memories.get(storage._cdata)
        if memory is not None and (known := memory.places.get(place)) is not None and lies_plainly(tensor):
            first, nbytes, sampled = known.run
            if (known.kept or not what(call, tensor)[0].keeps_all) and sampled == self._sample(memory, storage, first, nbytes):
                return known
        if not is_plain(tensor):
            return None
        return self._record_at(tensor, storage, memory or self.known.memory(storage), place, *what(call, tensor), None)

    def _record_at(
        self,
        tensor: Tensor,
        storage: UntypedStorage,
        memory: Memory[Value],
        place: Place,
        policy: Policy,
        kind: ValueKind,
        name: str | None,
        part: Plain | None,
    ) -> Value:
        """The value of a tensor at a place of its storage, known or new."""
        known = memory.places.get(place)
        if known is not None and (known.kept or not policy.keeps_all):
            first, nbytes, sampled = known.run
            if sampled == self._sample(memory, storage, first, nbytes):
                return known
            self._unseen(memory)
        if memory.untouched is not None and memory.untouched != self._sample(memory, storage, 0, storage.nbytes()):
            self._unseen(memory)  # allocated, and then written by a kernel that torch does not know
        dtype, offset, shape, strides, plainly = place
        dense = tensor.is_contiguous()
        first = offset * dtype.itemsize
        nbytes = (tensor.numel() if dense else _extent(shape, strides)) * dtype.itemsize
        lies = plainly and nbytes != 0
        spot = (memory, place, dense)
        value = None
        if lies and policy.bytes_kept:
            if memory.runs:
                value = self._view_of(storage, spot, first, nbytes, kind, name)
            if value is None and not dense and policy.budget is None:
                lying = _lying(tensor)
                if lying is not None:
                    self.record(lying, policy)
                    value = self._view_of(storage, spot, first, nbytes, kind, name)
        elif lies and ("numbers", dtype, first, nbytes) in memory.places:
            value = self._with_numbers_of(memory.places["numbers", dtype, first, nbytes], tensor, storage, policy, kind, name, spot)
        if value is None:
            value = self._store(tensor, part, None, policy, kind, name, spot)
            value.run = run = (first, nbytes, self._sample(memory, storage, first, nbytes))
            if lies and dense and value.statistics is not None:  # of all elements that lie there, in whatever order
                memory.places["numbers", dtype, first, nbytes] = value
            if lies and dense and value.kept:
                memory.runs = [Run(dtype, shape, value, *run), *memory.runs[: _MOST_RUNS - 1]]
        memory.places[place] = value
        return value

    def _sample(self, memory: Memory[Value], storage: UntypedStorage, first: int, nbytes: int) -> bytes:
        return sample_run(storage, memory.device == "cpu", first, nbytes) if self._measures else b""

    def _with_numbers_of(
        self,
        whole: Value,
        tensor: Tensor,
        storage: UntypedStorage,
        policy: Policy,
        kind: ValueKind,
        name: str | None,
        spot: Spot,
    ) -> Value | None:
        """A value without bytes that has all elements of `whole` once, perhaps in another order: what is known of those holds for it."""
        first, nbytes, sampled = whole.run
        if sampled != self._sample(spot[0], storage, first, nbytes) or (self._fingerprints and kind is not ValueKind.ACTIVATION):
            return None  # a weight's fingerprint goes with those of its roundings
        fingerprint = None
        if spot[2]:
            fingerprint = whole.fingerprint
        elif self._fingerprints or tensor.numel() * tensor.dtype.itemsize != nbytes or _lying(tensor) is None:
            return None
        value = Value(False, whole.statistics, fingerprint, kind, name)
        value.run = whole.run
        reason = policy.refuse(nbytes)
        self._sink.add_value(value, self._row_at(spot, kind, name, reason, whole.statistics, fingerprint), None, nbytes)
        return value

    def record_unwritten(self, tensor: Tensor) -> Value:
        """A tensor whose memory was just allocated: it has no contents to record."""
        storage = tensor.untyped_storage()
        memory = self.known.memory(storage)
        memory.places.clear()
        memory.runs.clear()
        memory.untouched = self._sample(memory, storage, 0, storage.nbytes())
        return self._without(tensor, Plain(tensor, reason=UNWRITTEN), ValueKind.ACTIVATION, None, _spot(memory, tensor))

    def wrote(
        self,
        tensor: Tensor,
        policy: Policy | None,
        kind: ValueKind = ValueKind.ACTIVATION,
        name: str | None = None,
        slices: Slices | None = None,
    ) -> Value | None:
        """An operator wrote to `tensor`: its new value, or None without a policy, where nothing is recorded."""
        storage = tensor.untyped_storage()
        memory = self.known.memory(storage)
        memory.epoch += 1
        memory.untouched = None
        memory.places.clear()
        itemsize = tensor.dtype.itemsize
        first = int(tensor.storage_offset()) * itemsize
        last = first + _extent(tensor.shape, tensor.stride()) * itemsize
        if last == first:
            return None if policy is None else self.record(tensor, policy, kind, name)
        keeps = policy is not None and policy.keeps_all and lies_plainly(tensor)
        touched = [run for run in memory.runs if run.first < last and first < run.first + run.nbytes]
        if not touched:
            return None if policy is None else self.record(tensor, policy, kind, name)
        inside = [run for run in touched if keeps and run.covers(first, last, itemsize)]
        if slices is None:  # a run that was overwritten as a whole begins anew
            inside = [run for run in inside if not (run.nbytes == last - first and tensor.is_contiguous())]
        memory.runs = [run for run in memory.runs if run not in touched or run in inside]
        if policy is None:
            return None
        if not inside:
            return self.record(tensor, policy, kind, name)
        dim, index, source = (0, None, None) if slices is None else slices
        where: dict[str, Any] = {"strides": list(tensor.stride())}
        if index is None:
            written = self._store(tensor, None, None, policy, kind, name, _spot(memory, tensor))
            written.run = (first, last - first, self._sample(memory, storage, first, last - first))
            indices = None
        else:
            written = self._slices(tensor.detach().index_select(dim, index % tensor.shape[dim]), source, policy)
            indices = self._own(index, policy)
            where |= {"dim": dim, "size": tensor.shape[dim]}
        for run in inside:
            run.patches.append((written, {"offset": (first - run.first) // itemsize, **where}, indices))
            run.sampled = self._sample(memory, storage, run.first, run.nbytes)
        if indices is not None:
            return self.record(tensor, policy, kind, name)
        memory.places[(tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), True)] = written
        return written

    def rewritten(
        self, tensor: Tensor, policy: Policy | None, kind: ValueKind = ValueKind.ACTIVATION, name: str | None = None
    ) -> Value | None:
        """An ordinary tensor was written to by something that is no operator."""
        return self.wrote(tensor, policy, kind, name)

    def record_unread(self, tensor: Tensor, reason: str, part: Plain | None = None) -> Value:
        """A tensor whose memory must not be read now; where it lies is known."""
        said = Plain(tensor, reason=reason) if part is None else dataclasses.replace(part, reason=reason)
        return self._without(tensor, said, ValueKind.ACTIVATION, None, _spot(self.known.memory(tensor.untyped_storage()), tensor))

    def _slices(self, region: Tensor, source: Tensor | None, policy: Policy) -> Value:
        """What was written: the operand that was copied, where it is stored and memory holds its very bits."""
        if source is not None and source.dtype is region.dtype and source.shape == region.shape and lies_plainly(source):
            value = self.record(source, policy)
            same = not self._measures or torch.equal(octets(source.detach().contiguous()), octets(region))
            if value.kept and not value.patched and same:
                return value
        return self._own(region, policy)

    def _own(self, tensor: Tensor, policy: Policy) -> Value:
        """A value with bytes of its own, or a view of such."""
        value = self.record(tensor, policy)
        return self._store(tensor, None, None, _KEEPS, ValueKind.ACTIVATION, None, None) if value.patched or not value.kept else value

    def _view_of(self, storage: UntypedStorage, spot: Spot, first: int, nbytes: int, kind: ValueKind, name: str | None) -> Value | None:
        """The tensor at a place as a view of a run that is in the trace as it is in memory; None where there is none."""
        memory, (dtype, _, shape, strides, _), dense = spot
        itemsize = dtype.itemsize
        for run in memory.runs:
            if not run.covers(first, first + nbytes, itemsize):
                continue
            if run.sampled != self._sample(memory, storage, run.first, run.nbytes):
                self._unseen(memory)
                return None
            if run.patches:
                self._renew(run, memory)
            thing: Value = run.thing
            same = run.nbytes == nbytes and run.dtype is dtype
            if same and dense and run.shape == shape:
                return thing
            value = Value(True, None, None, kind, name)
            value.patched = thing.patched
            value.run = (first, nbytes, run.sampled if run.nbytes == nbytes else self._sample(memory, storage, first, nbytes))
            row = self._row_at(spot, kind, name, None)
            self._sink.add_view(value, row, thing, (first - run.first) // itemsize, strides, whole=same and not thing.patched)
            return value
        return None

    def _renew(self, run: Run, memory: Memory[Value]) -> None:
        """Make the version of a run in which its patches are written."""
        value = Value(True, None, None, run.thing.kind, run.thing.name)
        value.patched = True
        value.run = (run.first, run.nbytes, run.sampled)
        row = ValueRow(
            dtype=self._text(run.dtype),
            shape=tuple(run.shape),
            kind=value.kind,
            name=value.name,
            device=memory.device,
            version=memory.epoch,
            memory=memory.number,
            memory_offset=run.first // run.dtype.itemsize,
        )
        self._sink.add_patched(value, row, run.thing, run.patches)
        run.thing, run.patches = value, []

    def _unseen(self, memory: Memory[Value]) -> None:
        """Somebody wrote to a storage unseen: nothing that is known of it holds."""
        memory.epoch += 1
        memory.untouched = None
        memory.places.clear()
        memory.runs = []


def _spot(memory: Memory[Value], tensor: Tensor) -> Spot:
    place = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), True)
    return memory, place, tensor.is_contiguous()


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements lie from the first to the last one of a tensor."""
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return last + 1


def _lying(tensor: Tensor) -> Tensor | None:
    """The memory of a tensor that is only turned or expanded, row-major as it lies; None where it has gaps or overlaps."""
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    kept = sorted(((stride, size) for stride, size in dims if stride and size > 1), reverse=True)
    strides, shape = [stride for stride, _ in kept], [size for _, size in kept]
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != expected:
            return None
        expected *= size
    with quiet():
        return tensor.detach().as_strided(shape, strides, tensor.storage_offset())
