"""Small torch models with known insides, for tests and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import MLP, RMSNorm, rotate


class Rotary(nn.Module):
    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.head_dim = head_dim

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = self.base ** (-torch.arange(0, self.head_dim, 2, device=x.device).float() / self.head_dim)
        angles = positions[..., None].float() * frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, *, cos_sin: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = (proj(x).view(batch, length, self.heads, -1).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *cos_sin), rotate(k, *cos_sin)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, hidden))


class Block(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(hidden, heads)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(hidden, inner)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos_sin=cos_sin, mask=mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class MiniLlama(nn.Module):
    """A Llama decoder with a module for each part. `eps` is one epsilon, or one a layer."""

    def __init__(
        self,
        *,
        vocab: int = 97,
        hidden: int = 32,
        inner: int = 64,
        heads: int = 4,
        layers: int = 2,
        eps: float | list[float] = 1e-6,
        base: float = 10000.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        epsilons = eps if isinstance(eps, list) else [eps] * layers
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.rotary_emb = Rotary(hidden // heads, base)
        self.layers = nn.ModuleList(Block(hidden, inner, heads, epsilon) for epsilon in epsilons)
        self.norm = RMSNorm(hidden, 1e-6)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(input_ids)
        cos_sin = self.rotary_emb(x, torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            x = layer(x, cos_sin, mask)
        return self.lm_head(self.norm(x))


def tokens(batch: int = 2, length: int = 7, *, vocab: int = 97, seed: int = 1) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


class SmallResNet(nn.Module):
    """Convolutions, batch norms with running statistics, and in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.blocks(self.stem(x)).mean((2, 3))))


class Accumulate(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.sum(0)
        return self.total


class InPlace(nn.Module):
    """Reuses one buffer for every layer, writes to its input, and keeps state across calls."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.register_buffer("scratch", torch.zeros(4, size))
        self.first = nn.Linear(size, size)
        self.second = nn.Linear(size, size)
        self.relu = nn.ReLU(inplace=True)
        self.accumulate = Accumulate(size)

    def forward(self, x: Tensor) -> Tensor:
        self.scratch.copy_(self.first(x))
        h = self.relu(self.scratch)
        self.scratch.copy_(self.second(h))
        h = self.relu(self.scratch)
        return h + self.accumulate(h)


def hf_llama(**changes: int) -> nn.Module:
    """A Llama of transformers with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        **changes,
    }
    return LlamaForCausalLM(LlamaConfig(**settings, bos_token_id=1, eos_token_id=2, pad_token_id=0)).eval()


def hf_qwen_moe() -> nn.Module:
    """A Qwen2 mixture of experts of transformers with random weights."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen2MoeConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        max_position_embeddings=128,
    )
    return Qwen2MoeForCausalLM(config).eval()


def hf_bert() -> nn.Module:
    """A BERT of transformers with random weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64
    )
    return BertModel(config).eval()
