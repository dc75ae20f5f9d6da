"""`Sink`: where calls and values go as the hooks see them; and `TraceSink`, which writes them.

A value is a token until the writer's thread has given it a row: on a device other than the CPU, only
that thread finds out whether the value was stored before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from layerdiff.record.delivery import Delivery
from layerdiff.trace.schema import ABSENT, CallRow, CallStatus, Role, Statistics, ValueRow
from layerdiff.trace.writer import TraceWriter


class Value:
    """A value on its way into the trace."""

    __slots__ = ("fingerprint", "kept", "row", "sampled", "statistics")

    def __init__(self, kept: bool, statistics: Statistics | None = None, fingerprint: tuple[int, int] | None = None) -> None:
        self.kept = kept
        """Whether its bytes are (to be) stored."""
        self.statistics = statistics
        self.fingerprint = fingerprint
        self.row = ABSENT
        self.sampled = b""
        """A few of its bytes, where there is no fingerprint."""


Edge = tuple[Role, str, Value]
"""What a value is to a call, and at which position."""


class Pending(Protocol):
    """A value whose numbers are still on their way from a device, or whose bytes must be compared."""

    nbytes: int

    def settle(self, stored_equal: Callable[[int, NDArray[np.uint8]], bool]) -> tuple[Value | None, ValueRow, NDArray[np.uint8] | None]:
        """Wait for the numbers. Returns the earlier value that it is, or None, and its row and bytes."""


class Sink(Protocol):
    """Receives a recording. Calls are numbered by whoever calls `begin_call`, from 0."""

    measures: bool
    """Whether it wants numbers and bytes, or only to know what there would be."""

    def add_root(self, name: str | None, type: str) -> None:
        """The next root."""

    def begin_call(self, row: CallRow) -> None:
        """The next call begins."""

    def end_call(self, call: int, status: CallStatus, detail: str) -> None:
        """A call ended."""

    def add_value(self, value: Value, row: ValueRow, data: NDArray[np.uint8] | None, nbytes: int) -> None:
        """A new value; `nbytes` is what its bytes take, or would."""

    def add_view(self, value: Value, row: ValueRow, base: Value) -> None:
        """A value whose bytes are some of those of `base`."""

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

    def begin_call(self, row: CallRow) -> None:
        """The next call begins."""
        self._delivery.put(self._writer.begin_call, row)

    def end_call(self, call: int, status: CallStatus, detail: str) -> None:
        """A call ended."""
        self._delivery.put(self._writer.end_call, call, status, detail)

    def add_value(self, value: Value, row: ValueRow, data: NDArray[np.uint8] | None, nbytes: int) -> None:
        """A new value."""
        if data is None:
            self._delivery.put(self._write_value, value, row, None)
        else:
            self._delivery.put_bytes(nbytes, self._write_value, value, row, data)

    def add_view(self, value: Value, row: ValueRow, base: Value) -> None:
        """A value whose bytes are some of those of `base`."""
        self._delivery.put(self._write_view, value, row, base)

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

    def _write_view(self, value: Value, row: ValueRow, base: Value) -> None:
        value.row = self._writer.add_value(row._replace(base=base.row), None)

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
