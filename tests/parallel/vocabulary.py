"""Tasks of a process of the group: a small model whose embedding and head lie on all ranks, padded to a size that divides well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN = 24


@dataclass(frozen=True)
class Vocabulary:
    """How large it is, and what is done about the rows that fill it up."""

    ids: int = 97
    padded: int = 0  # rows of all ranks together; 0: as many as there are ids
    filled: float = 0.0  # how large the rows are that fill it up
    logits: str = "cut"  # those of the filling: cut off, left, or hidden (-inf)
    tied: bool = False
    bias: bool = False
    chooses: bool = False  # returns the tokens too
    dtype: str = "float32"
    wrong: str = ""
    """embedding_shifted, head_shifted: each rank's part is filled up; row: one row is another; tail, tails: the last rows of the head, of
    both; epsilon: of the norm."""

    @property
    def rows(self) -> int:
        return self.padded or self.ids


class Part(nn.Module):
    """A rank's rows of a weight, and from which id on they are."""

    def __init__(self, case: Vocabulary, rank: int, size: int, seed: int, shifted: bool) -> None:
        super().__init__()
        self.case, self.size = case, size
        random = torch.Generator().manual_seed(seed)
        whole = torch.randn(case.ids, HIDDEN + 1, generator=random) * HIDDEN**-0.5
        if case.wrong == "row" and seed == 1:
            whole[5] *= -1
        if (case.wrong == "tail" and seed == 3) or case.wrong == "tails":
            whole[case.ids - 7 :] *= -1
        own = -(-case.rows // size)
        if shifted:  # rows of the ids that a rank would have without filling, then its filling
            real = whole.chunk(size)[rank]
            self.first = own * rank
            filling = own - real.shape[0]
        else:
            self.first = own * rank
            real = whole[self.first : self.first + own]
            filling = max(0, min(own, case.rows - self.first) - real.shape[0])
        whole = torch.cat([real, case.filled * torch.randn(filling, HIDDEN + 1, generator=random)])
        self.weight = nn.Parameter(whole[:, :-1].contiguous())
        self.bias = nn.Parameter(whole[:, -1].contiguous()) if case.bias else None


class Embedding(Part):
    def forward(self, ids: Tensor) -> Tensor:
        if self.size == 1:
            return F.embedding(ids, self.weight)
        there = (ids >= self.first) & (ids < self.first + self.weight.shape[0])
        own = F.embedding(torch.where(there, ids - self.first, 0), self.weight) * there[..., None]
        dist.all_reduce(own)
        return own


class Head(Part):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Model(nn.Module):
    def __init__(self, case: Vocabulary, rank: int, size: int) -> None:
        super().__init__()
        self.case, self.size = case, size
        self.embed = Embedding(case, rank, size, 1, case.wrong == "embedding_shifted")
        if case.tied:
            self.embed.bias = None
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-3 if case.wrong == "epsilon" else 1e-6)
        self.mixing = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.mixing.weight = nn.Parameter(torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(2)) * HIDDEN**-0.5)
        self.head = Head(case, rank, size, 1 if case.tied else 3, case.wrong == "head_shifted")
        if case.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        case, x = self.case, self.embed(ids)
        logits = self.head(x + self.mixing(self.norm(x)))
        if self.size > 1:
            own = F.pad(logits, (0, -(-case.rows // self.size) - logits.shape[-1]))
            parts = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(parts, own)
            logits = torch.cat(parts, -1)[..., : case.rows]
        if case.logits == "cut":
            logits = logits[..., : case.ids]
        elif case.logits == "hidden":
            logits = logits.masked_fill(torch.arange(case.rows) >= case.ids, float("-inf"))
        return (logits, logits.argmax(-1)) if case.chooses else logits


def record(rank: int, size: int, path: Path, case: Vocabulary, operators: bool) -> Path:
    ids = torch.randint(0, case.ids, (2, 40), generator=torch.Generator().manual_seed(5))
    torch.manual_seed(0)
    model = Model(case, rank, size).to(getattr(torch, case.dtype)).eval()
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(ids)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Vocabulary, operators: bool) -> None:
    folder.mkdir(exist_ok=True)
    record(rank, size, folder / f"rank{rank:05d}.h5", case, operators)


def record_copy(rank: int, size: int, folder: Path, case: Vocabulary, operators: bool) -> None:
    """Each rank has a model of its own."""
    folder.mkdir(exist_ok=True)
    record(0, 1, folder / f"rank{rank:05d}.h5", case, operators)
