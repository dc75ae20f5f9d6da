"""Tasks of a process of the group: tokens lie on all ranks, and each makes the table of its positions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, LENGTH = 24, 16


@dataclass(frozen=True)
class Positions:
    dtype: str = "float32"
    wrong: bool = False  # each rank counts its own from zero


class Turned(nn.Module):
    """Channels turned by an angle of their position, and mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        turned = torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
        return self.mix(turned)  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, case: Positions, rank: int, size: int) -> None:
        super().__init__()
        self.case, self.rank, self.size = case, rank, size
        self.norm, self.turned = nn.RMSNorm(HIDDEN), Turned()

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(LENGTH).chunk(self.size)[self.rank]
        x = x[:, places]
        counted = places - places[0] if self.case.wrong else places
        angles = counted[:, None] * 0.5 ** torch.arange(HIDDEN // 2)
        return x + self.turned(self.norm(x), angles.to(x.dtype))  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, case: Positions, operators: bool) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    x = torch.randn(2, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1)).to(getattr(torch, case.dtype))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Positions, operators: bool) -> None:
    record(rank, size, folder / f"rank{rank:05d}.h5", case, operators)
