"""Checks without a reference on real groups: nothing is found where nothing is wrong, whatever the layout; what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff import Recorder
from layerdiff.checking import check_ranks
from layerdiff.judge.tables import Verdict
from layerdiff.trace.schema import CallKind
from tests.parallel.expected import LAYOUTS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_without_a_fault_are_clean(name: str, size: int, dtype: str, processes: Processes, tmp_path: Path) -> None:
    _, target = record_ranks(tmp_path, replace(LAYOUTS[name], dtype=dtype), size, processes)
    checked = check_ranks(target)
    assert ([], False) == ([(origin.site, origin.statement) for origin in checked.origins], checked.defect)
    assert {notice.kind for notice in checked.notices} <= {"collective-precision"}
    collectives = checked.sites["kind"] == CallKind.COLLECTIVE
    assert collectives.any() and (checked.sites["verdict"][collectives] < Verdict.FLIP).all()


class Summed(nn.Module):
    """Adds up what the ranks hold; `hurries`: uses the result before it is there."""

    def __init__(self, *, hurries: bool = False) -> None:
        super().__init__()
        self.hurries, self.act = hurries, nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        part = x.clone()
        work = dist.all_reduce(part, async_op=True)
        if self.hurries:
            self.act(part)
        work.wait()
        return part


class Norm(nn.LayerNorm):
    """Off by a constant where it is told to be."""

    off = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.off


class Program(nn.Module):
    """Two sums of one shape and a norm of the second, with one fault of rank 1."""

    def __init__(self, fault: str, rank: int) -> None:
        super().__init__()
        self.first, self.second, self.norm = Summed(hurries=fault == "early"), Summed(), Norm(32)
        self.turned = fault == "order" and rank == 1
        self.norm.off = 1e-3 if fault == "norm" and rank == 1 else 0.0

    def forward(self, x: Tensor) -> Tensor:
        part = x * (dist.get_rank() + 1)
        names = ["second", "first"] if self.turned else ["first", "second"]
        made = {name: getattr(self, name)(part) for name in names}
        y: Tensor = self.norm(made["second"])
        return y


def record_program(rank: int, size: int, folder: Path, fault: str, operators: bool) -> None:
    model = Program(fault, rank).eval()
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", model, operators=operators):
        model(torch.linspace(-1, 1, 64).reshape(2, 32))


FAULTS: dict[str, set[tuple[str, str | None, int | None]]] = {
    "none": set(),
    "order": {("second.c10d.all_reduce", "collective-order", 1)},
    "early": {("first.act", "collective-not-waited", None)},
    "norm": {("norm", "replicas-differ", 1)},
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_of_a_real_group_are_named(fault: str, processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    processes.run(record_program, folder, fault, False, size=4)
    checked = check_ranks(folder)
    found = {(origin.site.replace("/", ".").partition("#")[0], origin.cause, origin.rank) for origin in checked.origins}
    assert FAULTS[fault] == found
    assert checked.defect is (fault != "none")
