"""What recording operators costs: the mode itself a call, and a recording with all operands, without fingerprints and with."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerdiff import Recorder, open_trace
from layerdiff.record.calls import Calls
from layerdiff.record.hooks import ModuleHooks
from layerdiff.record.operators import OperatorMode
from layerdiff.record.options import DEFAULT_QUEUE_BYTES, Options
from layerdiff.record.plan import Counter
from layerdiff.trace.schema import Storage
from tests.bench.record_bench import Row, check_complete, raw_write, timed
from tests.models import MiniLlama, tokens


class _Nothing(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


class _Watching:
    """Hooks and mode whose sink counts rows, and measures nothing."""

    def __init__(self, model: nn.Module, *, modules: str | None, operators: str) -> None:
        options = Options.checked(
            modules=modules,
            types=None,
            steps=None,
            ranks=None,
            keep=None,
            weights=None,
            operators=operators,
            fingerprints=False,
            queue_bytes=DEFAULT_QUEUE_BYTES,
        )
        self.errors: list[Exception] = []
        counter = Counter()
        calls = Calls(counter, options, skipped={}, name_root=lambda module: None)
        self._hooks = ModuleHooks(calls, options, model=model, skipped={}, failed=self.errors.append)
        self._mode = OperatorMode(calls, counter, self.errors.append)

    def __enter__(self) -> None:
        self._hooks.install()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        self._mode.stop()
        self._hooks.remove()
        if self.errors:
            raise self.errors[0]


def rows(repeats: int = 5) -> list[Row]:
    """The table. Takes two minutes on two idle cores."""
    folder = Path(tempfile.mkdtemp(prefix="layerdiff-bench-"))
    try:
        found = _a_call(5 * repeats)
        for dtype in (torch.float32, torch.bfloat16):
            model = MiniLlama(vocab=1000, hidden=1024, inner=2816, heads=16, layers=8).eval().to(dtype)
            for fingerprints in (False, True):
                found.append(_operands(model, dtype, folder, fingerprints, repeats))
            found.append(_bytes(model, dtype, folder))
        for hidden in (512, 1024):
            model = MiniLlama(vocab=1000, hidden=hidden, inner=hidden * 11 // 4, heads=hidden // 64, layers=8).eval()
            found += [_statistics(model, hidden, folder, fingerprints, repeats) for fingerprints in (False, True)]
        return found
    finally:
        shutil.rmtree(folder)


def _a_call(repeats: int) -> list[Row]:
    """Microseconds a call of a small model in one thread, in processor time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, ids = MiniLlama(vocab=1000, hidden=64, inner=128, heads=4, layers=8).eval(), tokens(1, 16, vocab=1000)
    nothing = _Nothing()  # type: ignore[no-untyped-call]
    times: dict[str, list[float]] = {"plain": [], "nothing": [], "stack": [], "modules": [], "rows": []}
    contexts: dict[str, Callable[[], Any]] = {
        "nothing": lambda: nothing,
        "stack": lambda: _Watching(model, modules="none", operators="none"),
        "modules": lambda: _Watching(model, modules=None, operators="none"),
        "rows": lambda: _Watching(model, modules=None, operators="*"),
    }
    count = 0
    with torch.no_grad():
        for _ in range(repeats):
            times["plain"].append(_processor(lambda: model(ids)))
            for name, context in contexts.items():
                with context():
                    model(ids)
                    nothing.calls = 0
                    times[name].append(_processor(lambda: model(ids)))
                    count = nothing.calls or count
    torch.set_num_threads(threads)
    plain = statistics.median(times["plain"])
    cost = {name: 1e6 * (statistics.median(times[name]) - plain) / count for name in contexts}
    note = f"{count} calls; a mode that does nothing {cost['nothing']:.1f} us"
    modules, own = cost["modules"] - cost["stack"], cost["rows"] - cost["modules"]
    share = f"{cost['rows']:.1f} us, {modules:.1f} of them the rows of modules, {own:.1f} the operator's own"
    return [
        ("an operator with the module stack alone, us", cost["stack"], 12.0, note),
        ("complete rows without values, over a mode that does nothing", cost["rows"] / cost["nothing"], 3.0, share),
    ]


def _operands(model: nn.Module, dtype: torch.dtype, folder: Path, fingerprints: bool, repeats: int) -> Row:
    """A whole recording of a second forward, its end included, less the raw write of its bytes, over a plain forward."""
    ids = tokens(1, 512, vocab=1000)
    plain, recorded, raw = [], [], []
    nbytes = 0
    with torch.no_grad():
        for _ in range(repeats):
            timed(lambda: model(ids))
            plain.append(timed(lambda: model(ids)))
            path = folder / f"{time.monotonic_ns()}.h5"
            recorder = Recorder(path, model, operators=True, weights="none", fingerprints=fingerprints)
            with recorder:
                started = time.perf_counter()
                model(ids)
                recorder.close()
                recorded.append(time.perf_counter() - started)
            check_complete(path)
            nbytes = int(open_trace(path).files[0].values.nbytes.sum())
            path.unlink()
            raw.append(raw_write(folder / "raw", nbytes))
    before, after, write = (statistics.median(times) for times in (plain, recorded, raw))
    name = f"operands{' and fingerprints' if fingerprints else ''}, {str(dtype)[6:]}, hidden 1024, seq 512, less the raw write"
    note = f"{1e3 * before:.0f} ms plain, {1e3 * after:.0f} ms recorded, {nbytes / 1e6:.0f} MB, raw write {1e3 * write:.0f} ms"
    return name, (after - write) / before, None if fingerprints else 2.5, note


def _bytes(model: nn.Module, dtype: torch.dtype, folder: Path) -> Row:
    """The file's size over the bytes of its distinct values: of equal bits one, views and versions none."""
    path = folder / f"{time.monotonic_ns()}.h5"
    with torch.no_grad(), Recorder(path, model, operators=True, weights="none"):
        model(tokens(1, 512, vocab=1000))
    check_complete(path)
    file = open_trace(path).files[0]
    columns = file.values
    stored = [value for value in range(len(columns)) if columns.storage[value] in (Storage.DATASET, Storage.SLAB)]
    distinct = {(file.fingerprint(value), file.dtype_name(value)): int(columns.nbytes[value]) for value in stored}
    size, nbytes = path.stat().st_size, sum(distinct.values())
    path.unlink()
    name = f"trace with operands, {str(dtype)[6:]}, hidden 1024, seq 512: its size over that of the distinct values"
    return name, size / nbytes, 1.2, f"{size / 1e6:.0f} MB, {len(stored)} values stored, {len(distinct)} distinct"


def _statistics(model: nn.Module, hidden: int, folder: Path, fingerprints: bool, repeats: int) -> Row:
    ids = tokens(1, 512, vocab=1000)
    plain, recorded = [], []
    with torch.no_grad():
        for _ in range(repeats):
            timed(lambda: model(ids))
            plain.append(timed(lambda: model(ids)))
            path = folder / f"{time.monotonic_ns()}.h5"
            with Recorder(path, model, operators=True, keep="statistics", weights="none", fingerprints=fingerprints):
                timed(lambda: model(ids))
                recorded.append(timed(lambda: model(ids)))
            check_complete(path)
            path.unlink()
    before, after = statistics.median(plain), statistics.median(recorded)
    name = f"statistics{' and fingerprints' if fingerprints else ''} of every operator, hidden {hidden}, seq 512"
    return name, after / before, None if fingerprints else 1.3, f"{1e3 * before:.0f} ms plain, {1e3 * after:.0f} ms recorded"


def _processor(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


if __name__ == "__main__":
    for name, ratio, floor, note in rows():
        print(f"{name:75} {ratio:6.2f}  floor {floor}  {note}")
