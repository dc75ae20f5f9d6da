"""A serving engine, small: flattened tokens, fused projections, a residual handed along, a paged cache, requests that come and go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import RMSNorm, SmallLlama

BLOCK, BLOCKS = 4, 24
HIDDEN, LAYERS = 32, 2
Pieces = list[tuple[int, int]]
"""Of each request in a forward, how many tokens there were before, and how many there are then."""


class Norm(nn.Module):
    """Adds to the residual first, where there is one."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is not None:
            x = residual = x + residual
        wide = x.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight
        return y if residual is None else (y, residual)


class Attention(nn.Module):
    def __init__(self, attention: nn.Module, fault: str) -> None:
        super().__init__()
        self.heads, self.head, self.fault = attention.heads, HIDDEN // attention.heads, fault
        weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        self.qkv_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.qkv_proj.weight = nn.Parameter(torch.cat(weights).detach())
        self.o_proj = attention.o_proj

    def forward(self, x: Tensor, cos_sin: Tensor, cache: Tensor, slots: Tensor, tables: list[Tensor], pieces: Pieces) -> Tensor:
        head = self.head
        q, k, v = (part.view(-1, self.heads, head) for part in self.qkv_proj(x).chunk(3, -1))
        if self.fault == "split":
            k, v = v, k
        cos, sin = cos_sin[:, None].to(x.dtype).chunk(2, -1)
        q, k = (self._rotated(part, cos, sin) for part in (q, k))
        if self.fault == "slot":
            slots = torch.cat([slots[1:], slots[-1:]])
        cache[0].view(-1, self.heads, head)[slots], cache[1].view(-1, self.heads, head)[slots] = k, v
        scale = 0.5 * head**-0.5 if self.fault == "scale" else head**-0.5
        out, begin = torch.empty_like(q), 0
        for table, (first, length) in zip(tables, pieces, strict=True):
            pages = table.flip(0) if self.fault == "table" else table
            keys, values = (part[pages].reshape(-1, self.heads, head)[:length] for part in cache)
            end = begin + length - first
            scores = torch.einsum("qhd,khd->hqk", q[begin:end], keys) * scale
            later = torch.ones(length - first, length, dtype=torch.bool).triu(first + (2 if self.fault == "mask" else 1))
            probabilities = scores.masked_fill(later, float("-inf")).softmax(-1, dtype=torch.float32).to(x.dtype)
            out[begin:end] = torch.einsum("hqk,khd->qhd", probabilities, values)
            begin = end
        return self.o_proj(out.flatten(1))  # type: ignore[no-any-return]

    @staticmethod
    def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class MLP(nn.Module):
    def __init__(self, mlp: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault, self.down_proj = fault, mlp.down_proj
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * mlp.gate_proj.out_features, bias=False)
        self.gate_up_proj.weight = nn.Parameter(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach())

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        if self.fault == "halves":
            gate, up = up, gate
        return self.down_proj(functional.silu(gate) * up)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(layer.self_attn, fault), MLP(layer.mlp, fault)
        self.input_layernorm, self.post_attention_layernorm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        if fault == "epsilon":
            self.post_attention_layernorm.eps = 1e-5

    def forward(self, x: Tensor, residual: Tensor | None, *cached: object) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x, *cached), residual)
        return self.mlp(x), residual


class Engine(nn.Module):
    """`faults` are those of each layer."""

    def __init__(self, model: SmallLlama, faults: tuple[str, ...] = ("", "")) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head, self.norm = model.embed_tokens, model.lm_head, Norm(model.norm)
        self.layers = nn.ModuleList(Layer(layer, fault) for layer, fault in zip(model.layers, faults, strict=True))
        head = HIDDEN // model.layers[0].self_attn.heads
        angles = torch.arange(64).float()[:, None] * 10000.0 ** (-torch.arange(0, head, 2).float() / head)
        self.register_buffer("cos_sin_cache", torch.cat([angles.cos(), angles.sin()], -1))
        self.head = head

    def forward(self, ids: Tensor, positions: Tensor, caches: list[Tensor], slots: Tensor, tables: list[Tensor], pieces: Pieces) -> Tensor:
        x, residual, cos_sin = self.embed_tokens(ids), None, self.cos_sin_cache[positions]
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, cos_sin, cache, slots, tables, pieces)
        return self.lm_head(self.asked_for(self.norm(x, residual)[0], pieces))  # type: ignore[no-any-return]

    def asked_for(self, x: Tensor, pieces: Pieces) -> Tensor:
        """The tokens of which logits are made."""
        return x


class Sampling(Engine):
    """Makes logits of the last token of each request alone; or of the one `early` before it."""

    early = 0

    def asked_for(self, x: Tensor, pieces: Pieces) -> Tensor:
        return x[torch.tensor([length - first for first, length in pieces]).cumsum(0) - 1 - self.early]


def serve(engine: Engine, requests: Sequence[Tensor], steps: Sequence[Sequence[tuple[int, int]]] | None = None) -> None:
    """Requests without padding, each in pages of its own, in an order of no meaning.

    `steps`: which request goes on to which length, in each forward; all of them in one if None.
    """
    free, tables = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)), []
    for request in requests:
        table, free = free[: -(-len(request) // BLOCK)], free[-(-len(request) // BLOCK) :]
        tables.append(table)
    heads = engine.layers[0].self_attn.heads
    left = torch.randn(LAYERS, 2, BLOCKS, BLOCK, heads, engine.head, generator=torch.Generator().manual_seed(5))
    caches = list(left.to(engine.lm_head.weight.dtype))  # what others left there
    seen = [0] * len(requests)
    for step in steps or [[(number, len(request)) for number, request in enumerate(requests)]]:
        pieces = [(seen[number], end) for number, end in step]
        positions = [torch.arange(first, end) for first, end in pieces]
        used = [tables[number] for number, _ in step]
        slots = [table[at // BLOCK] * BLOCK + at % BLOCK for table, at in zip(used, positions, strict=True)]
        ids = [requests[number][first:end] for (number, _), (first, end) in zip(step, pieces, strict=True)]
        engine(torch.cat(ids), torch.cat(positions), caches, torch.cat(slots), used, pieces)
        for number, end in step:
            seen[number] = end
