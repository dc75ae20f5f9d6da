"""Attention whose every step can be replaced: one forward for this bench's decoder and for those of transformers.

`Steps` makes the very calls that transformers' eager attention makes, in its order, so a subclass that overrides one
step differs from a model of transformers in that step alone. A test holds it to that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Attn = Any
"""A module with q_proj, k_proj, v_proj, o_proj, head_dim, num_key_value_groups and scaling."""


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((-second, first), dim=-1)


class Steps:
    """Attention as it should be."""

    def run(self, attn: Attn, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: Any) -> Tensor:
        q, k, v = self.project(attn, x)
        q, k = self.rotate(q, k, *rotary)
        if cache is not None:
            k, v = self.remember(attn, k, v, cache)
        groups = attn.num_key_value_groups
        k, v = self.repeat(k, groups), self.repeat(v, groups)
        weights = self.softmax(attn, self.mask(attn, self.cap(attn, self.score(attn, q, k)), mask)).to(q.dtype)
        weights = functional.dropout(weights, p=attn.attention_dropout if attn.training else 0.0, training=attn.training)
        return attn.o_proj(self.join(attn, self.mix(weights, v)))

    def project(self, attn: Attn, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, attn.head_dim)
        q = self.normalise(attn, "q_norm", attn.q_proj(x).view(shape)).transpose(1, 2)
        k = self.normalise(attn, "k_norm", attn.k_proj(x).view(shape)).transpose(1, 2)
        return q, k, attn.v_proj(x).view(shape).transpose(1, 2)

    def normalise(self, attn: Attn, name: str, x: Tensor) -> Tensor:
        norm = getattr(attn, name, None)
        return x if norm is None else norm(x)

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = (q * cos) + (rotate_half(q) * sin)
        return q, (k * cos) + (rotate_half(k) * sin)

    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return cache.update(k, v, attn.layer_idx)

    def repeat(self, x: Tensor, groups: int) -> Tensor:
        if groups == 1:
            return x
        batch, heads, length, size = x.shape
        return x[:, :, None, :, :].expand(batch, heads, groups, length, size).reshape(batch, heads * groups, length, size)

    def score(self, attn: Attn, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.transpose(2, 3)) * attn.scaling

    def cap(self, attn: Attn, scores: Tensor) -> Tensor:
        cap = getattr(attn, "softcap", None)
        return scores if cap is None else torch.tanh(scores / cap) * cap

    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        window = getattr(attn, "window", None)
        return scores + (mask if window is None else outside_window(mask, window))

    def softmax(self, attn: Attn, scores: Tensor) -> Tensor:
        return functional.softmax(scores, dim=-1, dtype=torch.float32)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(weights, v)

    def join(self, attn: Attn, mixed: Tensor) -> Tensor:
        mixed = mixed.transpose(1, 2).contiguous()
        return mixed.reshape(*mixed.shape[:2], -1).contiguous()


def distance(mask: Tensor) -> Tensor:
    """How many positions each key lies before each query, shape (queries, keys)."""
    queries, keys = mask.shape[-2:]
    return torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)


def outside_window(mask: Tensor, window: int) -> Tensor:
    """The mask, with keys `window` and more positions back filled too."""
    return mask.masked_fill(distance(mask) >= window, torch.finfo(mask.dtype).min)


def use(attn: Attn, steps: Steps) -> None:
    """Let an attention run `steps`, be it this bench's or a model's of transformers."""
    if hasattr(attn, "steps"):
        attn.steps = steps
        return

    def forward(
        hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Any = None, cache: Any = None, **others: Any
    ) -> tuple[Tensor, None]:
        cache = others.get("past_key_values") if cache is None else cache  # its name in older versions
        return steps.run(attn, hidden_states, position_embeddings, attention_mask, cache), None

    attn.forward = forward


class Attention(nn.Module):
    """Grouped attention with norms of queries and keys; `window` and `softcap` where a layer has them."""

    def __init__(self, index: int, hidden: int, heads: int, kv_heads: int, norm: Any, *, window: int | None, softcap: float | None) -> None:
        super().__init__()
        self.layer_idx, self.head_dim, self.num_key_value_groups = index, hidden // heads, heads // kv_heads
        self.scaling, self.window, self.softcap, self.attention_dropout = self.head_dim**-0.5, window, softcap, 0.1
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.q_norm, self.k_norm = norm(self.head_dim), norm(self.head_dim)
        self.steps = Steps()

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: Any = None) -> Tensor:
        return self.steps.run(self, x, rotary, mask, cache)
