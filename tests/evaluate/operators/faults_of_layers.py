"""Faults in the feed-forward part, the residual stream, the embeddings and the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import ADD, CAST, DIV, INDEX, MATMUL, MUL, Expected, Fault

_EMBEDDING = ("aten.embedding.default",)
_ACTIVATIONS = (
    "aten.silu.default",
    "aten.gelu.default",
    "aten.relu.default",
    "aten.sigmoid.default",
    "aten.clamp.default",
    "aten.erf.default",
    "aten.tanh.default",
)


def _activation(function: Callable[[Tensor], Tensor], operators: tuple[str, ...] = _ACTIVATIONS) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        return Expected((place.replace("act", lambda _, x: function(x)),), operators) if place.has("act") else None

    return put


def _result(role: str, change: Callable[[Tensor], Tensor], operators: tuple[str, ...]) -> Callable[[Place], Expected | None]:
    """What a part returns is changed on its way out."""

    def put(place: Place) -> Expected | None:
        if not place.has(role):
            return None
        right = place.at(role).forward
        return Expected((place.replace(role, lambda _, *args, **kwargs: change(right(*args, **kwargs))),), operators)

    return put


def _mlp(change: Callable[[Any, Tensor], Tensor], operators: tuple[str, ...]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        return Expected((place.replace("mlp", change),), operators) if place.has("mlp", "gate", "up", "down") else None

    return put


def _layer(
    combine: Callable[[Any, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor], Tensor],
) -> Callable[[Place], Expected | None]:
    """A layer whose residual stream is put together anew from its norm, attention and feed-forward part."""

    def put(place: Place) -> Expected | None:
        if not place.has("input_norm", "mlp"):
            return None
        layer = place.at("layer")

        def own(x: Tensor, rotary: Any, mask: Any, cache: Any) -> Tensor:
            return combine(layer, lambda y: layer.self_attn(y, rotary, mask, cache), layer.mlp, x)

        def other(hidden_states: Tensor, **kwargs: Any) -> Tensor:
            return combine(layer, lambda y: layer.self_attn(hidden_states=y, **kwargs)[0], layer.mlp, hidden_states)

        layer.forward = own if place.family.own else other
        return Expected((place.path("layer"),), (*ADD, *MUL))

    return put


def _no_residual(layer: Any, attention: Any, mlp: Any, x: Tensor) -> Tensor:
    x = attention(layer.input_layernorm(x))
    return x + mlp(layer.post_attention_layernorm(x))


def _twice(layer: Any, attention: Any, mlp: Any, x: Tensor) -> Tensor:
    x = x + attention(layer.input_layernorm(x))
    return x + mlp(layer.post_attention_layernorm(x)) + x


def _from_the_norm(layer: Any, attention: Any, mlp: Any, x: Tensor) -> Tensor:
    y = layer.input_layernorm(x)
    x = y + attention(y)
    return x + mlp(layer.post_attention_layernorm(x))


def _parallel(layer: Any, attention: Any, mlp: Any, x: Tensor) -> Tensor:
    return x + attention(layer.input_layernorm(x)) + mlp(layer.post_attention_layernorm(x))


def _scaled(layer: Any, attention: Any, mlp: Any, x: Tensor) -> Tensor:
    x = x + attention(layer.input_layernorm(x)) * 1.01
    return x + mlp(layer.post_attention_layernorm(x))


def _no_residual_in_bert(place: Place) -> Expected | None:
    if not place.has("attention_output"):
        return None
    part = place.at("attention_output")
    part.forward = lambda hidden_states, input_tensor: part.LayerNorm(part.dropout(part.dense(hidden_states)))
    return Expected((place.path("attention_output"),), ADD)


def _rows_lost(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, -3:] = 0
    return y


def _fp8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def _linear(
    change: Callable[[nn.Linear, Tensor], Tensor], operators: tuple[str, ...], role: str = "down"
) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        return Expected((place.replace(role, change),), operators) if place.has(role) else None

    return put


def _bf16_partial_sums(linear: nn.Linear, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first = functional.linear(x[..., :half], linear.weight[:, :half]).to(torch.bfloat16)
    second = functional.linear(x[..., half:], linear.weight[:, half:], linear.bias).to(torch.bfloat16)
    return (first + second).to(x.dtype)


def _fp8_operand(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(_fp8(x), linear.weight, linear.bias)


def _int8_activations(linear: nn.Linear, x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return functional.linear((x / scale).round() * scale, linear.weight, linear.bias)


def _last_channel_lost(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x[..., :-1], linear.weight[:, :-1], linear.bias)


def _bias_twice(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, linear.weight, linear.bias) + linear.bias


def _without_bias(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, linear.weight)


def _with_bias(put: Callable[[Place], Expected | None]) -> Callable[[Place], Expected | None]:
    return lambda place: put(place) if place.has("down") and place.at("down").bias is not None else None


def _scalar(name: str, change: Callable[[float], float]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.family.own:
            return None
        setattr(place.model, name, change(getattr(place.model, name)))
        return Expected(("",), MUL)

    return put


def _next_token(place: Place) -> Expected | None:
    if not place.has("embedding") or "embeddings" in place.family.roles:
        return None
    right = place.at("embedding").forward
    return Expected((place.replace("embedding", lambda _, ids: right(ids - 1)),), (*_EMBEDDING, "aten.sub.Tensor"))


def _no_token_types(place: Place) -> Expected | None:
    if not place.has("embeddings"):
        return None
    path = place.path("embeddings") + ".token_type_embeddings"
    kinds = place.model.get_submodule(path)
    kinds.forward = partial(lambda ids: torch.zeros(*ids.shape, kinds.embedding_dim, dtype=kinds.weight.dtype))
    return Expected((path, place.path("embeddings")), ("aten.zeros.default", *ADD, *_EMBEDDING))


def _positions_one_on(place: Place) -> Expected | None:
    if not place.has("embeddings"):
        return None
    path = place.path("embeddings") + ".position_embeddings"
    table = place.model.get_submodule(path)
    right = table.forward
    table.forward = lambda ids: right(ids + 1)
    return Expected((path,), (*_EMBEDDING, *ADD))


def _skip_layer(place: Place) -> Expected | None:
    if not place.has("input_norm"):
        return None
    layer = place.at("layer")
    layer.forward = lambda hidden_states, *_, **__: hidden_states
    return Expected((place.path("layer"), place.path("layer").rpartition(".layers")[0]), ())


def faults() -> Iterator[Fault]:
    """Every fault of the stream."""
    yield Fault("gelu for the activation", _activation(functional.gelu), families=("mini", "llama"))
    yield Fault("tanh form of gelu", _activation(lambda x: functional.gelu(x, approximate="tanh")), families=("bert", "minilm"))
    yield Fault("quick gelu", _activation(lambda x: x * torch.sigmoid(1.702 * x), (*_ACTIVATIONS, *MUL)))
    yield Fault("relu for the activation", _activation(functional.relu))
    yield Fault("activation clamped", _activation(lambda x: functional.silu(x).clamp(max=1.0)), families=("mini", "llama"))
    yield Fault("activation missing", _mlp(lambda m, x: m.down_proj(m.gate_proj(x) * m.up_proj(x)), (*MUL, *_ACTIVATIONS)))
    yield Fault("gate and up swapped", _mlp(lambda m, x: m.down_proj(m.act_fn(m.up_proj(x)) * m.gate_proj(x)), (*MUL, *_ACTIVATIONS)))
    yield Fault("up not multiplied", _mlp(lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x))), MUL))
    yield Fault("product in fp8", _mlp(lambda m, x: m.down_proj(_fp8(m.act_fn(m.gate_proj(x)) * m.up_proj(x))), (*CAST, *MUL)))
    yield Fault("residual missing", _layer(_no_residual))
    yield Fault("residual twice", _layer(_twice))
    yield Fault("residual from behind the norm", _layer(_from_the_norm))
    yield Fault("feed-forward beside attention", _layer(_parallel))
    yield Fault("attention scaled by 1.01", _layer(_scaled))
    yield Fault("residual missing in BERT", _no_residual_in_bert)
    yield Fault("layer does nothing", _skip_layer)
    yield Fault(
        "last rows zero",
        _result("down", _rows_lost, ("aten.fill_.Tensor", "aten.fill_.Scalar", "aten.copy_.default", "aten.clone.default")),
    )
    yield Fault("scaled by 1.0001", _result("o", lambda y: y * 1.0001, MUL), survives_bf16=False)
    yield Fault("scaled by 1.01", _result("o", lambda y: y * 1.01, MUL))
    yield Fault("bf16 partial sums in the program", _linear(_bf16_partial_sums, (*CAST, *ADD, *MATMUL)), survives_bf16=False)
    yield Fault("operand in fp8", _linear(_fp8_operand, (*CAST, *MATMUL)))
    yield Fault("int8 activations", _linear(_int8_activations, ("aten.round.default", *DIV, *MUL, "aten.abs.default")))
    yield Fault("last channel lost", _linear(_last_channel_lost, (*INDEX, *MATMUL)))
    yield Fault("bias twice", _with_bias(_linear(_bias_twice, ADD)))
    yield Fault("bias missing", _with_bias(_linear(_without_bias, MATMUL)))
    yield Fault("embedding scale missing", _scalar("embed_scale", lambda _: 1.0))
    yield Fault("embedding scale rounded", _scalar("embed_scale", lambda s: s * 1.0017))
    yield Fault("logits scale", _scalar("logit_scale", lambda s: s * 2))
    yield Fault("next token embedded", _next_token)
    yield Fault("final norm scaled", _result("final_norm", lambda y: y * 0.5, MUL))
    yield Fault("logits capped", _result("head", lambda y: torch.tanh(y / 30) * 30, (*DIV, *MUL, "aten.tanh.default")))
    yield Fault("logits in bf16", _result("head", lambda y: y.to(torch.bfloat16).to(y.dtype), CAST), survives_bf16=False)
    yield Fault("token types not added", _no_token_types)
    yield Fault("positions one on", _positions_one_on)
