"""Tasks of a process of the group: a mixture of experts whose router hangs by rounding; experts dealt to ranks, and called one by one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerdiff import Recorder

EXPERTS = 4


class Router(nn.Linear):
    """Rows 1 and 2 are alike but for what bf16 does not have: there all that chose 2 choose 1."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x).softmax(-1).topk(2)  # type: ignore[return-value]


class Mixture(nn.Module):
    def __init__(self, rank: int, size: int, wrong: str) -> None:
        super().__init__()
        self.router = Router(16, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(i): nn.Linear(16, 16, bias=False) for i in range(EXPERTS)})
        self.every = nn.Linear(16, 16, bias=False)  # an expert that all ranks have whole
        self.mine = [i for i in range(EXPERTS) if i * size // EXPERTS == rank]
        self.shared, self.wrong = size > 1, wrong
        with torch.no_grad():
            self.router.weight[2] = self.router.weight[1] * (1 + 1e-4 * torch.arange(16))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        out = torch.zeros_like(x)
        for i in self.mine:
            tokens, place = torch.where(chosen == i)
            scale = 0.5 if self.wrong == "weights" and i == 0 else 1.0
            out = out.index_add(0, tokens, self.experts[str(i)](x[tokens]) * (weights[tokens, place, None] * scale).to(x.dtype))
        every = self.every(x)
        if self.wrong == "shared":
            out = out + every
        if self.shared:
            dist.all_reduce(out)
        return out if self.wrong == "shared" else out + every


class Model(nn.Module):
    def __init__(self, rank: int = 0, size: int = 1, wrong: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.mixture = nn.RMSNorm(16), Mixture(rank, size, wrong)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixture(self.norm(x))  # type: ignore[no-any-return]


def record(rank: int, size: int, path: Path, dtype: torch.dtype, wrong: str = "") -> Path:
    x = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
    model = Model(rank, size, wrong).to(dtype)
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(x.to(dtype))
    return path


def record_rank(rank: int, size: int, folder: Path, wrong: str) -> None:
    folder.mkdir(exist_ok=True)
    record(rank, size, folder / f"rank{rank:05d}.h5", torch.bfloat16, wrong)
