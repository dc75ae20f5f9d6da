"""What recording costs: rows of (name, measured ratio, floor or None, note). Plain and recorded runs alternate."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from layerdiff import Recorder, open_trace
from tests.models import MiniLlama, tokens

Row = tuple[str, float, float | None, str]


def rows(repeats: int = 5) -> list[Row]:
    """The table. Takes two minutes on two idle cores."""
    folder = Path(tempfile.mkdtemp(prefix="layerdiff-bench-"))
    try:
        large = MiniLlama(vocab=1000, hidden=1024, inner=2816, heads=16, layers=8).eval()
        small = MiniLlama(vocab=1000, hidden=256, inner=704, heads=8, layers=8).eval()
        many, few = tokens(1, 512, vocab=1000), tokens(1, 128, vocab=1000)
        return [
            _numbers("statistics, hidden 1024, seq 512", large, many, folder, False, 1.15, repeats),
            _numbers("statistics and fingerprints, hidden 1024, seq 512", large, many, folder, True, None, repeats),
            _numbers("statistics, hidden 256, seq 128", small, few, folder, False, 2.0, 3 * repeats),
            _numbers("statistics and fingerprints, hidden 256, seq 128", small, few, folder, True, None, 3 * repeats),
            _full("full values, extra time over a raw write", large, many, folder, False, 1.5, repeats),
            _full("full values with fingerprints, extra over a raw write", large, many, folder, True, None, repeats),
        ]
    finally:
        shutil.rmtree(folder)


def _numbers(name: str, model: nn.Module, ids: torch.Tensor, folder: Path, fingerprints: bool, floor: float | None, repeats: int) -> Row:
    """Forwards inside one recording over plain forwards; the writer's thread runs along. The first of each is not counted."""
    plain: list[float] = []
    recorded: list[float] = []
    recorder = Recorder(folder / f"{time.monotonic_ns()}.h5", model, keep="statistics", fingerprints=fingerprints)
    with torch.no_grad():
        timed(lambda: model(ids))
        for _ in range(3):
            with Recorder(folder / f"{time.monotonic_ns()}.h5", model, keep="statistics", fingerprints=fingerprints) as recorder:
                timed(lambda: model(ids))
                recorded += [timed(lambda: model(ids)) for _ in range(max(2, repeats // 3))]
            check_complete(recorder.path)
            plain += [timed(lambda: model(ids)) for _ in range(max(2, repeats // 3))]
    before, after = statistics.median(plain), statistics.median(recorded)
    recorder.path.unlink(missing_ok=True)
    return name, after / before, floor, f"{1e3 * before:.1f} ms plain, {1e3 * after:.1f} ms recorded"


def _full(name: str, model: nn.Module, ids: torch.Tensor, folder: Path, fingerprints: bool, floor: float | None, repeats: int) -> Row:
    """A whole recording, its end included, less a plain forward; over writing the same bytes with os.write."""
    plain: list[float] = []
    extra: list[float] = []
    raw: list[float] = []
    nbytes = 0
    with torch.no_grad():
        for round_ in range(repeats + 1):
            before = timed(lambda: model(ids))
            path = folder / f"{time.monotonic_ns()}.h5"
            recorder = Recorder(path, model, fingerprints=fingerprints)
            recorder.start()
            try:
                started = time.perf_counter()
                model(ids)  # the weights' numbers are taken in this one
                model(ids)
                recorder.close()
                two = time.perf_counter() - started
            finally:
                recorder.close()
            check_complete(path)
            nbytes = int(open_trace(path).files[0].values.nbytes.sum())
            path.unlink()
            written = raw_write(folder / "raw", nbytes)
            if round_:
                plain.append(before)
                extra.append(two - 2 * before)
                raw.append(written)
    over, write = statistics.median(extra), statistics.median(raw)
    return name, over / write, floor, f"{1e3 * over:.0f} ms extra for {nbytes / 1e6:.0f} MB, raw write {1e3 * write:.0f} ms"


def check_complete(path: Path) -> None:
    """A recording that stopped is fast, and no measurement."""
    file = open_trace(path).files[0]
    if not file.complete or not len(file.calls.kind):
        raise RuntimeError(f"{path} is incomplete: {file.meta.get('incomplete')}")


def raw_write(path: Path, nbytes: int) -> float:
    """Seconds that writing so many bytes takes."""
    data = memoryview(os.urandom(8 << 20))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    started = time.perf_counter()
    while nbytes > 0:
        nbytes -= os.write(fd, data[: min(nbytes, len(data))])
    took = time.perf_counter() - started
    os.close(fd)
    path.unlink()
    return took


def timed(run: Callable[[], object]) -> float:
    """Seconds that a run takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    for name, ratio, floor, note in rows():
        print(f"{name:60} {ratio:6.2f}  floor {floor}  {note}")
