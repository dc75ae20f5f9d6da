"""Comparing the ranks of a target with one process, against reading the same bytes in blocks of 1 MB."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from layerdiff.compare import compare_traces
from layerdiff.trace.reader import open_trace
from tests.trace.writing import write_model

Row = tuple[str, float, str, str]
RANKS = 8
VALUES = {"values sharded along rows": (0, 30), "values sharded along columns": (1, 30), "replicated values": (None, 6)}
"""The dimension that is cut, and how many modules: 2 GB of traces each."""
SHAPE = (4096, 2048)
_MEGABYTE = 1 << 20


def rows(repeats: int = 3) -> list[Row]:
    """Speed over that of reading."""
    found = []
    for name, (dim, modules) in VALUES.items():
        with tempfile.TemporaryDirectory() as folder:
            nbytes = _write(Path(folder), dim, modules)
            reading = min(_timed(lambda folder=folder: _read(Path(folder))) for _ in range(repeats))
            comparing = min(_timed(lambda folder=folder: _compare(Path(folder))) for _ in range(repeats))
        note = f"{nbytes / 1e6:.0f} MB; reading {nbytes / reading / 1e9:.2f} GB/s"
        found.append((f"comparing {RANKS} ranks over reading them, {name}", reading / comparing, "0.5", note))
    return found


def _write(folder: Path, dim: int | None, modules: int) -> int:
    random = np.random.default_rng(0)
    whole = {f"layers.{i}": random.standard_normal(SHAPE, np.float32) for i in range(modules)}
    inputs = random.standard_normal((4, 8)).astype(np.float32)
    write_model(folder / "reference.h5", {name: ("Linear", x) for name, x in whole.items()}, inputs=inputs)
    (folder / "target").mkdir()
    for rank in range(RANKS):
        parts = {name: ("Linear", x if dim is None else np.split(x, RANKS, dim)[rank]) for name, x in whole.items()}
        write_model(folder / "target" / f"rank{rank:05}.h5", parts, inputs=inputs, meta={"rank": rank, "world_size": RANKS})
    return sum(path.stat().st_size for path in folder.rglob("*.h5"))


def _read(folder: Path) -> None:
    """Every value of every file, 1 MB at a time."""
    for path in (folder / "reference.h5", folder / "target"):
        trace = open_trace(path)
        for file in trace.files:
            for value in range(len(file.values)):
                stored = file.stored(value)
                assert stored is not None
                for block in stored.blocks(_MEGABYTE // stored.dtype.itemsize):
                    block[:1].tobytes()
        trace.close()


def _compare(folder: Path) -> None:
    comparison = compare_traces(folder / "reference.h5", folder / "target")
    assert not comparison.defect, comparison.origins


def _timed(run) -> float:  # type: ignore[no-untyped-def]
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
