"""Tasks of a process of the group: attention over tokens in zigzag order, called with a flag in one run and a mask in another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, HEADS, LENGTH = 32, 4, 16


@dataclass(frozen=True)
class Context:
    """Which way attention is called, and what is wrong."""

    flag: bool = True  # is_causal, where a process has all tokens; else a mask says the same
    dtype: str = "float32"
    wrong: str = ""  # mask, keys, heads (order of), values, scale; stale: a weight of the last rank is a hundredth off


class Attention(nn.Module):
    def __init__(self, case: Context, rank: int, size: int) -> None:
        super().__init__()
        self.case, self.rank, self.size = case, rank, size
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts[::-1] if self.case.wrong == "keys" else parts, 2)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        wrong = self.case.wrong
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if wrong == "heads":
            k, v = k.flip(1), v.flip(1)
        scale = 0.4 if wrong == "scale" else None
        if self.size == 1 and self.case.flag:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        else:
            every = torch.cat([zigzag(rank, self.size) for rank in range(self.size)])
            if self.size > 1:
                k, v = self.gather(k), self.gather(v)
            if wrong == "mask":
                every = torch.arange(LENGTH)
            if wrong == "values":
                v = v * 1.5
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=every <= places[:, None], scale=scale)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, case: Context, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.norm, self.attention = nn.RMSNorm(HIDDEN), Attention(case, rank, size)

    def forward(self, x: Tensor) -> Tensor:
        places = zigzag(self.rank, self.size)
        x = x[:, places]
        return x + self.attention(self.norm(x), places)  # type: ignore[no-any-return]


def zigzag(rank: int, size: int) -> Tensor:
    """The tokens of a rank."""
    if size == 1:
        return torch.arange(LENGTH)
    chunks = torch.arange(LENGTH).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def record(rank: int, size: int, path: Path, case: Context, operators: bool) -> Path:
    torch.manual_seed(0)
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    if case.wrong == "stale" and rank == size - 1:
        model.attention.out.weight.data.mul_(1.01)
    x = torch.randn(2, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1)).to(getattr(torch, case.dtype))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Context) -> None:
    folder.mkdir(exist_ok=True)
    record(rank, size, folder / f"rank{rank:05d}.h5", case, True)
