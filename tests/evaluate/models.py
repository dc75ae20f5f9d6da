"""Models by architecture, with random weights of a seed, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from captures.llama import small_llama

VOCABULARY = 97


@dataclass(frozen=True)
class Size:
    """How large a model is."""

    hidden: int
    layers: int
    length: int
    batch: int = 2


SMALL = Size(64, 4, 24)
MEDIUM = Size(256, 6, 96)
LONG = Size(128, 3, 384, 1)


def llama(size: Size, attention: str = "eager") -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def qwen3_moe(size: Size, attention: str = "eager") -> nn.Module:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        moe_intermediate_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=size.hidden // 4,
        num_experts=8,
        num_experts_per_tok=2,
        attn_implementation=attention,
    )
    return Qwen3MoeForCausalLM(config).eval()


def mixtral(size: Size, attention: str = "eager") -> nn.Module:
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        attn_implementation=attention,
    )
    return MixtralForCausalLM(config).eval()


def gpt2(size: Size, attention: str = "eager") -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=size.hidden, n_layer=size.layers, n_head=4, n_positions=1024, attn_implementation=attention
    )
    return GPT2LMHeadModel(config).eval()


def bert(size: Size, attention: str = "eager") -> nn.Module:
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        attn_implementation=attention,
    )
    return BertModel(config).eval()


def own_llama(size: Size, attention: str = "eager") -> nn.Module:
    return small_llama(hidden=size.hidden, layers=size.layers)


ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "llama": llama,
    "qwen3-moe": qwen3_moe,
    "mixtral": mixtral,
    "gpt2": gpt2,
    "bert": bert,
    "own llama": own_llama,
}


def build(architecture: str, size: Size, seed: int, attention: str = "eager", spread: float = 1.0) -> nn.Module:
    """A model whose matrices are scaled by `spread`, so that attention is as peaked as trained weights make it."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[architecture](size, attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(spread)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def inputs(size: Size, seed: int, *, padded: bool = False) -> dict[str, Any]:
    """Token ids, and a mask of the left padding where asked for."""
    ids = torch.randint(0, VOCABULARY, (size.batch, size.length), generator=torch.Generator().manual_seed(1000 + seed))
    if not padded:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, : size.length // 4] = 0
    return {"input_ids": ids, "attention_mask": mask}
