"""`Sink`: where calls and values go as the hooks see them; and `TraceSink`, which writes them.

A value is a token until the writer's thread has given it a row: on a device other than the CPU, only
that thread finds out whether the value was stored before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from layerdiff.record.delivery import Delivery
from layerdiff.trace.schema import ABSENT, CallRow, CallStatus, Role, Statistics, ValueKind, ValueRow
from layerdiff.trace.writer import TraceWriter


class Value:
    """A value on its way into the trace."""

    __slots__ = ("fingerprint", "kept", "kind", "name", "patched", "placement", "row", "run", "sampled", "statistics")

    def __init__(
        self,
        kept: bool,
        statistics: Statistics | None = None,
        fingerprint: tuple[int, int] | None = None,
        kind: ValueKind = ValueKind.ACTIVATION,
        name: str | None = None,
    ) -> None:
        self.kept = kept
        """Whether its bytes are (to be) stored."""
        self.statistics = statistics
        self.fingerprint = fingerprint
        self.row = ABSENT
        self.sampled = b""
        """A few of its bytes, where there is no fingerprint."""
        self.kind = kind
        self.name = name
        self.placement: str | None = None
        """JSON, where it is a part of a logical tensor."""
        self.patched = False
        """Whether it is an earlier value after some writes, or a view of such."""
        self.run = (0, 0, b"")
        """Where it lies in its storage, first byte and how many, and a few of these bytes; where operators are recorded."""


Edge = tuple[Role, str, Value]
"""What a value is to a call, and at which position."""


Patch = tuple[Value, dict[str, Any], Value | None]
"""What was written, where (`format.md`), and the indices of the slices that were written, where it was slices."""


class Pending(Protocol):
    """A value whose numbers are still on their way from a device, or whose bytes must be compared."""

    nbytes: int

    def settle(self, stored_equal: Callable[[int, NDArray[np.uint8]], bool]) -> tuple[Value | None, ValueRow, NDArray[np.uint8] | None]:
        """Wait for the numbers. Returns the earlier value that it is, or None, and its row and bytes."""


class Sink(Protocol):
    """Receives a recording. Calls are numbered from 0."""

    measures: bool
    """Whether it wants numbers and bytes, or only to know what there would be."""

    def add_root(self, name: str | None, type: str) -> None:
        """The next root."""

    def begin_call(self, number: int, row: CallRow, edges: list[Edge], detail: Callable[[], str | None] | None = None) -> None:
        """The next call has begun; `edges`: what went in. `detail` says what is known of it, asked when it is written."""

    def end_call(self, call: int, edges: list[Edge], status: CallStatus, detail: str) -> None:
        """A call ended; `edges`: what came out."""

    def add_value(self, value: Value, row: ValueRow, data: NDArray[np.uint8] | None, nbytes: int) -> None:
        """A new value; `nbytes` is what its bytes take, or would."""

    def add_operator(self, number: int, row: CallRow, edges: list[Edge], status: CallStatus, detail: str) -> None:
        """The next call, an operator's, which has ended."""

    def add_view(self, value: Value, row: ValueRow, base: Value, offset: int, strides: tuple[int, ...], *, whole: bool) -> None:
        """A value whose bytes are some of those of `base`: from element `offset` of its dtype on, `strides` apart.

        `whole`: it has the dtype of `base` and reaches from its first to its last byte.
        """

    def add_patched(self, value: Value, row: ValueRow, base: Value, patches: list[Patch]) -> None:
        """A value that is `base` after some writes."""

    def add_pending(self, value: Value, pending: Pending) -> None:
        """A value that will be known later."""

    def add_edges(self, call: int, edges: list[Edge]) -> None:
        """Values at positions of a call."""

    def end_step(self) -> None:
        """A forward of a root ended."""


class TraceSink:
    """A sink that queues everything for the thread that owns the writer."""

    measures = True

    def __init__(self, writer: TraceWriter, delivery: Delivery) -> None:
        self._writer = writer
        self._delivery = delivery

    def add_root(self, name: str | None, type: str) -> None:
        """The next root."""
        self._delivery.put(self._writer.add_root, name, type)

    def begin_call(self, number: int, row: CallRow, edges: list[Edge], detail: Callable[[], str | None] | None = None) -> None:
        """The next call has begun."""
        self._delivery.put(self._write_begin, number, row, edges, detail)

    def end_call(self, call: int, edges: list[Edge], status: CallStatus, detail: str) -> None:
        """A call ended."""
        self._delivery.put(self._write_end, call, edges, status, detail)

    def add_value(self, value: Value, row: ValueRow, data: NDArray[np.uint8] | None, nbytes: int) -> None:
        """A new value."""
        if data is None:
            self._delivery.put(self._write_value, value, row, None)
        else:
            self._delivery.put_bytes(nbytes, self._write_value, value, row, data)

    def add_operator(self, number: int, row: CallRow, edges: list[Edge], status: CallStatus, detail: str) -> None:
        """The next call, an operator's, which has ended."""
        self._delivery.put(self._write_operator, number, row, edges, status, detail)

    def add_view(self, value: Value, row: ValueRow, base: Value, offset: int, strides: tuple[int, ...], *, whole: bool) -> None:
        """A value whose bytes are some of those of `base`."""
        self._delivery.put(self._write_view, value, row, base, offset, strides, whole)

    def add_patched(self, value: Value, row: ValueRow, base: Value, patches: list[Patch]) -> None:
        """A value that is `base` after some writes."""
        self._delivery.put(self._write_patched, value, row, base, patches)

    def add_pending(self, value: Value, pending: Pending) -> None:
        """A value that will be known later."""
        self._delivery.put_bytes(pending.nbytes, self._write_pending, value, pending)

    def add_edges(self, call: int, edges: list[Edge]) -> None:
        """Values at positions of a call."""
        self._delivery.put(self._write_edges, call, edges)

    def end_step(self) -> None:
        """A forward of a root ended."""
        self._delivery.put(self._writer.end_step)

    # in the writer's thread

    def _write_value(self, value: Value, row: ValueRow, data: NDArray[np.uint8] | None) -> None:
        value.row = self._writer.add_value(row, data)

    def _write_operator(self, number: int, row: CallRow, edges: list[Edge], status: CallStatus, detail: str) -> None:
        self._writer.begin_call(row)
        self._write_edges(number, edges)
        self._writer.end_call(number, status, detail)

    def _write_begin(self, number: int, row: CallRow, edges: list[Edge], detail: Callable[[], str | None] | None) -> None:
        self._writer.begin_call(row if detail is None else row._replace(detail=detail()))
        self._write_edges(number, edges)

    def _write_end(self, call: int, edges: list[Edge], status: CallStatus, detail: str) -> None:
        self._write_edges(call, edges)
        self._writer.end_call(call, status, detail)

    def _write_view(self, value: Value, row: ValueRow, base: Value, offset: int, strides: tuple[int, ...], whole: bool) -> None:
        if whole and row.strides is None:
            row = row._replace(statistics=base.statistics, fingerprint=base.fingerprint)
        elif whole and _is_dense(row.shape, strides):
            row = row._replace(statistics=base.statistics)
        value.statistics, value.fingerprint = row.statistics, row.fingerprint
        view = f'{{"offset": {offset}, "strides": {list(strides)}}}'
        value.row = self._writer.add_value(row._replace(base=base.row, view=view), None)

    def _write_patched(self, value: Value, row: ValueRow, base: Value, patches: list[Patch]) -> None:
        said = [{"value": part.row, **place, **({} if index is None else {"index": index.row})} for part, place, index in patches]
        value.row = self._writer.add_value(row._replace(base=base.row, view=json.dumps(said), patched=True), None)

    def _write_pending(self, value: Value, pending: Any) -> None:
        same, row, data = pending.settle(self._writer.stored_equal)
        value.statistics, value.fingerprint = row.statistics, row.fingerprint
        if same is not None:
            value.row = same.row
        else:
            value.row = self._writer.add_value(row, data)

    def _write_edges(self, call: int, edges: list[Edge]) -> None:
        add_edge = self._writer.add_edge
        for role, position, value in edges:
            add_edge(call, role, position, value.row)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements are those of a row-major tensor in another order: no gaps, none twice."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
