"""What recording a collective costs a call, beside what recording an operator costs: CPU time of the whole process."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn

from layerdiff import Recorder
from tests.bench.record_bench import Row, check_complete

_CALLS = 300
_ELEMENTS = 1024


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
        return found
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)
        shutil.rmtree(folder)


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
