"""`Values`: a tensor becomes a value of the trace, or the value that it already is.

Bytes are copied at the moment of the call: a tensor that is kept by reference has other contents when
the writer comes to it. An earlier value is believed to be the same only when its bits are (identity.py
says why): by fingerprint where there are fingerprints, else by statistics and a few bytes, and by all of the
stored bytes where the tensor has no version. Where operators are recorded, versions.py knows more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.record.device_copy import DevicePending
from layerdiff.record.fingerprint import fingerprint_on_host, octets, roundings
from layerdiff.record.host_memory import read
from layerdiff.record.identity import Identities, Memory, Place, place_of, version_of
from layerdiff.record.keep import NOT_KEPT, Policy
from layerdiff.record.quiet import quiet
from layerdiff.record.samples import sample
from layerdiff.record.sink import Sink, Value
from layerdiff.record.summary import agrees, summarise
from layerdiff.record.tensors import Plain, detail_with, is_ordinary
from layerdiff.trace.schema import ABSENT, Statistics, ValueKind, ValueRow

What = tuple[Policy, ValueKind, str | None]
"""What is kept of a value, what it is, and the name of a weight."""
UNWRITTEN: Final = "memory that nothing was written to yet"
Spot = tuple[Memory[Value], Place, bool]
"""Where a tensor lies, where writes to its storage are seen: the storage, the place in it, and whether it is row-major."""
_new_row: Final = partial(tuple.__new__, ValueRow)
"""A row of all its columns, made in half the time: there is one for every new value."""


class Values:
    """Records tensors. Call with gradients, autocast and modes off (quiet.py)."""

    def __init__(self, sink: Sink, *, fingerprints: bool) -> None:
        self._sink = sink
        self._fingerprints = fingerprints
        self.known: Identities[Value] = Identities()
        self._texts: dict[object, str] = {}

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
        """The value of one tensor that `plain` returned, in `part` where there is more to say.

        `trusted`: the caller knows that an equal version means equal bits.
        """
        sink = self._sink
        if part is not None and part.reason is not None and (sink.measures or not tensor.is_meta):
            return self._without(tensor, part, kind, name)
        places = self.known.memory(tensor.untyped_storage()).places
        place = place_of(tensor, version_of(tensor))
        known = places.get(place)
        if known is not None and not known.kept and policy.bytes_kept and policy.budget is None:
            known = None  # recorded for a call whose policy keeps less
        if known is not None and (trusted or not sink.measures):
            return known
        value = self._store(tensor, part, known, policy, kind, name)
        if value is not known:
            places[place] = value
        if part is not None and part.placement is not None:
            return self._placed(value, tensor, part, policy, kind, name, None)
        return value

    def value_of(self, tensor: Tensor, call: Any, what: Callable[[Any, Tensor], What]) -> Value | None:
        """The value of a plain tensor, known or new; `what` says how a new one inside `call` is recorded. None where it is not plain.

        May be called with gradients, autocast and modes on, but for function modes.
        """
        if not is_ordinary(tensor):
            return None
        with quiet():
            return self.record(tensor, *what(call, tensor))

    def _placed(
        self, value: Value, tensor: Tensor, part: Plain, policy: Policy, kind: ValueKind, name: str | None, spot: Spot | None
    ) -> Value:
        """The value as the part of a logical tensor that it is: itself, or one with the same bytes, which have been recorded as no part."""
        if value.placement == part.placement:
            return value
        places = self.known.memory(tensor.untyped_storage()).places
        key = (part.placement, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), id(value))
        placed = places.get(key)
        if placed is not None:
            return placed
        placed = places[key] = Value(value.kept, value.statistics, value.fingerprint, kind, name)
        placed.placement, placed.patched, placed.run = part.placement, value.patched, value.run
        nbytes = tensor.numel() * tensor.element_size()
        reason = None if value.kept else policy.refuse(nbytes) or NOT_KEPT
        row = self._row(tensor, part, kind, name, reason, value.statistics, value.fingerprint, spot)
        if value.kept:
            self._sink.add_view(placed, row, value, 0, row_major(tensor.shape), whole=False)
        else:
            self._sink.add_value(placed, row, None, nbytes)
        return placed

    def rewritten(
        self, tensor: Tensor, policy: Policy | None, kind: ValueKind = ValueKind.ACTIVATION, name: str | None = None
    ) -> Value | None:
        """The value of an ordinary tensor that was written to unseen by torch; None without a policy, where nothing is recorded."""
        self.known.memory(tensor.untyped_storage()).places.clear()
        return None if policy is None else self.record(tensor, policy, kind, name)

    def record_unread(self, tensor: Tensor, reason: str, part: Plain | None = None) -> Value:
        """A tensor whose memory must not be read now."""
        said = Plain(tensor, reason=reason) if part is None else dataclasses.replace(part, reason=reason)
        return self._without(tensor, said, ValueKind.ACTIVATION, None)

    def _without(self, tensor: Tensor, part: Plain, kind: ValueKind, name: str | None, spot: Spot | None = None) -> Value:
        """A value without bytes, for the reason that `part` gives."""
        value = Value(False)
        self._sink.add_value(value, self._row(tensor, part, kind, name, part.reason, spot=spot), None, 0)
        return value

    def _store(
        self,
        tensor: Tensor,
        part: Plain | None,
        known: Value | None,
        policy: Policy,
        kind: ValueKind,
        name: str | None,
        spot: Spot | None = None,
    ) -> Value:
        """A new value, or `known` where its bits are the same. `spot` is known where writes are seen."""
        if not self._sink.measures:
            nbytes = tensor.numel() * tensor.element_size()
            reason = policy.refuse(nbytes)
            value = Value(reason is None, None, None, kind, name)
            self._sink.add_value(value, self._row(tensor, part, kind, name, reason, spot=spot), None, nbytes)
        else:
            on_host = tensor.device.type == "cpu" if spot is None else spot[0].device == "cpu"
            record = self._record_on_host if on_host else self._record_on_device
            with quiet():
                value = record(tensor, part, known, policy, kind, name, spot)
        if part is not None and value is not known:
            value.placement = part.placement
        return value

    def _record_on_host(
        self,
        tensor: Tensor,
        part: Plain | None,
        known: Value | None,
        policy: Policy,
        kind: ValueKind,
        name: str | None,
        spot: Spot | None,
    ) -> Value:
        flat = dense(tensor.detach() if tensor.requires_grad else tensor)
        fingerprint = fingerprint_on_host(flat) if self._fingerprints else None
        must_compare = False
        if known is not None and fingerprint is not None and fingerprint == known.fingerprint:
            return known
        if known is not None and fingerprint is None and known.sampled == sample(flat) and agrees(flat, known.statistics):
            must_compare = known.kept and version_of(tensor) is None
            if not must_compare:
                return known
        statistics = summarise(flat)
        nbytes = flat.numel() * flat.element_size()
        reason = policy.refuse(nbytes)
        row = self._row(tensor, part, kind, name, reason, statistics, fingerprint, spot)
        if self._fingerprints and kind is not ValueKind.ACTIVATION and tensor.dtype is torch.float32:
            row = row._replace(detail=detail_with(row.detail, {"rounded": roundings(flat)}))
        data = None
        if reason is None:
            address = flat.data_ptr()
            if address != tensor.data_ptr():  # a copy already
                data = octets(flat).numpy()
            elif nbytes and not address:  # torch makes them only when they are copied
                data = octets(flat.clone()).numpy()
            else:
                data = np.frombuffer(read(address, nbytes), np.uint8)
        value = Value(reason is None, statistics, fingerprint, kind, name)
        if fingerprint is None and spot is None:
            value.sampled = sample(flat)
        if must_compare and known is not None:
            self._sink.add_pending(value, _Compared(known, row, data, 0 if data is None else nbytes))
        else:
            self._sink.add_value(value, row, data, nbytes)
        return value

    def _record_on_device(
        self,
        tensor: Tensor,
        part: Plain | None,
        known: Value | None,
        policy: Policy,
        kind: ValueKind,
        name: str | None,
        spot: Spot | None,
    ) -> Value:
        flat = dense(tensor.detach())
        nbytes = flat.numel() * flat.element_size()
        reason = policy.refuse(nbytes)
        value = Value(reason is None, None, None, kind, name)
        row = self._row(tensor, part, kind, name, reason, spot=spot)
        pending = DevicePending(
            flat,
            row,
            known,
            policy,
            keep_bytes=reason is None,
            fingerprints=self._fingerprints,
            roundings=kind is not ValueKind.ACTIVATION and tensor.dtype is torch.float32,
            compare_bytes=not self._fingerprints and version_of(tensor) is None,
        )
        self._sink.add_pending(value, pending)
        return value

    def _row(
        self,
        tensor: Tensor,
        part: Plain | None,
        kind: ValueKind,
        name: str | None,
        reason: str | None,
        statistics: Statistics | None = None,
        fingerprint: tuple[int, int] | None = None,
        spot: Spot | None = None,
    ) -> ValueRow:
        if part is None and spot is not None:
            return self._row_at(spot, kind, name, reason, statistics, fingerprint)
        texts = self._texts
        dtype, device = texts.get(tensor.dtype) or self._text(tensor.dtype), texts.get(tensor.device) or self._text(tensor.device)
        if part is None:
            strides = None if tensor.is_contiguous() else tensor.stride()
            shape, version = tuple(tensor.shape), version_of(tensor) or 0
            return ValueRow(dtype, shape, kind, name, device, strides, ABSENT, None, False, version, reason, statistics, fingerprint)
        whole = part.reason is None
        return ValueRow(
            dtype=dtype,
            shape=() if tensor.is_nested else tuple(tensor.shape),
            kind=kind,
            name=name,
            device=device,
            strides=tensor.stride() if whole and not tensor.is_contiguous() else None,
            version=spot[0].epoch if spot is not None else version_of(tensor) or 0 if whole else 0,
            reason=reason,
            statistics=statistics,
            fingerprint=fingerprint,
            placement=part.placement,
            detail=part.detail,
            memory=ABSENT if spot is None else spot[0].number,
            memory_offset=ABSENT if spot is None else spot[1][1],
        )

    def _row_at(
        self,
        spot: Spot,
        kind: ValueKind,
        name: str | None,
        reason: str | None,
        statistics: Statistics | None = None,
        fingerprint: tuple[int, int] | None = None,
    ) -> ValueRow:
        memory, (dtype, offset, shape, strides, _), dense = spot
        text, strides = self._texts.get(dtype) or self._text(dtype), None if dense else strides
        numbers = (statistics, fingerprint, None, None, memory.number, offset)
        return _new_row((text, shape, kind, name, memory.device, strides, ABSENT, None, False, memory.epoch, reason, *numbers))

    def _text(self, thing: torch.dtype | torch.device) -> str:
        """A dtype without its prefix, or a device: torch makes the text anew each time."""
        return self._texts.setdefault(thing, str(thing).removeprefix("torch."))


class _Compared:
    """A value that is an earlier one if its stored bytes are equal."""

    def __init__(self, known: Value, row: ValueRow, data: NDArray[np.uint8] | None, nbytes: int) -> None:
        self._known = known
        self._row = row
        self._data = data
        self.nbytes = nbytes

    def settle(self, stored_equal: Callable[[int, NDArray[np.uint8]], bool]) -> tuple[Value | None, ValueRow, NDArray[np.uint8] | None]:
        """Compare with the stored bytes."""
        same = self._data is not None and stored_equal(self._known.row, self._data)
        return self._known if same else None, self._row, self._data


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of row-major elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def dense(tensor: Tensor) -> Tensor:
    """The same elements, row-major and without lazy conjugation; the tensor itself where it is so already."""
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous()
