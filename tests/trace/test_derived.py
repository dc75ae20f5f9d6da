"""Views and written versions: read back, and refused where their places do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerdiff.errors import TraceError, UnsafeTraceError
from layerdiff.trace import writer
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.recover import recover
from layerdiff.trace.schema import CallKind, CallRow, ValueRow
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import raw, value_row, write_derived


def test_views_and_versions_read_back(tmp_path: Path) -> None:
    path, expected = write_derived(tmp_path / "t.h5")
    for order in (list(expected), list(reversed(expected))):
        file = open_trace(path).files[0]
        for value in order:
            np.testing.assert_array_equal(expected[value], file.read(value))
            stored = file.stored(value)
            assert stored is not None
            blocks = [block.copy() for block in stored.blocks(5)]
            np.testing.assert_array_equal(expected[value].reshape(-1), np.concatenate([np.empty(0, expected[value].dtype), *blocks]))


def test_they_are_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*args: Any, **kwargs: Any) -> None:
        raise OSError("killed")

    monkeypatch.setattr(writer, "write_index", die)
    with pytest.raises(OSError, match="killed"):
        write_derived(tmp_path / "t.h5")
    monkeypatch.undo()
    _, expected = write_derived(tmp_path / "whole.h5")
    file = TraceFile(recover(tmp_path / "t.h5.part"))
    for value, array in expected.items():
        np.testing.assert_array_equal(array, file.read(value))


def test_a_thousand_writes(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    writer.begin_call(CallRow(CallKind.MODULE, ""))
    now = np.zeros((1000, 2), np.float32)
    value = writer.add_value(value_row(now), raw(now))
    for i in range(1000):
        written = np.full((1, 2), i + 1, np.float32)
        part = writer.add_value(value_row(written), raw(written))
        view = json.dumps([{"value": part, "offset": 2 * i, "strides": [2, 1]}])
        value = writer.add_value(ValueRow("float32", (1000, 2), base=value, view=view, patched=True), None)
    file = open_trace(writer.close()).files[0]
    np.testing.assert_array_equal(np.repeat(np.arange(1, 1001, dtype=np.float32), 2).reshape(1000, 2), file.read(value))


BASE, PART, INDEX, BOOLEANS, NOTHING, VERSION = range(6)
GOOD = {"value": PART, "offset": 0, "strides": [3, 1]}
HOSTILE: dict[str, tuple[bool, Any]] = {
    "view beyond the base": (False, {"offset": 7, "strides": [3, 1]}),
    "view with a negative offset": (False, {"offset": -1, "strides": [3, 1]}),
    "view with a negative stride": (False, {"offset": 5, "strides": [3, -1]}),
    "view with real strides": (False, {"offset": 0, "strides": [3.0, 1]}),
    "view with strides for another rank": (False, {"offset": 0, "strides": [1]}),
    "view without strides": (False, {"offset": 0}),
    "view that is a list": (False, [GOOD]),
    "view of booleans for numbers": (False, {"offset": True, "strides": [3, 1]}),
    "patches that are no list": (True, GOOD),
    "patch that is no object": (True, [3]),
    "patch without a value": (True, [{"offset": 0, "strides": [3, 1]}]),
    "patch with a later value": (True, [{**GOOD, "value": 99}]),
    "patch made of itself": (True, [{**GOOD, "value": 6}]),
    "patch without bytes": (True, [{**GOOD, "value": NOTHING}]),
    "patch that is a version": (True, [{**GOOD, "value": VERSION, "strides": [1, 1]}]),
    "patch beyond the base": (True, [{**GOOD, "offset": 5}]),
    "patch with huge strides": (True, [{**GOOD, "strides": [1 << 61, 1]}]),
    "dim beyond the part": (True, [{**GOOD, "dim": 2, "size": 3, "index": INDEX}]),
    "dim without a size": (True, [{**GOOD, "dim": 0, "index": INDEX}]),
    "size beyond the base": (True, [{**GOOD, "dim": 0, "size": 50, "index": INDEX}]),
    "index beyond the size": (True, [{**GOOD, "dim": 0, "size": 1, "index": INDEX}]),
    "index of another length": (True, [{**GOOD, "dim": 1, "size": 3, "index": INDEX}]),
    "index of booleans": (True, [{**GOOD, "dim": 0, "size": 3, "index": BOOLEANS}]),
    "index that is no row": (True, [{**GOOD, "dim": 0, "size": 3, "index": [0, 1]}]),
}


def derived(path: Path, *, patched: bool, view: Any, shape: tuple[int, ...] = (2, 3), base: int = BASE) -> TraceFile:
    writer = TraceWriter(path, meta={})
    writer.begin_call(CallRow(CallKind.MODULE, ""))
    for array in (np.zeros((3, 3), np.float32), np.ones((2, 3), np.float32), np.array([2, 0])):
        writer.add_value(value_row(array), raw(array))
    writer.add_value(ValueRow("bool", (2,)), np.array([0, 1], np.uint8))
    writer.add_value(ValueRow("float32", (2, 3), reason="none"), None)
    writer.add_value(ValueRow("float32", (2, 3), base=PART, view="[]", patched=True), None)
    writer.add_value(ValueRow("float32", shape, base=base, view=json.dumps(view), patched=patched), None)
    return open_trace(writer.close()).files[0]


def test_the_good_ones_read(tmp_path: Path) -> None:
    view = derived(tmp_path / "v.h5", patched=False, view={"offset": 3, "strides": [3, 1]})
    np.testing.assert_array_equal(np.zeros((2, 3), np.float32), view.read(6))
    patches = [{**GOOD, "dim": 0, "size": 3, "index": INDEX}]
    patched = derived(tmp_path / "p.h5", patched=True, view=patches, shape=(3, 3))
    np.testing.assert_array_equal(np.array([[1] * 3, [0] * 3, [1] * 3], np.float32), patched.read(6))


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_places_are_refused(tmp_path: Path, name: str) -> None:
    patched, view = HOSTILE[name]
    file = derived(tmp_path / "t.h5", patched=patched, view=view, shape=(3, 3) if patched else (2, 3))
    with pytest.raises(UnsafeTraceError, match=r"t\.h5: the index is wrong"):
        file.read(6)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(UnsafeTraceError, match="claims"):
        derived(tmp_path / "a.h5", patched=False, view={"offset": 0, "strides": [0, 0]}, shape=(1 << 20, 1 << 20)).read(6)
    with pytest.raises(UnsafeTraceError, match="has 24 bytes, and the version before it 36"):
        derived(tmp_path / "b.h5", patched=True, view=[]).read(6)
    with pytest.raises(UnsafeTraceError, match="of nothing"):
        derived(tmp_path / "c.h5", patched=True, view=[], base=-1).read(6)
    with pytest.raises(UnsafeTraceError, match="earlier row"):
        derived(tmp_path / "d.h5", patched=True, view=[], base=6).read(6)
    with pytest.raises(TraceError, match="no bytes were kept of value 4: none"):
        derived(tmp_path / "e.h5", patched=True, view=[], base=NOTHING).read(6)
