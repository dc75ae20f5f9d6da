"""A small decoder of this bench's own, with what the models of transformers here lack.

Windows in odd layers, a soft cap, tied and scaled embeddings, norms of queries and keys, a paged cache, and experts with a
shared one. Its modules are named as transformers names them, so that a fault is written once for all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captures.llama import MLP, VOCABULARY, RMSNorm
from tests.evaluate.models import Size
from tests.evaluate.operators.attention import Attention
from tests.evaluate.operators.routing import Mixture

HEADS, KV_HEADS, PAGE, SLOTS = 4, 2, 4, 48
WINDOW, SOFTCAP = 6, 5.0


class PagedCache:
    """Keys and values of all layers in pages that lie in no order, shape (batch, heads, slots, size) each."""

    def __init__(self, layers: int, batch: int, size: int, dtype: torch.dtype) -> None:
        shape = (batch, KV_HEADS, SLOTS, size)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.table = torch.randperm(SLOTS // PAGE, generator=torch.Generator().manual_seed(0))
        self.start = self.end = 0

    def slots(self, start: int, end: int) -> Tensor:
        """Where positions `start` to `end` (exclusive) lie."""
        positions = torch.arange(start, end)
        return self.table[positions // PAGE] * PAGE + positions % PAGE

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self.write(self.keys[layer], k, self.slots(self.start, self.end))
        self.write(self.values[layer], v, self.slots(self.start, self.end))
        kept = self.slots(0, self.end)
        return self.keys[layer].index_select(2, kept), self.values[layer].index_select(2, kept)

    def write(self, pages: Tensor, new: Tensor, slots: Tensor) -> None:
        pages.index_copy_(2, slots, new)


class Rotary(nn.Module):
    """Cosines and sines of the positions, shape (batch, length, head_dim)."""

    def __init__(self, head_dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.base, self.attention_scaling = head_dim, base, 1.0

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = self.angles(positions)
        angles = torch.cat([angles, angles], -1)
        return (angles.cos() * self.attention_scaling).to(x.dtype), (angles.sin() * self.attention_scaling).to(x.dtype)

    def angles(self, positions: Tensor) -> Tensor:
        frequencies = self.base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)
        return positions[..., None].to(torch.float32) * frequencies


class Layer(nn.Module):
    def __init__(self, index: int, size: Size, *, mixture: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(size.hidden), RMSNorm(size.hidden)
        window = WINDOW if index % 2 else None
        self.self_attn = Attention(index, size.hidden, HEADS, KV_HEADS, RMSNorm, window=window, softcap=SOFTCAP)
        self.mlp = Mixture(size.hidden, size.hidden) if mixture else MLP(size.hidden, 2 * size.hidden)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: PagedCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Logits of token ids, shape (batch, length, vocabulary)."""

    def __init__(self, size: Size, *, mixture: bool = False) -> None:
        super().__init__()
        self.size, self.embed_scale, self.logit_scale = size, size.hidden**0.5, 0.5
        self.embed_tokens = nn.Embedding(VOCABULARY, size.hidden)
        self.rotary_emb = Rotary(size.hidden // HEADS)
        self.layers = nn.ModuleList(Layer(i, size, mixture=mixture) for i in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.dropout = nn.Dropout(0.1)
        self.lm_head = nn.Linear(size.hidden, VOCABULARY, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: PagedCache | None = None) -> Tensor:
        past, length = (0 if cache is None else cache.end), input_ids.shape[1]
        if cache is not None:
            cache.start, cache.end = past, past + length
        x = self.dropout(self.embed(input_ids))
        rotary = self.rotary_emb(x, self.positions(past, length, attention_mask))
        mask = self.mask(past, length, attention_mask, x.dtype)
        for layer in self.layers:
            x = layer(x, rotary, mask, cache)
        return self.lm_head(self.norm(x)) * self.logit_scale

    def embed(self, input_ids: Tensor) -> Tensor:
        return self.embed_tokens(input_ids) * self.embed_scale

    def positions(self, past: int, length: int, attention_mask: Tensor | None) -> Tensor:
        if attention_mask is None:
            return torch.arange(past, past + length)[None]
        return (attention_mask.cumsum(-1) - 1).clamp(min=0)

    def mask(self, past: int, length: int, attention_mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Zero where a query may look, the lowest number elsewhere, shape (batch or 1, 1, queries, keys)."""
        allowed = torch.arange(past, past + length)[:, None] >= torch.arange(past + length)
        allowed = allowed[None, None] if attention_mask is None else allowed & attention_mask[:, None, None, :].bool()
        return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, self.lowest(dtype))

    def lowest(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).min

    def new_cache(self, batch: int) -> PagedCache:
        weight = self.embed_tokens.weight
        return PagedCache(self.size.layers, batch, self.size.hidden // HEADS, weight.dtype)
