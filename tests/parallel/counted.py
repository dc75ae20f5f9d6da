"""Tasks of a process of the group: layers on stages, experts on ranks, and weights that are cut, in grids of two of the three.

Layers and experts are counted from zero on each rank, by their number in the whole model, or dealt in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder

TOKENS, IDS = 24, 50


@dataclass(frozen=True)
class Counted:
    """A model, how it lies on the ranks, and what is wrong. The ranks that cut one weight are neighbours, then come those of experts."""

    stages: int = 1
    shares: int = 1  # groups of ranks that share the experts out
    cuts: int = 1  # ranks that cut each weight
    layers: int = 4
    experts: int = 8
    hidden: int = 16
    inner: int = 12
    norms: str = "trained"  # ones: as a norm begins; none
    numbers: str = "local"  # or global
    dealt: bool = False  # experts in turn, not in a row
    seed: int = 0
    dtype: str = "float32"
    wrong: str = ""
    """stage: holds the layers of the first; experts: a rank holds those of the first; epsilon: of a layer; scale: of an expert; row: of a
    weight of one rank."""
    layer: int = 3

    @property
    def ranks(self) -> int:
        return self.stages * self.shares * self.cuts

    @property
    def alone(self) -> Counted:
        return replace(self, stages=1, shares=1, cuts=1, wrong="")


@dataclass(frozen=True)
class At:
    """A process: its number among those of each kind."""

    case: Counted
    stage: int = 0
    share: int = 0
    cut: int = 0
    group: dist.ProcessGroup | None = None
    """The ranks of its stage."""

    @classmethod
    def of(cls, case: Counted, rank: int) -> At:
        each = case.shares * case.cuts
        groups = [dist.new_group(list(range(first, first + each))) for first in range(0, case.ranks, each)] if case.ranks > 1 else [None]
        return cls(case, rank // each, rank // case.cuts % case.shares, rank % case.cuts, groups[rank // each])

    def sum(self, x: Tensor) -> Tensor:
        if self.case.shares * self.case.cuts > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def held(self, count: int, number: int, of: int, dealt: bool = False) -> list[int]:
        return list(range(number, count, of)) if dealt else list(range(number * count // of, (number + 1) * count // of))


def drawn(case: Counted, *key: int | str, shape: tuple[int, ...]) -> Tensor:
    """A weight of the whole model, by its place there."""
    seed = hash((case.seed, *(one if isinstance(one, int) else sum(map(ord, one)) for one in key))) % (1 << 31)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.5


class Expert(nn.Module):
    """Rows of the first weight, and columns of the second."""

    def __init__(self, at: At, *key: int | str) -> None:
        super().__init__()
        case, self.scale = at.case, 1.0
        rows = at.held(case.inner, at.cut, case.cuts)
        up, down = drawn(case, *key, "up", shape=(case.inner, case.hidden)), drawn(case, *key, "down", shape=(case.hidden, case.inner))
        self.up, self.down = nn.Parameter(up[rows].clone()), nn.Parameter(down[:, rows].clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.up)), self.down) * self.scale


class Listed(nn.Module):
    """Some of a list of modules under their numbers."""

    def __init__(self, numbers: Sequence[int], modules: Sequence[nn.Module]) -> None:
        super().__init__()
        for number, module in zip(numbers, modules, strict=True):
            self.add_module(str(number), module)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Mixture(nn.Module):
    def __init__(self, at: At, layer: int) -> None:
        super().__init__()
        case, self.at = at.case, at
        self.router = nn.Parameter(drawn(case, layer, "router", shape=(case.experts, case.hidden)))
        self.held = at.held(case.experts, at.share, case.shares, case.dealt)
        wrong, last = case.wrong if layer == case.layer else "", at.share == case.shares - 1
        loaded = at.held(case.experts, 0, case.shares, case.dealt) if wrong == "experts" else self.held
        experts = [Expert(at, layer, "expert", number) for number in loaded]
        if wrong == "scale" and last:
            experts[-1].scale = 0.9
        if wrong == "row" and last and at.cut == case.cuts - 1:
            with torch.no_grad():
                experts[-1].up[1] *= -1
        self.experts = Listed(range(len(experts)) if case.numbers == "local" else self.held, experts)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = F.linear(x.float(), self.router.float()).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for number, expert in zip(self.held, self.experts.children(), strict=True):
            rows, slots = torch.nonzero(chosen == number, as_tuple=True)
            y.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None].to(x.dtype))
        return self.at.sum(y)


class Dense(nn.Module):
    def __init__(self, at: At, layer: int) -> None:
        super().__init__()
        self.at, self.body = at, Expert(At(at.case, at.stage, 0, at.cut), layer, "dense")

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.at.sum(y if self.at.share == 0 else torch.zeros_like(y))


class Layer(nn.Module):
    def __init__(self, at: At, layer: int) -> None:
        super().__init__()
        case = at.case
        self.norm = nn.RMSNorm(case.hidden, eps=1e-2 if case.wrong == "epsilon" and layer == case.layer else 1e-6)
        if case.norms == "trained":
            self.norm.weight = nn.Parameter(1 + 0.1 * drawn(case, layer, "norm", shape=(case.hidden,)))
        self.body = Mixture(at, layer) if case.experts else Dense(at, layer)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(self.norm(x))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, at: At) -> None:
        super().__init__()
        case, self.at = at.case, at
        held = at.held(case.layers, at.stage, case.stages)
        loaded = at.held(case.layers, 0, case.stages) if case.wrong == "stage" else held
        self.embed = nn.Embedding(IDS, case.hidden, _weight=drawn(case, "embed", shape=(IDS, case.hidden))) if at.stage == 0 else None
        self.layers = Listed(range(len(held)) if case.numbers == "local" else held, [Layer(at, number) for number in loaded])
        self.head = nn.Linear(case.hidden, IDS) if at.stage == case.stages - 1 else None
        if self.head is not None:
            self.head.weight = nn.Parameter(drawn(case, "head", shape=(IDS, case.hidden)))
            self.head.bias = nn.Parameter(drawn(case, "bias", shape=(IDS,)))

    def forward(self, ids: Tensor) -> Tensor:
        at, rank = self.at, dist.get_rank() if self.at.case.ranks > 1 else 0
        each = at.case.shares * at.case.cuts
        if self.embed is not None:
            x = self.embed(ids)
        else:
            x = torch.empty(len(ids), at.case.hidden, dtype=getattr(torch, at.case.dtype))
            dist.recv(x, rank - each)
        for layer in self.layers.children():
            x = layer(x)
        if self.head is None:
            dist.send(x.contiguous(), rank + each)
            return x
        return self.head(x)  # type: ignore[no-any-return]


def record(rank: int, path: Path, case: Counted, operators: bool) -> Path:
    ids = torch.randint(0, IDS, (TOKENS,), generator=torch.Generator().manual_seed(case.seed))
    model = Model(At.of(case, rank)).to(getattr(torch, case.dtype)).eval()
    torch.manual_seed(0)
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(ids)
    return path


def record_rank(rank: int, size: int, folder: Path, case: Counted, operators: bool) -> None:
    folder.mkdir(exist_ok=True)
    record(rank, folder / f"rank{rank:05d}.h5", case, operators)
