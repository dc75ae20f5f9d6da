"""Tasks of a process of the group: attention whose heads lie on ranks, over a batch that is padded on the left.

What a padded query sees is hidden by the lowest number, all of it.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, HEADS, LENGTH = 16, 4, 12


class Attention(nn.Module):
    """`scores`: how they are made, as they should be in any way but in bf16."""

    def __init__(self, rank: int, size: int, scores: str) -> None:
        super().__init__()
        self.size, self.scores = size, scores
        held = torch.arange(HIDDEN).chunk(size)[rank]
        for name in ("q", "k", "v"):
            setattr(self, name, self._part(nn.Linear(HIDDEN, HIDDEN, bias=False), held, 0))
        self.o = self._part(nn.Linear(HIDDEN, HIDDEN, bias=False), held, 1)

    def _part(self, linear: nn.Linear, held: Tensor, dim: int) -> nn.Linear:
        linear.weight = nn.Parameter(linear.weight.detach().index_select(dim, held))
        return linear

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q / 2, k) if self.scores == "by einsum" else q @ k.mT / 2
        if self.scores == "in bf16":
            scores = (q.bfloat16() @ k.bfloat16().mT / 2).to(q.dtype)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & (attention_mask == 1)[:, None, None, :]
        hidden = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        y: Tensor = self.o(((scores + hidden).softmax(-1) @ v).transpose(1, 2).flatten(2))
        dist.all_reduce(y)
        return y


def record_rank(rank: int, size: int, folder: Path, scores: str) -> None:
    torch.manual_seed(0)
    model = Attention(rank, size, scores).eval()
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :4] = 0
    x = torch.randn(2, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1))
    folder.mkdir(exist_ok=True)
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", model, operators=True, weights="used"):
        model(x, attention_mask=mask)
