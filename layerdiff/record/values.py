"""`Values`: a tensor becomes a value of the trace, or the value that it already is.

Bytes are copied at the moment of the call: a tensor that is kept by reference has other contents when
the writer comes to it. An earlier value is believed to be the same only when its bits are (identity.py
says why): by fingerprint where there are fingerprints, else by statistics, and by the stored bytes where
the tensor has no version.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.record.device_copy import DevicePending
from layerdiff.record.fingerprint import fingerprint_on_host, octets, roundings
from layerdiff.record.identity import Identities, version_of
from layerdiff.record.keep import Policy
from layerdiff.record.sink import Sink, Value
from layerdiff.record.summary import same_bits, summarise
from layerdiff.record.tensors import Plain, is_ordinary, plain
from layerdiff.trace.schema import ValueKind, ValueRow


class Values:
    """Records tensors. Call with gradients, autocast and modes off (quiet.py)."""

    def __init__(self, sink: Sink, *, fingerprints: bool) -> None:
        self._sink = sink
        self._fingerprints = fingerprints
        self.known: Identities[Value] = Identities()
        self._devices: dict[torch.device, str] = {}

    def record(self, tensor: Tensor, policy: Policy) -> list[tuple[str, Value]]:
        """The values of an activation, with what each adds to the position: one, but for wrapper subclasses."""
        if is_ordinary(tensor):
            return [("", self.record_plain(Plain(tensor), policy))]
        return [(part.suffix, self.record_plain(part, policy)) for part in plain(tensor)]

    def record_plain(
        self, part: Plain, policy: Policy, kind: ValueKind = ValueKind.ACTIVATION, name: str | None = None, trusted: bool = False
    ) -> Value:
        """The value of one plain tensor. `trusted`: the caller knows that an equal version means equal bits."""
        tensor = part.tensor
        if part.reason is not None and (self._sink.measures or not tensor.is_meta):
            return self._without_bytes(part, kind, name)
        known = self.known.find(tensor)
        if known is not None and not known.kept and policy.bytes_kept and policy.budget is None:
            known = None  # recorded for a call whose policy keeps less
        if known is not None and (trusted or not self._sink.measures):
            return known
        if not self._sink.measures:
            value = self._announce(part, policy, kind, name)
        elif tensor.device.type == "cpu":
            value = self._record_on_host(part, known, policy, kind, name)
        else:
            value = self._record_on_device(part, known, policy, kind, name)
        if value is not known:
            self.known.remember(tensor, value)
        return value

    def _record_on_host(self, part: Plain, known: Value | None, policy: Policy, kind: ValueKind, name: str | None) -> Value:
        tensor = part.tensor.detach()
        flat = dense(tensor)
        fingerprint = fingerprint_on_host(flat) if self._fingerprints else None
        must_compare = False
        if known is not None and fingerprint is not None and fingerprint == known.fingerprint:
            return known
        statistics = summarise(flat)
        if known is not None and fingerprint is None and same_bits(statistics, known.statistics):
            must_compare = known.kept and version_of(tensor) is None
            if not must_compare:
                return known
        nbytes = flat.numel() * flat.element_size()
        reason = policy.refuse(nbytes)
        row = self._row(part, kind, name)._replace(statistics=statistics, fingerprint=fingerprint, reason=reason)
        if self._fingerprints and kind is ValueKind.PARAMETER and tensor.dtype is torch.float32:
            row = row._replace(detail=json.dumps({"rounded": roundings(flat)}))
        data = None
        if reason is None:
            data = octets(flat if flat.data_ptr() != tensor.data_ptr() else flat.clone()).numpy()
        value = Value(reason is None, statistics, fingerprint)
        if must_compare and known is not None:
            self._sink.add_pending(value, _Compared(known, row, data, 0 if data is None else nbytes))
        else:
            self._sink.add_value(value, row, data, nbytes)
        return value

    def _record_on_device(self, part: Plain, known: Value | None, policy: Policy, kind: ValueKind, name: str | None) -> Value:
        tensor = part.tensor.detach()
        flat = dense(tensor)
        nbytes = flat.numel() * flat.element_size()
        reason = policy.refuse(nbytes)
        value = Value(reason is None)
        row = self._row(part, kind, name)._replace(reason=reason)
        pending = DevicePending(
            flat,
            row,
            known,
            policy,
            keep_bytes=reason is None,
            fingerprints=self._fingerprints,
            roundings=kind is ValueKind.PARAMETER and tensor.dtype is torch.float32,
            compare_bytes=not self._fingerprints and version_of(tensor) is None,
        )
        self._sink.add_pending(value, pending)
        return value

    def _announce(self, part: Plain, policy: Policy, kind: ValueKind, name: str | None) -> Value:
        nbytes = part.tensor.numel() * part.tensor.element_size()
        reason = policy.refuse(nbytes)
        value = Value(reason is None)
        self._sink.add_value(value, self._row(part, kind, name)._replace(reason=reason), None, nbytes)
        return value

    def _without_bytes(self, part: Plain, kind: ValueKind, name: str | None) -> Value:
        value = Value(False)
        self._sink.add_value(value, self._row(part, kind, name)._replace(reason=part.reason), None, 0)
        return value

    def _row(self, part: Plain, kind: ValueKind, name: str | None) -> ValueRow:
        tensor = part.tensor
        device = self._devices.get(tensor.device)
        if device is None:
            device = self._devices[tensor.device] = str(tensor.device)
        row_major = tensor.layout is not torch.strided or tensor.is_nested or tensor.is_contiguous()
        return ValueRow(
            dtype=str(tensor.dtype)[6:],
            shape=() if tensor.is_nested else tuple(tensor.shape),
            kind=kind,
            name=name,
            device=device,
            strides=None if row_major else tuple(tensor.stride()),
            version=0 if part.reason is not None else version_of(tensor) or 0,
            placement=part.placement,
            detail=part.detail,
        )


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


def dense(tensor: Tensor) -> Tensor:
    """The same elements, row-major and without lazy conjugation; the tensor itself where it is so already."""
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous()
