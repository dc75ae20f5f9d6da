"""Faults put into one place of a model: the site is known, so a table can say what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Model = Any


@dataclass(frozen=True)
class Fault:
    """`put` changes a Llama at a layer and returns the sites of which one must be the origin, or the weight named by a notice."""

    name: str
    put: Callable[[Model, int], tuple[str, ...]]
    notice: str | None = None
    """The notice that names it, where the fault is in an input or a weight."""


def _layer(model: Model, k: int) -> Any:
    return model.model.layers[k]


def _epsilon(factor: float) -> Callable[[Model, int], tuple[str, ...]]:
    def put(model: Model, k: int) -> tuple[str, ...]:
        _layer(model, k).input_layernorm.variance_epsilon *= factor
        return (f"model.layers.{k}.input_layernorm",)

    return put


def _rope_base(model: Model, k: int) -> tuple[str, ...]:
    rotary = model.model.rotary_emb
    size = rotary.inv_freq.numel()
    rotary.inv_freq.copy_(500_000.0 ** (-torch.arange(size).float() / size))
    return ("model.rotary_emb",)


def _scale(model: Model, k: int) -> tuple[str, ...]:
    _layer(model, k).self_attn.scaling *= 1.25
    return (f"model.layers.{k}.self_attn",)


def _no_scale(model: Model, k: int) -> tuple[str, ...]:
    _layer(model, k).self_attn.scaling = 1.0
    return (f"model.layers.{k}.self_attn",)


def _replace_activation(kind: nn.Module) -> Callable[[Model, int], tuple[str, ...]]:
    def put(model: Model, k: int) -> tuple[str, ...]:
        _layer(model, k).mlp.act_fn = kind
        return (f"model.layers.{k}.mlp.act_fn",)

    return put


def _forward(find: Callable[[Model, int], Any], change: Callable[[Any], Any], site: str) -> Callable[[Model, int], tuple[str, ...]]:
    """A module whose result is changed on its way out."""

    def put(model: Model, k: int) -> tuple[str, ...]:
        module = find(model, k)
        original = module.forward
        module.forward = lambda *args, **kwargs: change(original(*args, **kwargs))
        return (site.format(k),)

    return put


def _zero_rows(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[:, -3:] = 0
    return y


def _swap_heads(y: torch.Tensor) -> torch.Tensor:
    half = y.shape[-1] // 2
    return torch.cat([y[..., half:], y[..., :half]], -1)


def _one_nan(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[0, 3, 1] = float("nan")
    return y


def _residual_dropped(model: Model, k: int) -> tuple[str, ...]:
    layer = _layer(model, k)
    attention, norm = layer.self_attn, layer.input_layernorm

    def forward(hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        hidden, _ = attention(hidden_states=norm(hidden_states), **kwargs)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    layer.forward = forward
    return (f"model.layers.{k}",)


def _layer_missing(model: Model, k: int) -> tuple[str, ...]:
    del model.model.layers[k]
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = i
    model.config.num_hidden_layers -= 1
    return (f"model.layers.{k}.self_attn.q_proj", f"model.layers.{k}.input_layernorm")


def _swap_gate_up(model: Model, k: int) -> tuple[str, ...]:
    mlp = _layer(model, k).mlp
    mlp.gate_proj.weight.data, mlp.up_proj.weight.data = mlp.up_proj.weight.data, mlp.gate_proj.weight.data
    return (f"model.layers.{k}.mlp.gate_proj",)


def _other_norm_weight(model: Model, k: int) -> tuple[str, ...]:
    _layer(model, k).input_layernorm.weight.data = _layer(model, k).input_layernorm.weight.data + 1
    return (f"model.layers.{k}.input_layernorm",)


def faults() -> Iterator[Fault]:
    """Every fault."""
    yield Fault("epsilon x10", _epsilon(10))
    yield Fault("epsilon x1e4", _epsilon(1e4))
    yield Fault("rope base", _rope_base, "weight-differs")
    yield Fault("attention scale x1.25", _scale)
    yield Fault("attention scale missing", _no_scale)
    yield Fault("gelu for silu", _replace_activation(nn.GELU()))
    yield Fault("relu for silu", _replace_activation(nn.ReLU()))
    yield Fault("last rows zero", _forward(lambda m, k: _layer(m, k).mlp.down_proj, _zero_rows, "model.layers.{}.mlp.down_proj"))
    yield Fault(
        "scaled by 1.01", _forward(lambda m, k: _layer(m, k).self_attn.o_proj, lambda y: y * 1.01, "model.layers.{}.self_attn.o_proj")
    )
    yield Fault(
        "scaled by 1.0001", _forward(lambda m, k: _layer(m, k).self_attn.o_proj, lambda y: y * 1.0001, "model.layers.{}.self_attn.o_proj")
    )
    yield Fault("heads swapped", _forward(lambda m, k: _layer(m, k).self_attn.q_proj, _swap_heads, "model.layers.{}.self_attn.q_proj"))
    yield Fault("one NaN", _forward(lambda m, k: _layer(m, k).mlp.up_proj, _one_nan, "model.layers.{}.mlp.up_proj"))
    yield Fault("residual dropped", _residual_dropped)
    yield Fault("layer missing", _layer_missing, "weight-differs")
    yield Fault("gate and up swapped", _swap_gate_up, "weight-differs")
    yield Fault("norm weight off by one", _other_norm_weight, "weight-differs")
