"""A small Llama with every stage a module of its own.

Weights and inputs follow from a seed, so two runs differ only in what is asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HIDDEN, INNER, HEADS, LAYERS, VOCABULARY, LENGTH = 64, 160, 4, 5, 97, 18
EPSILON = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, hidden: int, eps: float = EPSILON) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class Rotary(nn.Module):
    """Cosines and sines of the positions, shape (batch, 1, length, head_dim)."""

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = self.base ** (-torch.arange(0, self.head_dim, 2, device=x.device).float() / self.head_dim)
        angles = positions[:, None, :, None].float() * frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = (proj(x).view(batch, length, self.heads, -1).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        scores = q @ k.transpose(-1, -2) * (hidden // self.heads) ** -0.5 + mask
        mixed = scores.float().softmax(-1).to(v.dtype) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.act_fn = nn.SiLU()
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden)
        self.self_attn = Attention(hidden, heads)
        self.post_attention_layernorm = RMSNorm(hidden)
        self.mlp = MLP(hidden, inner)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class SmallLlama(nn.Module):
    """What may not be attended to is filled with the lowest finite number, as Llama has it, or with `mask_value`."""

    def __init__(self, *, rope_base: float = 10_000.0, mask_value: float | None = None, hidden: int = HIDDEN, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, hidden)
        self.rotary_emb = Rotary(hidden // HEADS, rope_base)
        self.layers = nn.ModuleList(DecoderLayer(hidden, INNER, HEADS) for _ in range(layers))
        self.norm = RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, VOCABULARY, bias=False)
        self.mask_value = mask_value

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        allowed = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :].bool()
        lowest = torch.finfo(x.dtype).min if self.mask_value is None else self.mask_value
        mask = torch.zeros(allowed.shape, dtype=x.dtype, device=x.device).masked_fill(~allowed, lowest)
        rotary = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, rotary, mask)
        return self.lm_head(self.norm(x))


def small_llama(**options: float) -> SmallLlama:
    """The model with the weights of seed 0, in eval mode."""
    torch.manual_seed(0)
    model = SmallLlama(**options)  # type: ignore[arg-type]  # all of them are numbers
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def tokens(*, batch: int = 1, length: int = LENGTH) -> Tensor:
    """Token ids, shape (batch, length)."""
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))
