"""`Planner`: what a recording would hold, counted from one dry forward. Nothing is written or read.

The same hooks as the Recorder's, with a sink that counts. It works with a model on the meta device, where
nothing is computed either. Values are taken for shared where torch's version counters say so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from layerdiff.record.calls import Calls
from layerdiff.record.collectives import Collectives
from layerdiff.record.hooks import ModuleHooks
from layerdiff.record.options import Options, Selection
from layerdiff.record.sink import Edge, Patch, Pending, Value
from layerdiff.trace.schema import CALLS, EDGES, VALUES, CallRow, CallStatus, ValueRow

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from layerdiff.record.operators import OperatorMode

_TEXT_BYTES: Final = 24  # a shape, a path or a picture of arguments is shared by many rows


class PlanFinished(BaseException):
    """Leaves a script once its first forward was counted. No Exception, so that a script does not catch it."""


@dataclass(frozen=True)
class Plan:
    """What the forwards that ran would have recorded."""

    steps: int
    calls: int
    values: int
    kept: int
    """Values whose bytes would be kept."""
    value_bytes: int
    index_bytes: int
    """About; the journal takes as much again and a half while recording."""
    free_bytes: int | None
    """Room on the disk, where a path was given."""

    @property
    def total_bytes(self) -> int:
        """Bytes of values and index."""
        return self.value_bytes + self.index_bytes

    @property
    def fits(self) -> bool | None:
        """Whether one such recording fits on the disk; None where no path was given."""
        return None if self.free_bytes is None else self.total_bytes <= self.free_bytes


class Counter:
    """A sink that counts."""

    measures = False

    def __init__(self) -> None:
        self.steps = self.calls = self.values = self.kept = self.nbytes = self.edges = 0

    def add_root(self, name: str | None, type: str) -> None:
        """A root takes no room worth counting."""

    def begin_call(self, number: int, row: CallRow, edges: list[Edge], detail: Callable[[], str | None] | None = None) -> None:
        """Count a call and its edges."""
        self.calls += 1
        self.edges += len(edges)

    def end_call(self, call: int, edges: list[Edge], status: CallStatus, detail: str) -> None:
        """Count the edges of what came out."""
        self.edges += len(edges)

    def add_operator(self, number: int, row: CallRow, edges: list[Edge], status: CallStatus, detail: str) -> None:
        """Count a call and its edges."""
        self.calls += 1
        self.edges += len(edges)

    def add_value(self, value: Value, row: ValueRow, data: NDArray[np.uint8] | None, nbytes: int) -> None:
        """Count a value, and its bytes where they would be kept."""
        self.values += 1
        if row.reason is None:
            self.kept += 1
            self.nbytes += nbytes

    def add_view(self, value: Value, row: ValueRow, base: Value, offset: int, strides: tuple[int, ...], *, whole: bool) -> None:
        """A view takes no bytes."""
        self.values += 1

    def add_patched(self, value: Value, row: ValueRow, base: Value, patches: list[Patch]) -> None:
        """What was written is counted by itself."""
        self.values += 1

    def add_pending(self, value: Value, pending: Pending) -> None:
        """Nothing is computed on a device here."""
        raise AssertionError("a planner measures nothing")

    def add_edges(self, call: int, edges: list[Edge]) -> None:
        """Count edges."""
        self.edges += len(edges)

    def end_step(self) -> None:
        """Count a step."""
        self.steps += 1

    def index_bytes(self) -> int:
        """About what the index takes."""
        rows = ((self.calls, CALLS), (self.values, VALUES), (self.edges, EDGES))
        return sum(count * (_TEXT_BYTES + sum(column.itemsize for column in columns.values())) for count, columns in rows)


class Planner:
    """Counts every forward inside a `with` block; `plan()` says what there would be.

    Takes the Recorder's arguments. With `stop`, the first forward of a root ends in PlanFinished.

    Raises:
        RecorderError: where an option is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        model: nn.Module | None = None,
        *,
        stop: bool = False,
        **selection: Unpack[Selection],
    ) -> None:
        options = Options.checked(**selection)
        self._path = None if path is None else Path(path)
        self._counter = _Stopping() if stop else Counter()
        self._error: Exception | None = None
        self.skipped: dict[str, str] = {}
        """What cannot be seen, by path, with the reason."""
        calls = Calls(self._counter, options, skipped=self.skipped, name_root=lambda module: None)
        self._hooks = ModuleHooks(calls, options, model=model, skipped=self.skipped, failed=self._failed)
        self._collectives = Collectives(calls, self._counter, self._failed)
        self._mode: OperatorMode | None = None
        if options.operators is not None:
            from layerdiff.record.operators import OperatorMode

            self._mode = self._hooks.mode = OperatorMode(calls, self._counter, self._failed)

    def __enter__(self) -> Planner:
        self._hooks.install()
        self._collectives.start()
        if self._mode is not None:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._mode is not None:
            self._mode.stop()
        self._collectives.stop()
        self._hooks.remove()

    def _failed(self, error: Exception) -> None:
        self._error = error

    def plan(self) -> Plan:
        """The count so far."""
        if self._error is not None:
            raise self._error
        counter = self._counter
        return Plan(
            steps=counter.steps,
            calls=counter.calls,
            values=counter.values,
            kept=counter.kept,
            value_bytes=counter.nbytes,
            index_bytes=counter.index_bytes(),
            free_bytes=None if self._path is None else _free_bytes(self._path),
        )


class _Stopping(Counter):
    def end_step(self) -> None:
        """Count the step, and leave."""
        super().end_step()
        raise PlanFinished


def _free_bytes(path: Path) -> int:
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
