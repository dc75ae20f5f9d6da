"""Writing and comparing traces, as ratios to the plainest way of moving the same bytes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role, Statistics, ValueRow
from layerdiff.trace.writer import TraceWriter

Row = tuple[str, float, float, str]
NUMBERS = Statistics(-3.25, 4.125, 0.0123456789, 0.987654321)


def rows() -> list[Row]:
    """(name, measured, floor, note): see each."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        return [_large(home), _small(home), *_diff(home)]


def _interleaved(first: Callable[[], float], second: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Medians of the seconds that two ways take, in turns."""
    pairs = [(first(), second()) for _ in range(repeats)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def _raw(home: Path, data: np.ndarray, count: int) -> float:
    path = home / "raw"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    begun = time.perf_counter()
    for _ in range(count):
        os.write(fd, data)
    seconds = time.perf_counter() - begun
    os.close(fd)
    path.unlink()
    return seconds


def _written(home: Path, data: np.ndarray, count: int) -> float:
    writer = TraceWriter(home / "t.h5", meta={})
    row = ValueRow("float32", (data.nbytes // 4,), statistics=NUMBERS, fingerprint=(1 << 63, 7))
    call = writer.begin_call(CallRow(CallKind.MODULE, "m"))
    begun = time.perf_counter()
    for _ in range(count):
        writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(row, data))
    writer.flush()
    seconds = time.perf_counter() - begun
    writer.discard()
    return seconds


def _large(home: Path) -> Row:
    data = np.random.default_rng(0).integers(0, 255, 8 << 20).astype(np.uint8)
    ours, raw = _interleaved(lambda: _written(home, data, 24), lambda: _raw(home, data, 24), 7)
    return "writing 8 MB values, speed of os.write", raw / ours, 0.9, "at least"


def _small(home: Path) -> Row:
    data = np.random.default_rng(0).integers(0, 255, 4096).astype(np.uint8)
    ours, raw = _interleaved(lambda: _written(home, data, 10_000), lambda: _raw(home, data, 10_000), 7)
    return "a 4 KB value with statistics and its journal lines, in os.writes", ours / raw, 3.0, "at most"


VALUE_BYTES, VALUES = 16 << 20, 128
CHILD = """
import sys, time
from layerdiff.compare import compare_traces
begun = time.perf_counter()
compare_traces(sys.argv[1], sys.argv[2])
print(time.perf_counter() - begun)
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
"""
READ = """
import sys, time
buffer = bytearray(1 << 20)
begun = time.perf_counter()
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
print(time.perf_counter() - begun)
"""


def _trace(path: Path) -> Path:
    writer = TraceWriter(path, meta={})
    root = writer.add_root("model", "Root")
    top = writer.begin_call(CallRow(CallKind.MODULE, "", root=root))
    rng = np.random.default_rng(0)
    for i in range(VALUES):
        data = rng.standard_normal(VALUE_BYTES // 4, np.float32).view(np.uint8)
        call = writer.begin_call(CallRow(CallKind.MODULE, f"layer.{i}", type="Linear", root=root, parent=top))
        writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(ValueRow("float32", (VALUE_BYTES // 4,)), data))
        writer.end_call(call, CallStatus.RETURNED)
    writer.end_call(top, CallStatus.RETURNED)
    return writer.close()


def _run(code: str, *paths: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def _diff(home: Path) -> list[Row]:
    """Two equal traces of 2 GB each."""
    paths = [_trace(home / "r.h5"), _trace(home / "t.h5")]
    _run(READ, *paths)
    pairs = [(_run(CHILD, *paths), _run(READ, *paths)[0]) for _ in range(5)]
    speed = statistics.median(read / ours[0] for ours, read in pairs)
    peak = max(ours[1] for ours, _ in pairs) / 1024
    return [
        ("diff of two equal traces of 2 GB each, speed of reading both in 1 MB blocks", speed, 0.6, "at least"),
        ("peak memory of that process, libraries included, MB", peak, 300.0, "at most"),
    ]
