"""A mixture of experts whose routing and loop can be replaced, step by step; transformers' routers and experts too.

`Routing` and `Loop` make the calls of transformers' eager Qwen3-MoE, with a correction bias, a scaling factor and a
shared expert where the module has them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import MLP


class Routing:
    """Which experts a token goes to, and with which weights."""

    def run(self, gate: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.reshape(-1, x.shape[-1])
        logits = self.logits(gate, x)
        scores = self.score(logits)
        values, chosen = self.choose(gate, logits, scores)
        return logits, self.scale(gate, self.normalise(values)).to(logits.dtype), chosen

    def logits(self, gate: Any, x: Tensor) -> Tensor:
        return functional.linear(x, gate.weight)

    def score(self, logits: Tensor) -> Tensor:
        return functional.softmax(logits, dtype=torch.float, dim=-1)

    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        bias = getattr(gate, "correction_bias", None)
        values, chosen = torch.topk(scores if bias is None else scores + bias, gate.top_k, dim=-1)
        return (values if bias is None else scores.gather(-1, chosen)), chosen

    def normalise(self, values: Tensor) -> Tensor:
        """In place, as transformers has it."""
        values /= values.sum(dim=-1, keepdim=True)
        return values

    def scale(self, gate: Any, values: Tensor) -> Tensor:
        factor = getattr(gate, "routed_scaling_factor", None)
        return values if factor is None else values * factor


class Loop:
    """The experts, one after the other, each on the tokens that chose it."""

    def run(self, experts: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        mask = functional.one_hot(chosen, num_classes=experts.num_experts + 1).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert in self.order(hit):
            expert = expert[0]
            if expert == experts.num_experts:
                continue
            place, token = torch.where(mask[expert])
            place, token = self.admitted(place, token)
            y = self.expert(experts, expert, x[token])
            y = y * weights[token, place, None]
            total.index_add_(0, token, y.to(total.dtype))
        return total

    def order(self, hit: Tensor) -> Any:
        return hit

    def admitted(self, place: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return place, token

    def expert(self, experts: Any, expert: Tensor, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        return functional.linear(experts.act_fn(gate) * up, experts.down_proj[expert])


def route(gate: Any, routing: Routing) -> None:
    """Let a router run `routing`."""
    gate.forward = partial(routing.run, gate)


def loop(experts: Any, steps: Loop) -> None:
    """Let experts run `steps`."""
    experts.forward = partial(steps.run, experts)


class Router(nn.Module):
    def __init__(self, hidden: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.register_buffer("correction_bias", 0.05 * torch.randn(experts))
        self.top_k, self.routed_scaling_factor = top_k, 1.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return Routing().run(self, x)


class Experts(nn.Module):
    def __init__(self, hidden: int, inner: int, experts: int) -> None:
        super().__init__()
        self.num_experts, self.act_fn = experts, nn.SiLU()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return Loop().run(self, x, chosen, weights)


class Mixture(nn.Module):
    """Experts chosen by a router with a correction bias, and one that every token goes to."""

    def __init__(self, hidden: int, inner: int, experts: int = 6, top_k: int = 2) -> None:
        super().__init__()
        self.gate, self.experts, self.shared_expert = Router(hidden, experts, top_k), Experts(hidden, inner, experts), MLP(hidden, inner)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        _, weights, chosen = self.gate(flat)
        return (self.experts(flat, chosen, weights) + self.shared_expert(flat)).reshape(x.shape)
