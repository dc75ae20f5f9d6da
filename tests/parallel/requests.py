"""Tasks of a process of the group: requests of a batch that ranks share out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from layerdiff import Recorder

COUNT = 5


class Model(nn.Module):
    """`mine`: the requests that it runs; each by itself where `singly`."""

    def __init__(self, mine: list[int], singly: bool) -> None:
        super().__init__()
        self.mine, self.singly = mine, singly
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([self.head(self.embed(part)) for part in ids[self.mine].split(1 if self.singly else COUNT)])


def record(path: Path, mine: list[int], operators: bool, singly: bool = False) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Model(mine, singly).eval()
    ids = torch.randint(0, 20, (COUNT, 6), generator=torch.Generator().manual_seed(1))
    ids[4] = ids[0]
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(ids)
    return path


def record_rank(rank: int, size: int, folder: Path, shares: list[list[int]], operators: bool, singly: bool) -> None:
    record(folder / f"rank{rank:05d}.h5", shares[rank], operators, singly)
