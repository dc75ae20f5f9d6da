"""Measuring: bit equality and screening against reading the same bytes, the full set against a naive numpy version."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.equality import BLOCK_BYTES
from layerdiff.measure.full import Full, full
from layerdiff.measure.screening import screen
from layerdiff.trace.dtypes import DTYPES, Dtype

_BYTES = 256 << 20
_PAIR_BYTES = 64 << 20
_ROUNDS = 5


@dataclass(frozen=True)
class FileBlocks:
    """A value read from a file, as a trace is."""

    file: int
    dtype: Dtype
    count: int

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        buffer = np.empty(count * self.dtype.itemsize, np.uint8)
        for start in range(0, self.count, count):
            piece = buffer[: min(count, self.count - start) * self.dtype.itemsize]
            os.preadv(self.file, [piece], start * self.dtype.itemsize)
            yield piece.view(self.dtype.raw)


@dataclass(frozen=True)
class MemoryBlocks:
    """A value in memory."""

    dtype: Dtype
    bits: NDArray[Any]

    @property
    def count(self) -> int:
        return self.bits.size

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self.bits.size, count):
            yield self.bits[start : start + count]


def naive(reference: NDArray[np.float32], target: NDArray[np.float32]) -> dict[str, Any]:
    """The display set as one would write it first: in float64, one expression a number, whole arrays."""
    finite = np.isfinite(reference) & np.isfinite(target)
    r, t = reference[finite].astype(np.float64), target[finite].astype(np.float64)
    places = [
        np.where(x.view(np.int32) < 0, -(x.view(np.int32).astype(np.int64) & 0x7FFFFFFF), x.view(np.int32)) for x in (reference, target)
    ]
    ulps = np.abs(places[1] - places[0])[finite]
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "max_abs": np.abs(t - r).max(),
            "mean_abs": np.abs(t - r).mean(),
            "rms": np.sqrt(((t - r) ** 2).mean()),
            "rel_l2": np.linalg.norm(t - r) / np.linalg.norm(r),
            "cosine_distance": 1 - (r * t).sum() / (np.linalg.norm(r) * np.linalg.norm(t)),
            "worst": np.abs(t - r).argmax(),
            "mismatched": (t != r).sum(),
            "max_rel": np.nanmax(np.abs(t - r) / np.abs(r)),
            "max_ulps": ulps.max(),
            "ulp_histogram": np.bincount(np.where(ulps > 0, np.floor(np.log2(np.maximum(ulps, 1))) + 1, 0).astype(np.int64)),
        }


def _ratio(ours: Callable[[], object], base: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """How many times faster `ours` is than `base`: the median of interleaved rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        base()
        middle = time.perf_counter()
        ours()
        found.append((middle - start) / (time.perf_counter() - middle))
    return statistics.median(found)


def _read(reference: FileBlocks, target: FileBlocks) -> None:
    """Both values in blocks of 1 MB, one after the other, and nothing else."""
    count = BLOCK_BYTES // reference.dtype.itemsize
    for _ in zip(reference.blocks(count), target.blocks(count), strict=True):
        pass


def _extra_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def rows() -> list[tuple[str, float, str, str]]:
    """(name, measured ratio, floor, note)."""
    found: list[tuple[str, float, str, str]] = []
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        x = rng.standard_normal(_BYTES // 4, np.float32)
        y = x * np.float32(1 + 2.0**-20)
        names = {"reference": x, "same": x, "other": y, "bf16": (x.view(np.uint32) >> 16).astype(np.uint16)}
        files: dict[str, int] = {}
        try:
            for name, data in names.items():
                data.tofile(Path(folder) / name)
                files[name] = os.open(Path(folder) / name, os.O_RDONLY)
            float32, bfloat16 = DTYPES["float32"], DTYPES["bfloat16"]
            reference, same, other = (FileBlocks(files[name], float32, x.size) for name in ("reference", "same", "other"))
            narrow = FileBlocks(files["bf16"], bfloat16, x.size)
            note = f"times the speed of reading both, {_BYTES >> 20} MB each, in 1 MB blocks; page cache"
            found.append(("bit equality", _ratio(lambda: screen(reference, same), lambda: _read(reference, same)), "0.6", note))
            found.append(("screening, fp32 pair", _ratio(lambda: screen(reference, other), lambda: _read(reference, other)), "-", note))
            equality = _ratio(lambda: screen(reference, other), lambda: screen(reference, same))
            found.append(("screening, fp32 pair", equality, "0.5", "times the speed of bit equality"))
            found.append(
                ("screening, fp32 against bf16", _ratio(lambda: screen(reference, narrow), lambda: _read(reference, narrow)), "-", note)
            )
            extra = max(_extra_bytes(partial(screen, reference, side)) for side in (same, other, narrow)) / 1e6
            found.append(("screening, extra memory", extra, "8", "MB at most"))
        finally:
            for file in files.values():
                os.close(file)
    del x, y, names
    fresh = statistics.median(_once("naive") / _once("full") for _ in range(_ROUNDS))
    found.append(("full set, 64 MB fp32 pair, once in a fresh process", fresh, "20", "times naive numpy"))
    r, t = pair()
    speed = _ratio(partial(_full, r, t), partial(naive, r, t), rounds=7)
    found.append(("full set, the same again and again in one process", speed, "-", "times naive numpy, whose memory is then mapped"))
    found.append(("full set, extra memory", _extra_bytes(partial(_full, r, t)) / 1e6, "8", "MB at most"))
    return found


def _once(which: str) -> float:
    """Seconds that `naive` or `full` takes as the first thing that a process measures."""
    code = (
        "import time; from tests.bench import measure_bench as m; r, t = m.pair(); begun = time.perf_counter(); "
        + ("m._full(r, t)" if which == "full" else "m.naive(r, t)")
        + "; print(time.perf_counter() - begun)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def pair() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """64 MB each, a little apart; a few of the signs differ."""
    rng = np.random.default_rng(0)
    r = rng.standard_normal(_PAIR_BYTES // 4, np.float32)
    return r, r + rng.standard_normal(r.size, np.float32) * np.float32(1e-5)


def _full(r: NDArray[np.float32], t: NDArray[np.float32]) -> Full:
    return full(MemoryBlocks(DTYPES["float32"], r), MemoryBlocks(DTYPES["float32"], t))
