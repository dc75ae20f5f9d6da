"""Tasks of a process of the group: the cross entropy of a vocabulary that lies on all ranks, as Megatron has it. Each rank takes the
largest logit, the label's logit and the sum of its own part, and each is reduced over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, VOCABULARY = 24, 48


@dataclass(frozen=True)
class Case:
    dtype: str = "float32"
    wrong: str = ""
    """embedding, label: rows of other ranks are not masked; largest, sum: not reduced; token: counted from each rank's first."""


class Part(nn.Module):
    """Holds the rows of some ids."""

    def __init__(self, case: Case, rank: int, size: int, seed: int) -> None:
        super().__init__()
        self.case, self.size, own = case, size, VOCABULARY // size
        self.first, self.last = rank * own, (rank + 1) * own
        whole = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(whole[self.first : self.last].clone())

    def reduced(self, x: Tensor, by: dist.ReduceOp = dist.ReduceOp.SUM) -> Tensor:
        if self.size > 1:
            dist.all_reduce(x, by)
        return x

    def local(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids counted from this rank's first, and which of them are other ranks'."""
        others = (ids < self.first) | (ids >= self.last)
        return (ids - self.first).masked_fill(others, 0), others


class Embedding(Part):
    def forward(self, ids: Tensor) -> Tensor:
        local, others = self.local(ids)
        x = F.embedding(local, self.weight)
        return self.reduced(x if self.case.wrong == "embedding" else x.masked_fill(others[..., None], 0.0))


class Loss(Part):
    def likeliest(self, logits: Tensor) -> Tensor:
        """The token of the largest logit of all ranks."""
        largest, at = logits.max(-1)
        if self.case.wrong != "token":
            at = at + self.first
        if self.size == 1:
            return at
        both = torch.stack([largest, at.float()])
        every = [torch.empty_like(both) for _ in range(self.size)]
        dist.all_gather(every, both)
        largest, at = torch.stack(every, -1)
        return at.gather(-1, largest.argmax(-1, keepdim=True))[..., 0].long()

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        wrong = self.case.wrong
        logits = F.linear(x, self.weight).float()
        largest = logits.max(-1)[0]
        logits = logits - (largest if wrong == "largest" else self.reduced(largest, dist.ReduceOp.MAX))[..., None]
        local, others = self.local(labels)
        label = logits.gather(-1, local[..., None])[..., 0]
        label = self.reduced(label if wrong == "label" else label.masked_fill(others, 0.0))
        total = logits.exp().sum(-1)
        return (total if wrong == "sum" else self.reduced(total)).log() - label, self.likeliest(logits[:, -1])


class Model(nn.Module):
    def __init__(self, case: Case, rank: int, size: int) -> None:
        super().__init__()
        self.embedding, self.loss = Embedding(case, rank, size, 1), Loss(case, rank, size, 2)
        self.norm = nn.RMSNorm(HIDDEN)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(self.norm(self.embedding(ids[:, :-1])), ids[:, 1:])  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, case: Case) -> Path:
    path.parent.mkdir(exist_ok=True)
    ids = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(5))
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    torch.manual_seed(0)
    with torch.no_grad(), Recorder(path, model, operators=True, weights="used"):
        model(ids)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Case) -> None:
    record(rank, size, folder / f"rank{rank:05d}.h5", case)
