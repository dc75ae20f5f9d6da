"""Tasks of a process of the group: a layer of which each rank makes a part of a sum, added to what the layer is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN = 32


@dataclass(frozen=True)
class Sum:
    reduced: bool = True
    normed: bool = False  # what it makes goes through a norm before it is added
    size: float = 1.0  # of what it makes
    dtype: str = "float32"


class Layer(nn.Module):
    def __init__(self, case: Sum, rank: int, size: int) -> None:
        super().__init__()
        self.case, self.ranks = case, size
        self.norm, self.down = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.held = torch.arange(HIDDEN).chunk(size)[rank]
        self.down.weight = nn.Parameter(self.down.weight.detach()[:, self.held] * case.size)
        self.after = nn.RMSNorm(HIDDEN) if case.normed else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.norm(x)[..., self.held])
        if self.case.reduced and self.ranks > 1:
            y = y.clone()
            dist.all_reduce(y)
        return x + (y if self.after is None else self.after(y))


class Model(nn.Module):
    def __init__(self, case: Sum, rank: int, size: int) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([Layer(case, rank, size)]), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[0](x))  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, case: Sum) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    x = torch.randn(2, 16, HIDDEN, generator=torch.Generator().manual_seed(1)).to(getattr(torch, case.dtype))
    with torch.no_grad(), Recorder(path, model, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Sum) -> None:
    record(rank, size, folder / f"rank{rank:05d}.h5", case)
