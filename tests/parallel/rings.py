"""Tasks of a process of the group: attention whose keys and values go round in a ring, parts merged by their log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, HEADS, LENGTH = 32, 4, 16


@dataclass(frozen=True)
class Ring:
    receive_first: bool = False  # else send first: either way two ranks stand at the same kind of message
    dtype: str = "float32"
    wrong: str = ""  # scale, merge


class Attention(nn.Module):
    def __init__(self, case: Ring, rank: int, size: int) -> None:
        super().__init__()
        self.case, self.rank, self.size = case, rank, size
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def following(self, x: Tensor) -> Tensor:
        """What the rank before holds."""
        x, after, before = x.contiguous(), (self.rank + 1) % self.size, (self.rank - 1) % self.size
        came = torch.empty_like(x)
        messages = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, came, before)]
        for work in dist.batch_isend_irecv(messages[::-1] if self.case.receive_first else messages):
            work.wait()
        return came

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scale = (1.001 if self.case.wrong == "scale" else 1.0) * q.shape[-1] ** -0.5
        y = total = None
        for step in range(self.size):
            source = (self.rank - step) % self.size
            if source <= self.rank:
                scores = (q @ k.transpose(-1, -2)).float() * scale
                if source == self.rank:
                    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
                own = scores.logsumexp(-1, keepdim=True)
                part = (scores - own).exp() @ v.float()
                if y is None or total is None:
                    y, total = part, own
                else:
                    both = torch.logaddexp(total, own)
                    y = (y + part) / 2 if self.case.wrong == "merge" else y * (total - both).exp() + part * (own - both).exp()
                    total = both
            if step + 1 < self.size:
                k, v = self.following(k), self.following(v)
        assert y is not None
        return self.out(y.to(x.dtype).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, case: Ring, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.norm, self.attention = nn.RMSNorm(HIDDEN), Attention(case, rank, size)

    def forward(self, x: Tensor) -> Tensor:
        x = x.chunk(self.size, 1)[self.rank]
        return x + self.attention(self.norm(x))  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, case: Ring) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    x = torch.randn(2, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1)).to(getattr(torch, case.dtype))
    with torch.no_grad(), Recorder(path, model, operators=True, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Ring) -> None:
    record(rank, size, folder / f"rank{rank:05d}.h5", case)
