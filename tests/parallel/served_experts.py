"""Tasks of a process of the group: a serving engine with experts, each of which is on one rank; its router is given logits."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import SmallLlama, small_llama
from layerdiff import Recorder
from tests.engine import HIDDEN, LAYERS, serve
from tests.parallel.serving import STEPS, Shared, requests

EXPERTS, INNER, TOP = 4, 24, 2


def routed(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the chosen experts of each token, and which these are."""
    shares, chosen = logits.float().softmax(-1).topk(TOP, -1)
    return shares / shares.sum(-1, keepdim=True), chosen


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN) / HIDDEN**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return routed(functional.linear(x, self.weight))


class Experts(nn.Module):
    """Those from `first` on; what comes out is their part of the sum."""

    def __init__(self, up: Tensor, down: Tensor, first: int = 0) -> None:
        super().__init__()
        self.up, self.down, self.first = nn.Parameter(up), nn.Parameter(down), first

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            token, place = torch.where(chosen == self.first + expert)
            made = functional.linear(functional.silu(functional.linear(x[token], up)), down)
            out.index_add_(0, token, (made * shares[token, place, None]).to(x.dtype))
        return out


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.experts = Experts(torch.randn(EXPERTS, INNER, HIDDEN) / HIDDEN**0.5, torch.randn(EXPERTS, HIDDEN, INNER) / INNER**0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, HIDDEN)
        shares, chosen = self.gate(rows)
        return self.experts(rows, chosen, shares).view(x.shape)


class Held(Experts):
    """Is given logits, where the model's experts are given ids."""

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:  # type: ignore[override]
        shares, chosen = routed(logits)
        return super().forward(x, chosen, shares)


class Served(nn.Module):
    """`wrong`: offset, each rank takes its experts for the first ones; slice, it has `down` of the others; sum, nobody adds up."""

    def __init__(self, mixture: Mixture, rank: int, size: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.gate = wrong, nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.gate.weight = mixture.gate.weight
        up, down = (weight.detach().chunk(size) for weight in (mixture.experts.up, mixture.experts.down))
        held = (rank + 1) % size if wrong == "slice" else rank
        self.experts = Held(up[rank].clone(), down[held].clone(), 0 if wrong == "offset" else rank * EXPERTS // size)

    def forward(self, x: Tensor) -> Tensor:
        y = self.experts(x, self.gate(x))
        if self.wrong != "sum":
            dist.all_reduce(y)
        return y


def model() -> SmallLlama:
    made = small_llama(hidden=HIDDEN, layers=LAYERS)
    torch.manual_seed(7)
    for layer in made.layers:
        layer.mlp = Mixture()
    return made.eval()


def record_rank(rank: int, size: int, folder: Path, operators: bool, wrong: str, dtype: torch.dtype) -> None:
    folder.mkdir(exist_ok=True)
    engine = Shared(rank, size, "")
    for number, (layer, other) in enumerate(zip(engine.layers, model().layers, strict=True)):
        layer.mlp = Served(other.mlp, rank, size, wrong if number == LAYERS - 1 else "")
    table = engine.cos_sin_cache
    engine.to(dtype).cos_sin_cache = table
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", engine, operators=operators):
        serve(engine, requests(), STEPS["mixed"])


def record(path: Path, operators: bool) -> Path:
    """One process, a padded batch."""
    each = requests()
    filled = [nn.utils.rnn.pad_sequence(of, batch_first=True) for of in (each, [torch.ones_like(one) for one in each])]
    with torch.no_grad(), Recorder(path, made := model(), operators=operators):
        made(input_ids=filled[0], attention_mask=filled[1])
    return path
