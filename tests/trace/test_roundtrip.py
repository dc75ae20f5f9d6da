from __future__ import annotations

import os
import stat
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.errors import EmptyTraceError, NotATraceError, RecorderError, TraceError, UnfinishedTraceError
from layerdiff.trace.dtypes import DTYPES
from layerdiff.trace.reader import open_trace
from layerdiff.trace.recover import recover
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role, Statistics, ValueKind, ValueRow
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import raw, value_row, write_model

ODD_NAMES = ["a.ü.层", "a/b", "x" * 10_000, "\x1b[31mred", "[bold]x[/bold]", "a|b", "<script>", "", "\ud800", "nul\x00byte", "new\nline"]


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    dtype = DTYPES[name]
    rng = np.random.default_rng(0)
    small, large = (rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8) for count in (6, 96 * 1024))
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    writer.begin_call(CallRow(CallKind.MODULE, ""))
    for data, shape in ((small, (2, 3)), (large, (96, 1024))):
        writer.add_value(ValueRow(name, shape), data)
    file = open_trace(writer.close()).files[0]
    for value, data, shape in ((0, small, (2, 3)), (1, large, (96, 1024))):
        assert file.shape(value) == shape
        assert file.dtype(value) is dtype
        assert file.raw(value).reshape(-1).view(np.uint8).tobytes() == data.tobytes()
        stored = file.stored(value)
        assert stored is not None
        assert b"".join(block.tobytes() for block in stored.blocks(1000)) == data.tobytes()


def test_hdf5_reads_native_and_bfloat16_datasets_by_itself(tmp_path: Path) -> None:
    numbers = np.arange(40_000, dtype=np.float32)
    rounded = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    writer.begin_call(CallRow(CallKind.MODULE, ""))
    writer.add_value(ValueRow("float32", (200, 200)), raw(numbers))
    writer.add_value(ValueRow("bfloat16", (200, 200)), raw(rounded))
    with h5py.File(writer.close()) as file:
        assert np.array_equal(file["data/0"][:], numbers.reshape(200, 200))
        expected = (rounded.astype(np.uint32) << 16).view(np.float32).reshape(200, 200)
        assert np.array_equal(file["data/1"][:].astype(np.float32), expected)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=40), flushes=st.sets(st.integers(0, 40)))
def test_values_of_any_size_in_any_batches(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], flushes: set[int]) -> None:
    path = tmp_path_factory.mktemp("t") / "t.h5"
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    writer = TraceWriter(path, meta={})
    writer.begin_call(CallRow(CallKind.MODULE, ""))
    for i, array in enumerate(arrays):
        writer.add_value(ValueRow("uint8", array.shape), array)
        if i in flushes:
            writer.flush()
    for i, array in enumerate(arrays):
        assert writer.stored_equal(i, array) == bool(array.size)
        if array.size:
            other = array.copy()
            other[-1] ^= 1
            assert not writer.stored_equal(i, other)
    file = open_trace(writer.close()).files[0]
    for i, array in enumerate(arrays):
        assert np.array_equal(file.raw(i), array)


def test_calls_edges_texts_and_numbers_come_back(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", meta={"rank": 3, "nan": float("nan")})
    writer.add_root("lm", "Model")
    top = writer.begin_call(CallRow(CallKind.MODULE, "", type="Model", step=2))
    for name in ODD_NAMES:
        call = writer.begin_call(CallRow(CallKind.MODULE, name, type="Layer", parent=top, step=2, occurrence=1, detail='{"x": 1}'))
        writer.end_call(call, CallStatus.RAISED, detail='{"x": 2}')
    numbers = Statistics(-np.inf, 1e-300, float("nan"), 0.1, 1, 2, 3)
    row = ValueRow(
        "float32",
        (3,),
        kind=ValueKind.PARAMETER,
        name="w",
        device="cuda:1",
        strides=(7,),
        version=4,
        statistics=numbers,
        fingerprint=(2**64 - 1, 5),
        reason="r",
    )
    value = writer.add_value(row, None)
    writer.add_edge(top, Role.WEIGHT, "weight", value)
    writer.end_call(top, CallStatus.RETURNED)
    file = open_trace(writer.close()).files[0]
    assert file.meta["rank"] == file.rank == 3
    assert file.meta["roots"] == [{"name": "lm", "type": "Model"}]
    assert [file.site(call) for call in range(1, len(ODD_NAMES) + 1)] == ODD_NAMES
    assert file.json(int(file.calls.detail[1])) == {"x": 2}
    assert file.calls.status.tolist() == [CallStatus.RETURNED] + [CallStatus.RAISED] * len(ODD_NAMES)
    assert file.calls.end[1] == 2 and file.calls.end[0] == len(ODD_NAMES) + 1
    found = file.statistics(value)
    assert found is not None and np.isnan(found.mean) and found._replace(mean=0.0) == numbers._replace(mean=0.0)
    assert file.fingerprint(value) == (2**64 - 1, 5)
    assert [(e.role, e.position, e.value) for e in file.edges_of(top)] == [(Role.WEIGHT, "weight", value)]
    with pytest.raises(TraceError, match="no bytes were kept of value 0: r"):
        file.raw(value)


def test_views_read_the_elements_of_their_base(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    writer.begin_call(CallRow(CallKind.MODULE, ""))
    value = writer.add_value(value_row(base), raw(base))
    view = writer.add_value(ValueRow("float32", (6, 2), base=value, view='{"offset": 6, "strides": [1, 12]}'), None)
    file = open_trace(writer.close()).files[0]
    expected = base[1::2].T
    assert np.array_equal(file.read(view), expected)
    stored = file.stored(view)
    assert stored is not None
    assert np.array_equal(np.concatenate([block.copy() for block in stored.blocks(5)]), expected.ravel())


def test_several_roots_are_named_by_attribute_or_order(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    for name in ("encoder", None, "encoder"):
        root = writer.add_root(name, "M")
        writer.begin_call(CallRow(CallKind.MODULE, "", root=root))
        writer.begin_call(CallRow(CallKind.MODULE, "fc", root=root))
    file = open_trace(writer.close()).files[0]
    assert [file.site(call) for call in range(6)] == ["encoder", "encoder.fc", "model_1", "model_1.fc", "model_2", "model_2.fc"]


def test_a_folder_is_one_trace_ordered_by_rank(tmp_path: Path) -> None:
    for rank in (1, 0):
        write_model(tmp_path / f"rank{rank:05}.h5", {"fc": ("Linear", np.ones(3))}, inputs=np.ones(3), meta={"rank": rank})
    assert [file.rank for file in open_trace(tmp_path).files] == [0, 1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotATraceError, match=r"holds no \*\.h5 file"):
        open_trace(tmp_path / "empty")


def test_a_trace_without_calls_says_why(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", meta={"empty_reason": "no forward ran."})
    path = writer.close()
    with pytest.raises(EmptyTraceError, match="without calls: no forward ran"):
        open_trace(path)
    assert len(open_trace(path, allow_empty=True).files) == 1


class TestPaths:
    def test_the_name_appears_only_when_all_is_in_it(self, tmp_path: Path) -> None:
        path = tmp_path / "t.h5"
        writer = TraceWriter(path, meta={})
        writer.begin_call(CallRow(CallKind.MODULE, ""))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["t.h5.journal", "t.h5.part"]
        with pytest.raises(UnfinishedTraceError, match="still being written"):
            open_trace(path)
        writer.close()
        assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]

    def test_the_same_path_twice_at_once(self, tmp_path: Path) -> None:
        first = TraceWriter(tmp_path / "t.h5", meta={})
        with pytest.raises(RecorderError, match="another process is recording to it now"):
            TraceWriter(tmp_path / "t.h5", meta={})
        first.discard()
        assert list(tmp_path.iterdir()) == []

    def test_an_unfinished_recording_is_never_overwritten(self, tmp_path: Path) -> None:
        writer = TraceWriter(tmp_path / "t.h5", meta={})
        writer.abandon_after_fork()  # closes what a dead process would have closed
        with pytest.raises(RecorderError, match="layerdiff recover"):
            TraceWriter(tmp_path / "t.h5", meta={})
        with pytest.raises(UnfinishedTraceError, match=r"its writer died\. `layerdiff recover .*t\.h5\.part`"):
            open_trace(tmp_path / "t.h5")

    def test_a_finished_trace_is_replaced_only_by_a_finished_one(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "t.h5", {}, inputs=np.ones(3))
        before = path.read_bytes()
        writer = TraceWriter(path, meta={})
        assert path.read_bytes() == before
        writer.discard()
        assert path.read_bytes() == before

    def test_folders_that_cannot_hold_it(self, tmp_path: Path) -> None:
        with pytest.raises(RecorderError, match="does not exist"):
            TraceWriter(tmp_path / "none" / "t.h5", meta={})
        with pytest.raises(RecorderError, match="it is a folder"):
            TraceWriter(tmp_path, meta={})

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_an_unwritable_folder(self, tmp_path: Path) -> None:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(RecorderError, match="Permission denied"):
            TraceWriter(tmp_path / "t.h5", meta={})


def test_recovering_what_is_whole_or_absent(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="does not exist"):
        recover(tmp_path / "t.h5.part")
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    with pytest.raises(UnfinishedTraceError, match="still being written"):
        recover(tmp_path / "t.h5.part")
    writer.discard()
