"""Writers killed with SIGKILL, or out of room, in processes that do not import torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from layerdiff.trace.reader import open_trace
from layerdiff.trace.recover import recover
from layerdiff.trace.schema import CallStatus

WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role, ValueRow
    from layerdiff.trace.writer import TraceWriter

    def content(i, size):
        return np.full(size, i % 251, np.uint8)

    sizes = [5, 4096, 70_000, 0, 1_500_000, 333]
    writer = TraceWriter(Path(sys.argv[1]), meta={"rank": 0})
    writer.add_root("model", "Root")
    top = writer.begin_call(CallRow(CallKind.MODULE, ""))
    for i in range(int(sys.argv[2])):
        size = sizes[i % len(sizes)]
        call = writer.begin_call(CallRow(CallKind.MODULE, f"layer.{i}", parent=top))
        value = writer.add_value(ValueRow("uint8", (size,)), content(i, size))
        writer.add_edge(call, Role.OUTPUT, "out", value)
        writer.end_call(call, CallStatus.RETURNED)
        if i % 7 == 0:
            writer.flush()
            print(i, flush=True)  # everything up to here is promised
    writer.close()
    print("closed", flush=True)
    """
)
LIMITED = textwrap.dedent(
    """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))
    """
)
CLOSING = textwrap.dedent(
    """
    import atexit
    def end():
        try:
            writer.close(reason="disk full")
        except OSError as error:
            print("ERROR", error, flush=True)
    atexit.register(end)
    """
)
SIZES = [5, 4096, 70_000, 0, 1_500_000, 333]


def check_recovered(path: Path, promised: int) -> None:
    file = open_trace(path).files[0]
    assert not file.complete
    assert "killed" in file.meta["incomplete"]
    assert len(file.values) >= promised + 1
    for value in range(len(file.values)):
        expected = np.full(SIZES[value % len(SIZES)], value % 251, np.uint8)
        assert np.array_equal(file.raw(value), expected)
    for call in range(1, len(file.calls)):
        assert file.site(call) == f"layer.{call - 1}"
    ended = np.flatnonzero(np.asarray(file.calls.status) == CallStatus.RETURNED)
    assert len(ended) >= promised + 1


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.15])
def test_kill_9_loses_at_most_a_batch(tmp_path: Path, delay_s: float) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "t.h5"), "1000000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    promised = [int(line) for line in process.stdout.read().split()] or [0]
    process.wait()
    process.stdout.close()
    path = recover(tmp_path / "t.h5.part")
    assert path == tmp_path / "t.h5"
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]
    check_recovered(path, promised[-1])


def test_a_full_disk_keeps_what_was_journaled(tmp_path: Path) -> None:
    script = LIMITED + WRITER
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "t.h5"), "60"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "OSError" in done.stderr and "t.h5" in done.stderr
    promised = [int(line) for line in done.stdout.split()]
    path = recover(tmp_path / "t.h5.part")
    check_recovered(path, promised[-1])


def test_closing_after_a_full_disk_leaves_the_part_for_recover(tmp_path: Path) -> None:
    loop = "for i in range(int(sys.argv[2])):"
    script = WRITER.replace(loop, LIMITED + CLOSING + loop)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "t.h5"), "60"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    if (tmp_path / "t.h5").exists():  # the index still fitted
        file = open_trace(tmp_path / "t.h5").files[0]
        assert not file.complete and file.meta["incomplete"] == "disk full"
    else:
        assert "layerdiff recover" in done.stdout
        check_recovered(recover(tmp_path / "t.h5.part"), 0)


def test_a_journal_cut_anywhere_recovers_a_prefix(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "t.h5"), "1000000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    part, journal = (tmp_path / "t.h5.part").read_bytes(), (tmp_path / "t.h5.journal").read_bytes()
    header = journal.index(b"\n") + 1
    for i, cut in enumerate(np.linspace(header, len(journal), 12).astype(int)):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "t.h5.part").write_bytes(part)
        (folder / "t.h5.journal").write_bytes(journal[:cut])
        file = open_trace(recover(folder / "t.h5.part"), allow_empty=True).files[0]
        lines = [json.loads(line) for line in journal[:cut].split(b"\n")[:-1]]
        assert len(file.values) == sum(line[0] == "v" for line in lines)
        for value in range(len(file.values)):
            assert np.array_equal(file.raw(value), np.full(SIZES[value % len(SIZES)], value % 251, np.uint8))
