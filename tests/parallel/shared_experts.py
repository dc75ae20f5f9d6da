"""Tasks of a process of the group: tokens in a row, a part of a sum from each rank's experts, and an expert that all ranks share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, INNER = 24, 32


@dataclass(frozen=True)
class Shared:
    cut: bool = False  # the shared expert is cut over the ranks, else each has it whole
    wrong: bool = False  # added before the sum where each has it whole, after it where it is cut
    dtype: str = "float32"
    sums: int = 1  # how often it is added up over the ranks


class Expert(nn.Module):
    """Holds some of the inner channels."""

    def __init__(self, seed: int, rank: int, size: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        up, down = (torch.randn(shape, generator=random) / 5 for shape in ((INNER, HIDDEN), (HIDDEN, INNER)))
        self.up, self.down = nn.Parameter(up.chunk(size)[rank].clone()), nn.Parameter(down.chunk(size, 1)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.up)), self.down)


class Mixture(nn.Module):
    def __init__(self, case: Shared, rank: int, size: int) -> None:
        super().__init__()
        self.size, self.after, self.sums = size, case.cut == case.wrong, case.sums
        self.experts = Expert(1, rank, size)
        self.shared = Expert(2, rank, size) if case.cut else Expert(2, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        y, shared = self.experts(rows), self.shared(rows)
        y = y if self.after else y + shared
        for _ in range(self.sums if self.size > 1 else 0):
            dist.all_reduce(y)
        return (y + shared if self.after else y).view(x.shape)


class Model(nn.Module):
    def __init__(self, case: Shared, rank: int, size: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(HIDDEN), Mixture(case, rank, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, case: Shared, operators: bool) -> Path:
    path.parent.mkdir(exist_ok=True)
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    x = torch.randn(2, 5, HIDDEN, generator=torch.Generator().manual_seed(3)).to(getattr(torch, case.dtype))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Shared, operators: bool) -> None:
    record(rank, size, folder / f"rank{rank:05d}.h5", case, operators)
