"""Tasks of a process of the group: a table that is made once for each kind of layer, in the order of a set: another one in each process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from layerdiff import Recorder

KINDS = ("full", "sliding")


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 8))

    def forward(self, x: Tensor, kind: str) -> Tensor:
        return x * self.scale if kind == "full" else x * self.scale.flip(0)


class Model(nn.Module):
    """`swapped`: each kind is handed the table of the other."""

    def __init__(self, order: tuple[str, ...], swapped: bool) -> None:
        super().__init__()
        self.order, self.swapped = order, swapped
        self.table, self.layers = Table(), nn.ModuleDict({kind: nn.Linear(8, 8) for kind in KINDS})

    def forward(self, x: Tensor) -> Tensor:
        tables = {kind: self.table(x, kind) for kind in self.order}
        for kind, other in zip(KINDS, KINDS[::-1], strict=True):
            x = x + self.layers[kind](tables[other if self.swapped else kind])
        return x


def record(path: Path, order: tuple[str, ...], operators: bool, swapped: bool = False) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Model(order, swapped).eval()
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, first: int, operators: bool, swapped: bool = False) -> None:
    """`first`: the rank whose order is that of `KINDS`."""
    record(folder / f"rank{rank:05d}.h5", KINDS if rank == first else KINDS[::-1], operators, swapped)
