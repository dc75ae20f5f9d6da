"""Notices about the ranks of one trace as a whole: files that are missing, of another run, or of another length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np

from layerdiff.diagnose.findings import Notice
from layerdiff.judge.issued import listed
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind

_ALIKE: Final = ("layerdiff", "torch", "script", "platform")
"""Of an environment: what all ranks of one run have in common. Seeds are not: some programs seed each rank by itself."""
_APART_SECONDS: Final = 3600
"""Ranks of one run begin to record within minutes."""
_CREATED: Final = "%Y-%m-%dT%H:%M:%S%z"


def notices_of_ranks(files: Sequence[TraceFile]) -> Iterator[Notice]:
    """What the files of one trace say of it as a run of many ranks. Nothing where it is one process."""
    ranked = [file for file in files if file.rank is not None]
    if not ranked:
        return
    yield from _missing(ranked)
    yield from _mixed(ranked)
    yield from _steps(ranked)


def _missing(files: Sequence[TraceFile]) -> Iterator[Notice]:
    worlds = Counter(size for file in files if type(size := file.meta.get("world_size")) is int and size > 0)
    ranks = [file.rank for file in files if file.rank is not None]
    if len(worlds) > 1:
        said = ", ".join(f"{count} of them {size}" for size, count in sorted(worlds.items()))
        yield Notice("ranks-mixed", f"the files are of runs of different sizes: their world has {said} ranks", defect=True)
    elif worlds:
        size = next(iter(worlds))
        missing = [rank for rank in range(size) if rank not in set(ranks)] if size <= 1 << 20 else []
        if missing:
            word = "ranks" if len(missing) > 1 else "rank"
            said = f"{word} {listed(missing)} of {size} left no file here: what they put in, and what needs it, is not checked"
            yield Notice("ranks-missing", said)
    starts: dict[int, list[str]] = {}
    for file in files:
        starts.setdefault(file.rank or 0, []).append(file.path.name)
    for rank, names in starts.items():
        if len(names) > 1:
            yield Notice("rank-twice", f"rank {rank} has {len(names)} files ({', '.join(names[:3])}): the first is checked")


def _mixed(files: Sequence[TraceFile]) -> Iterator[Notice]:
    first = files[0]
    ours = _environment(first)
    for name in _ALIKE:
        others = [file for file in files if name in ours and name in _environment(file) and _environment(file)[name] != ours[name]]
        if others:
            there = _environment(others[0])[name]
            said = f"rank {others[0].rank} ran with another {name} ({there}) than rank {first.rank} ({ours[name]}): "
            said += "are these files of one run?"
            yield Notice("ranks-mixed", said)
            return
    times = {file: at for file in files if (at := _created(file)) is not None}
    if times:
        early, late = min(times, key=lambda file: times[file]), max(times, key=lambda file: times[file])
        apart = int(times[late] - times[early])
        if apart > _APART_SECONDS:
            said = f"rank {early.rank} began to record {apart // 60} minutes before rank {late.rank}: are these files of one run?"
            yield Notice("ranks-mixed", said)
            return
    seeds = {file.rank: _environment(file).get("seed") for file in files}
    if len(set(map(str, seeds.values()))) > 1 and None not in seeds.values() and any(_draws(file) for file in files):
        said = "; ".join(f"rank {rank}: {seed}" for rank, seed in list(seeds.items())[:4])
        yield Notice("rank-seeds-differ", f"the ranks draw random numbers, from different seeds ({said}): drawn values are not replicated")


def _environment(file: TraceFile) -> dict[str, Any]:
    found = file.meta.get("environment")
    return found if isinstance(found, dict) else {}


def _draws(file: TraceFile) -> bool:
    """Whether a forward of a root drew random numbers."""
    calls = file.calls
    for call in np.flatnonzero((np.asarray(calls.parent) < 0) & (np.asarray(calls.kind) == CallKind.MODULE)).tolist():
        detail = file.json(int(calls.detail[call]))
        random = detail.get("random") if isinstance(detail, dict) else None
        if isinstance(random, dict) and random.get("before") != random.get("after"):
            return True
    return False


def _created(file: TraceFile) -> float | None:
    try:
        return datetime.strptime(str(file.meta.get("created")), _CREATED).timestamp()
    except (ValueError, OverflowError):
        return None


def _steps(files: Sequence[TraceFile]) -> Iterator[Notice]:
    counts = {file: _forwards(file) for file in files}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"rank {file.rank}: {count}" for file, count in list(counts.items())[:8])
        yield Notice("rank-steps-differ", f"the ranks did not run the same number of forwards ({said}); those that all ran are checked")


def _forwards(file: TraceFile) -> int:
    calls = file.calls
    top = (np.asarray(calls.kind) == CallKind.MODULE) & (np.asarray(calls.parent) < 0)
    return int(np.count_nonzero(top))
