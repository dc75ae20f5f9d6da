"""Mixtures of experts over ranks: each rank's experts make a part of a sum, or tokens are sent to the experts' ranks and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captures.layouts import Cut, Ranks


class Expert(nn.Module):
    def __init__(self, cut: Cut, number: int) -> None:
        super().__init__()
        case = cut.case
        self.gate_up = nn.Parameter(cut.weight("gate_up", case.experts, 2 * case.hidden, case.hidden)[number].clone())
        self.down = nn.Parameter(cut.weight("down", case.experts, case.hidden, case.hidden)[number].clone())

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down)


class Experts(nn.Module):
    """All experts of a rank in two weights. What comes out is its experts' part of the sum."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        case = cut.case
        ranks = cut.ranks if case.kind == "experts" else Ranks()
        held = ranks.places(case.experts)
        self.ranks = ranks if case.reduced_inside else Ranks()
        self.first = 0 if cut.wrong("expert_offset") else int(held[0])
        self.idle = cut.wrong("experts_idle") and ranks.rank > 0
        self.gate_up = nn.Parameter(cut.weight("gate_up", case.experts, 2 * case.hidden, case.hidden)[held].clone())
        self.down = nn.Parameter(cut.weight("down", case.experts, case.hidden, case.hidden)[held].clone())

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for local in range(0 if self.idle else self.gate_up.shape[0]):
            rows, slots = torch.nonzero(chosen == self.first + local, as_tuple=True)
            gate, up = F.linear(x[rows], self.gate_up[local]).chunk(2, -1)
            y.index_add_(0, rows, F.linear(F.silu(gate) * up, self.down[local]) * weights[rows, slots, None])
        return self.ranks.sum(y)


class Router(nn.Module):
    """Ids and weights of two experts for each token."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.weight = nn.Parameter(cut.weight("weight", cut.case.experts, cut.case.hidden).clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = F.linear(x.float(), self.weight.float()).softmax(-1).topk(2, -1)
        return chosen, (weights / weights.sum(-1, keepdim=True)).to(x.dtype)


class MixtureOfExperts(nn.Module):
    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.ranks = cut.ranks if cut.case.kind == "experts" else Ranks()
        self.reduced = cut.case.reduced_inside
        self.gate = Router(cut.at("gate"))
        self.experts = Experts(cut.at("experts"))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        y = self.experts(rows, *self.gate(rows))
        return (y if self.reduced else self.ranks.sum(y)).view(x.shape)


class ExchangedExperts(nn.Module):
    """Experts as modules. Each rank routes its part of the tokens, sends them to the experts of all ranks, and gets them back."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.ranks = cut.ranks if cut.case.kind == "experts" else Ranks()
        held = self.ranks.places(cut.case.experts)
        self.count, self.each = cut.case.experts, held.numel()
        self.gate = Router(cut.at("gate"))
        self.experts = nn.ModuleDict({str(number): Expert(cut.at("experts"), number) for number in held.tolist()})

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        mine = rows[self.ranks.places(rows.shape[0])]
        chosen, weights = self.gate(mine)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.count)
        each_rank = counts.view(self.ranks.size, -1).sum(1).tolist()
        came, sizes = self.ranks.exchange(mine[order // 2], each_rank)
        asked, _ = self.ranks.exchange(chosen.flatten()[order], each_rank)
        made = torch.empty_like(came)
        for number, expert in self.experts.items():
            made[asked == int(number)] = expert(came[asked == int(number)])
        back, _ = self.ranks.exchange(made, sizes)
        y = torch.zeros_like(mine).index_add_(0, order // 2, back * weights.flatten()[order, None])
        return self.ranks.gather(y, 0).view(x.shape)
