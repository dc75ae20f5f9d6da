"""`inspect` and `recover`, on traces made with the writer alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from layerdiff.trace.claim import journal_path, part_path
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role, ValueRow
from layerdiff.trace.writer import TraceWriter
from tests.cli.conftest import Run


def writer(path: Path, *, rank: int | None = None) -> TraceWriter:
    environment = {"device": "cpu", "versions": {"torch": "2.13.0"}, "note": "\x1b[31mred"}
    return TraceWriter(path, meta={"environment": environment, "rank": rank})


def fill(made: TraceWriter, *, steps: int = 2) -> None:
    root = made.add_root("model", "LlamaForCausalLM")
    for step in range(steps):
        top = made.begin_call(CallRow(CallKind.MODULE, "", "LlamaForCausalLM", root=root, step=step))
        ids = made.add_value(ValueRow("int64", (1, 4)), np.arange(32, dtype=np.uint8))
        made.add_edge(top, Role.INPUT, "in.input_ids", ids)
        norm = made.begin_call(CallRow(CallKind.MODULE, "model.norm", "RMSNorm", root=root, parent=top, step=step))
        out = made.add_value(ValueRow("float32", (1, 4, 8)), np.full(128, step, np.uint8))
        made.add_edge(norm, Role.OUTPUT, "out", out)
        made.end_call(norm, CallStatus.RETURNED)
        lean = made.add_value(ValueRow("bfloat16", (1, 4), reason="not kept"), None)
        made.add_edge(top, Role.OUTPUT, "out", lean)
        made.end_call(top, CallStatus.RETURNED)
        made.end_step()


def test_inspect_says_what_is_in_a_trace(run: Run, tmp_path: Path) -> None:
    made = writer(tmp_path / "x.h5")
    fill(made)
    made.close()
    done = run("inspect", "x.h5", code=0)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "x.h5: 1 file, complete"
    assert "calls 4" in lines
    assert "values 6, 320 B kept, 2 without bytes" in lines
    assert "roots model (LlamaForCausalLM)" in lines
    assert "step 0 in.input_ids [1, 4] int64" in lines
    assert "step 1 in.input_ids [1, 4] int64" in lines
    assert "dtypes int64 2, float32 2, bfloat16 2" in lines
    assert "256 B model.norm" in lines
    assert "versions.torch = 2.13.0" in lines
    assert "note = \\x1b[31mred" in lines
    assert done.stderr == ""


def test_an_incomplete_recording_is_unusable(run: Run, tmp_path: Path) -> None:
    made = writer(tmp_path / "x.h5")
    fill(made)
    made.close(reason="the disk is full")
    done = run("inspect", "x.h5", code=2)
    assert "x.h5: 1 file, INCOMPLETE" in done.stdout
    assert "  incomplete: the disk is full\n" in done.stdout


def test_an_empty_trace_is_unusable_and_says_why(run: Run, tmp_path: Path) -> None:
    made = writer(tmp_path / "x.h5")
    made.set_meta("empty_reason", "the model was compiled")
    made.close()
    assert "no calls: the model was compiled" in run("inspect", "x.h5", code=2).stdout


def test_a_folder_is_a_trace(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (1, 0):
        made = writer(folder / f"rank0000{rank}.h5", rank=rank)
        fill(made, steps=25)
        made.close()
    out = run("inspect", folder, code=0).stdout
    assert "2 files, complete" in out
    assert out.index("rank00000.h5, rank 0") < out.index("rank00001.h5, rank 1")
    assert out.count("... and 5 more steps") == 2


def test_recover_makes_a_trace_and_prints_its_path(run: Run, tmp_path: Path) -> None:
    made = writer(tmp_path / "live.h5")
    fill(made)
    made.flush()
    for source, copy in (
        (part_path(tmp_path / "live.h5"), part_path(tmp_path / "x.h5")),
        (journal_path(tmp_path / "live.h5"), journal_path(tmp_path / "x.h5")),
    ):
        shutil.copy(source, copy)
    made.discard()
    done = run("recover", "x.h5.part", code=0)
    assert done.stdout == "x.h5\n"
    assert "layerdiff inspect x.h5" in done.stderr
    assert "INCOMPLETE" in run("inspect", "x.h5", code=2).stdout
    assert not part_path(tmp_path / "x.h5").exists()


@pytest.mark.parametrize("content", [b"", b"no trace at all"])
def test_inspecting_something_else(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.h5").write_bytes(content)
    done = run("inspect", "x.h5", code=2)
    assert "x.h5 is not a trace: it is no HDF5 file" in done.stderr
    assert done.stdout == ""


def test_a_trace_alone_is_no_comparison(run: Run, tmp_path: Path) -> None:
    made = writer(tmp_path / "x.h5")
    fill(made)
    made.close()
    assert "x.h5 is a trace, and a comparison needs two" in run("x.h5", code=2).stderr
