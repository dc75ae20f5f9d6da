"""Tasks of a process of the group: booleans, complex and whole numbers, of which each rank has the rows of its tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from layerdiff import Recorder

TOKENS, HIDDEN = 8, 8


class Tables(nn.Module):
    """Which tokens are seen, and their rotations. `turned`: the other way round."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        angles = places[:, None] * torch.linspace(1.0, 0.1, HIDDEN // 2)
        return x > 0, torch.polar(torch.ones_like(angles), -angles if self.turned else angles)


class Model(nn.Module):
    """`cuts`: numbers that are whole in float32, and all a little less in exact arithmetic, are cut off."""

    def __init__(self, turned: bool, cuts: bool) -> None:
        super().__init__()
        self.cuts = cuts
        self.tables, self.proj = Tables(turned), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        seen, turns = self.tables(x, places)
        turned = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)
        x = torch.where(seen, turned, 0.0)
        return self.proj(x + (places * torch.tensor(0.7) * 10 / 7).long()[:, None] if self.cuts else x)  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, operators: bool, turned: bool, cuts: bool) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Model(turned and rank == size - 1, cuts).eval()
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x.chunk(size)[rank], torch.arange(float(TOKENS)).chunk(size)[rank])
    return path


def record_rank(rank: int, size: int, folder: Path, operators: bool, turned: bool, cuts: bool) -> None:
    record(rank, size, folder / f"rank{rank:05d}.h5", operators, turned, cuts)
