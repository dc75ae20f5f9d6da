"""Small traces for tests, written without torch."""

from __future__ import annotations

import json
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


def write_derived(path: Path) -> tuple[Path, dict[int, NDArray[Any]]]:
    """A trace with views and written versions of values, and what each of its values is, by row."""
    writer = TraceWriter(path, meta={})
    writer.begin_call(CallRow(CallKind.MODULE, "", root=writer.add_root("model", "Root")))
    expected: dict[int, NDArray[Any]] = {}

    def add(array: NDArray[Any]) -> int:
        value = writer.add_value(value_row(array), raw(array))
        expected[value] = array
        return value

    def derive(array: NDArray[Any], base: int, view: object, *, patched: bool) -> int:
        row = ValueRow(str(array.dtype), array.shape, base=base, view=json.dumps(view), patched=patched)
        value = writer.add_value(row, None)
        expected[value] = array
        return value

    cache = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    base = add(cache)
    derive(cache.transpose(2, 0, 1)[1:], base, {"offset": 1, "strides": [1, 12, 4]}, patched=False)
    derive(cache.view(np.int16)[..., ::2], base, {"offset": 0, "strides": [24, 8, 2]}, patched=False)

    rows, places = -np.arange(16, dtype=np.float32).reshape(2, 2, 4), np.array([2, -3])
    part, index = add(rows), add(places)
    second = cache.copy()
    second[:, [2, 0]] = rows
    patched = derive(second, base, [{"value": part, "offset": 0, "strides": [12, 4, 1], "dim": 1, "size": 3, "index": index}], patched=True)

    half = add(np.array([[7], [9]], np.int16))
    third = second.copy()
    third.view(np.int16)[0, 1:, 5] = [7, 9]
    third[1, 1, :] = rows[0, 1]
    turned = derive(rows[0, 1], part, {"offset": 4, "strides": [1]}, patched=False)
    patches = [{"value": half, "offset": 13, "strides": [8, 1]}, {"value": turned, "offset": 16, "strides": [1]}]
    last = derive(third, patched, patches, patched=True)
    derive(third[:, 1:], last, {"offset": 4, "strides": [12, 4, 1]}, patched=False)
    derive(np.zeros((0, 3), np.float32), last, {"offset": 4, "strides": [12, 4]}, patched=False)
    return writer.close(), expected


__all__ = ["ABSENT", "raw", "value_row", "write_derived", "write_model"]
