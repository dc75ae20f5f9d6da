"""Tasks of a process of the group: experts whose module is given the ids that its own rank counts, and a sign for those of other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, EXPERTS = 16, 8


@dataclass(frozen=True)
class Local:
    """How ids are made local, and what is wrong."""

    absent: int = -1  # the id for an expert of another rank
    inside: bool = False  # the module of the experts maps ids itself
    reduced: bool = False  # the module of the experts adds up what ranks make
    dtype: str = "float32"
    wrong: str = ""  # from_zero, next (maps), masked (other ranks' ids are expert 0), scale (of one expert), epsilon
    rank: int = 1
    hanging: bool = False  # rows of the router that are alike but for what bf16 does not have
    layers: int = 1
    cuts: int = 1  # neighbouring ranks that have rows of the first weight of each of their experts, and columns of the second


class Router(nn.Module):
    def __init__(self, hanging: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN))
        if hanging:
            with torch.no_grad():
                self.weight[6] = self.weight[1] * (1 + 1e-4 * torch.arange(HIDDEN))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = F.linear(x.float(), self.weight.float()).softmax(-1).topk(2)
        return chosen, weights.to(x.dtype)


class Experts(nn.Module):
    def __init__(self, case: Local, first: int, count: int, rows: slice) -> None:
        super().__init__()
        self.case, self.first = case, first
        whole = torch.randn(2, EXPERTS, HIDDEN, HIDDEN) * HIDDEN**-0.5
        held = whole[:, first : first + count]
        self.up, self.down = nn.Parameter(held[0, :, rows].clone()), nn.Parameter(held[1, :, :, rows].clone())
        self.map = expert_map(case, first, count)
        self.count = count

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        if self.case.inside and self.map is not None:
            chosen = self.map[chosen]
        y = torch.zeros_like(x)
        for local in range(self.count):
            rows, slots = torch.nonzero(chosen == local, as_tuple=True)
            scale = 0.5 if self.case.wrong == "scale" and local == 0 else 1.0
            y.index_add_(0, rows, F.silu(x[rows] @ self.up[local].T) @ self.down[local].T * (weights[rows, slots, None] * scale))
        if self.case.reduced and self.map is not None:
            dist.all_reduce(y)
        return y


def expert_map(case: Local, first: int, count: int) -> Tensor | None:
    """By global id the local one; None of one process."""
    if count == EXPERTS:
        return None
    found = torch.full((EXPERTS,), 0 if case.wrong == "masked" else case.absent)
    begin = {"from_zero": 0, "next": (first + 1) % EXPERTS}.get(case.wrong, first)
    for local in range(count):
        found[(begin + local) % EXPERTS] = local
    return found


class Mixture(nn.Module):
    def __init__(self, case: Local, rank: int, size: int) -> None:
        super().__init__()
        self.case, self.size = case, size
        self.router = Router(case.hanging)
        wrong = case if case.wrong != "scale" or rank == case.rank else Local(case.absent, case.inside, case.reduced)
        cuts = case.cuts if size > 1 else 1
        each, rows = EXPERTS * cuts // size, HIDDEN // cuts
        self.experts = Experts(wrong, rank // cuts * each, each, slice(rank % cuts * rows, (rank % cuts + 1) * rows))

    def forward(self, x: Tensor) -> Tensor:
        chosen, weights = self.router(x)
        if self.size > 1 and not self.case.inside:
            chosen = self.experts.map[chosen]
        y = self.experts(x, chosen, weights)
        if self.size > 1 and not self.case.reduced:
            dist.all_reduce(y)
        return y  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, case: Local, rank: int, size: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-3 if case.wrong == "epsilon" else 1e-6)
        self.mixture = Mixture(case, rank, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixture(self.norm(x))  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, case: Local, operators: bool) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(case, rank, size) for _ in range(case.layers))).to(getattr(torch, case.dtype))
    x = torch.randn(24, HIDDEN, generator=torch.Generator().manual_seed(1)).to(getattr(torch, case.dtype))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Local, operators: bool) -> None:
    folder.mkdir(exist_ok=True)
    record(rank, size, folder / f"rank{rank:05d}.h5", case, operators)
