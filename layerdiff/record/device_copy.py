"""Values on a device other than the CPU: numbers computed there, bytes copied without waiting.

Everything is queued on the device's current stream, so it reads the tensor as it is at the moment of
the call, whatever the model does to it next. The writer's thread waits for the event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.record.fingerprint import as_hex, fingerprint_on_device, octets, pair_of
from layerdiff.record.keep import Policy
from layerdiff.record.sink import Value
from layerdiff.record.summary import EMPTY, from_scalars, same_bits, summarise_on_device
from layerdiff.record.tensors import detail_with
from layerdiff.trace.schema import ValueRow

_ROUNDED = ("bfloat16", "float16")


class DevicePending:
    """One value under way. Made in the model's thread, settled in the writer's."""

    def __init__(
        self,
        flat: Tensor,
        row: ValueRow,
        known: Value | None,
        policy: Policy,
        *,
        keep_bytes: bool,
        fingerprints: bool,
        roundings: bool,
        compare_bytes: bool,
    ) -> None:
        self._row = row
        self._known = known
        self._policy = policy
        self._compare_bytes = compare_bytes
        self._count = flat.numel()
        self.nbytes = flat.numel() * flat.element_size() if keep_bytes else 0
        self._prints: list[Tensor] = []
        scalars = None
        if self._count:
            try:
                scalars = summarise_on_device(flat)
            except (RuntimeError, TypeError, NotImplementedError):
                scalars = None  # a dtype or device without these reductions
            if fingerprints:
                self._start_fingerprints(flat, roundings)
        self._scalars = None if scalars is None else to_host(scalars)
        self._bytes = to_host(octets(flat)) if keep_bytes else None
        self._event = _event(flat.device)

    def _start_fingerprints(self, flat: Tensor, roundings: bool) -> None:
        try:
            prints = [fingerprint_on_device(flat)]
            if roundings:
                prints += [fingerprint_on_device(flat.to(getattr(torch, name))) for name in _ROUNDED]
        except (RuntimeError, TypeError, NotImplementedError) as error:
            said = {"no_fingerprint": f"{flat.device.type}: {error}"[:200]}
            self._row = self._row._replace(detail=detail_with(self._row.detail, said))
        else:
            self._prints = [to_host(pair) for pair in prints]

    def settle(self, stored_equal: Callable[[int, NDArray[np.uint8]], bool]) -> tuple[Value | None, ValueRow, NDArray[np.uint8] | None]:
        """Wait for the device, and decide whether this is the earlier value."""
        if self._event is not None:
            self._event.synchronize()
        statistics = EMPTY if not self._count else None if self._scalars is None else from_scalars(self._scalars.tolist(), self._count)
        pairs = [pair_of(pair.tolist()) for pair in self._prints]
        fingerprint = pairs[0] if pairs else (0, 0) if not self._count else None
        row = self._row._replace(statistics=statistics, fingerprint=fingerprint)
        if len(pairs) > 1:
            rounded = {n: as_hex(p) for n, p in zip(_ROUNDED, pairs[1:], strict=True)}
            row = row._replace(detail=detail_with(row.detail, {"rounded": rounded}))
        data = None if self._bytes is None else self._bytes.numpy()
        known = self._known
        if known is not None and known.fingerprint == fingerprint and same_bits(known.statistics, statistics):
            proven = fingerprint is not None or not (self._compare_bytes and known.kept)
            if proven or (data is not None and stored_equal(known.row, data)):
                self._policy.give_back(self.nbytes)
                return known, row, None
        return None, row, data


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host, under way on the current stream where the device can."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    try:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return tensor.to("cpu")  # no pinned memory: wait
    return host.copy_(tensor, non_blocking=True)


def _event(device: torch.device) -> Any:
    if device.type == "cpu":
        return None
    module: Any = getattr(torch, device.type, None)  # torch.cuda, torch.xpu, a vendor's torch.npu
    if not hasattr(module, "Event"):
        if hasattr(module, "synchronize"):
            module.synchronize()
        return None
    event = module.Event()
    event.record(module.current_stream(device)) if hasattr(module, "current_stream") else event.record()
    return event
