"""What recording a collective costs a call, beside what recording an operator costs: CPU time of the whole process."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn

from layerdiff import Recorder
from layerdiff.trace.reader import open_trace
from tests.bench.record_bench import Row, check_complete

_CALLS = 300
_ELEMENTS = 1024


class _Block(nn.Module):
    """A rank's part of an MLP; `shared`: what the ranks make is added up, by a collective."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.RMSNorm(128), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128)
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        made = self.down(self.act(self.up(self.norm(x))))
        if self.shared:
            dist.all_reduce(made)
        return x + made  # type: ignore[no-any-return]


class _Repeated(nn.Module):
    def __init__(self, run: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(_CALLS):
            self.run(x)
        return x


def rows(repeats: int = 7) -> list[Row]:
    """Added microseconds a call, of a group of one process: a collective in each way over an operator that reads and writes as much."""
    folder = Path(tempfile.mkdtemp())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    world = dist.group.WORLD
    assert world is not None

    def functionally(x: Tensor) -> object:
        return functional.wait_tensor(functional.all_reduce(x, "sum", world))

    try:
        operator = _added(lambda x: x.add_(1), folder, repeats, operators=True)
        found: list[Row] = []
        for name, run, operators in (
            ("all_reduce, modules alone", dist.all_reduce, False),
            ("all_reduce, operators too", dist.all_reduce, True),
            ("functional all_reduce, modules alone", functionally, False),
            ("functional all_reduce, operators too", functionally, True),
        ):
            cost = _added(run, folder, repeats, operators=operators)
            note = f"{cost:.0f} us a collective of {4 * _ELEMENTS} bytes, {operator:.0f} us an add_"
            found.append((f"recorded {name}: added CPU time over that of an operator", cost / operator, 1.0, note))
        return [*found, *_of_ranks(folder, repeats)]
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)
        shutil.rmtree(folder)


def _of_ranks(folder: Path, repeats: int) -> Iterator[Row]:
    """What a call costs in a rank's program, collectives among its calls, over what it costs in one process at the same sizes."""
    x = torch.randn(8, 128)
    for name, operators in (("modules alone", False), ("operators too", True)):
        each: list[tuple[float, float]] = []
        for shared in (False, True):
            model = nn.Sequential(*(_Block(shared=shared) for _ in range(24)))
            each.append(_added_a_call(model, x, folder, repeats, operators=operators))
        (one, one_bytes), (rank, rank_bytes) = each
        note = f"{rank:.1f} us and {rank_bytes:.0f} bytes a call, {one:.1f} us and {one_bytes:.0f} bytes in one process"
        yield f"a rank's program, {name}: added CPU time a call over one process's", rank / one, 1.0, note
        yield f"a rank's program, {name}: bytes a call over one process's", rank_bytes / one_bytes, 1.0, note


def _added_a_call(model: nn.Module, x: Tensor, folder: Path, repeats: int, *, operators: bool) -> tuple[float, float]:
    """Microseconds of CPU time, and bytes of the trace, a call that is recorded."""
    seconds = []
    calls = size = 0
    with torch.no_grad():
        model(x)
        for _ in range(repeats):
            path = folder / f"{time.monotonic_ns()}.h5"
            plain = _processor(lambda: [model(x) for _ in range(4)])
            with Recorder(path, model, operators=operators):
                model(x)
                recorded = _processor(lambda: [model(x) for _ in range(4)])
            seconds.append(recorded - plain)
            file = open_trace(path).files[0]
            calls, size = len(file.calls), path.stat().st_size
            check_complete(path)
            path.unlink()
    return 1e6 * statistics.median(seconds) / (calls * 4 / 5), size / calls


def _added(run: Callable[[Tensor], Any], folder: Path, repeats: int, *, operators: bool) -> float:
    """Microseconds of CPU time that a recorded call takes more than a plain one."""
    model, x = _Repeated(run), torch.zeros(_ELEMENTS)
    plain, recorded = [], []
    with torch.no_grad():
        model(x)
        for _ in range(repeats):
            plain.append(_processor(lambda: model(x)))
            path = folder / f"{time.monotonic_ns()}.h5"
            with Recorder(path, model, operators=operators):
                model(x)
                recorded.append(_processor(lambda: model(x)))
            check_complete(path)
            path.unlink()
    return 1e6 * (statistics.median(recorded) - statistics.median(plain)) / _CALLS


def _processor(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


if __name__ == "__main__":
    for name, ratio, floor, note in rows():
        print(f"{name:75} {ratio:6.2f}  floor {floor}  {note}")
