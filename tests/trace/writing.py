"""Small traces for tests, written without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.fingerprint import fingerprint
from layerdiff.trace.schema import ABSENT, CallKind, CallRow, CallStatus, Role, Statistics, ValueRow
from layerdiff.trace.writer import TraceWriter


def raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def value_row(array: NDArray[Any], dtype: str | None = None, **fields: Any) -> ValueRow:
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)] if numbers.size else numbers
    statistics = None
    if finite.size:
        counts = [int(np.isnan(numbers).sum()), int((numbers == np.inf).sum()), int((numbers == -np.inf).sum())]
        statistics = Statistics(finite.min(), finite.max(), finite.mean(), float(np.sqrt(np.mean(finite**2))), *counts)
    return ValueRow(dtype or str(array.dtype), array.shape, statistics=statistics, fingerprint=fingerprint(raw(array)), **fields)


def write_model(
    path: Path, modules: dict[str, tuple[str, NDArray[Any]]], *, inputs: NDArray[Any], meta: dict[str, Any] | None = None, steps: int = 1
) -> Path:
    """A trace of a root whose children run one after another, each fed with the output of the one before.

    `modules`: path -> (type, output); the root returns the last output.
    """
    writer = TraceWriter(path, meta=meta or {})
    root = writer.add_root("model", "Root")
    for step in range(steps):
        top = writer.begin_call(CallRow(CallKind.MODULE, "", type="Root", root=root, step=step))
        current = writer.add_value(value_row(inputs), raw(inputs))
        writer.add_edge(top, Role.INPUT, "in[0]", current)
        for name, (type_name, output) in modules.items():
            call = writer.begin_call(CallRow(CallKind.MODULE, name, type=type_name, root=root, parent=top, step=step))
            writer.add_edge(call, Role.INPUT, "in[0]", current)
            current = writer.add_value(value_row(output), raw(output))
            writer.add_edge(call, Role.OUTPUT, "out", current)
            writer.end_call(call, CallStatus.RETURNED)
        writer.add_edge(top, Role.OUTPUT, "out", current)
        writer.end_call(top, CallStatus.RETURNED)
        writer.end_step()
    return writer.close()


__all__ = ["ABSENT", "raw", "value_row", "write_model"]
