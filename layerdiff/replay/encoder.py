"""Attention of several heads, and a layer of an encoder around it, that torch's fast path does in one call; in float64.

    attended = softmax(q k^T / sqrt(width of a head)) v,  then its projection
    layer    = norm2(x + ffn(x)) of x = norm1(src + attended(src)),  or with both norms in front

A row that sees nothing is NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from layerdiff.replay.refusal import CannotReplay

_PADDING = 1


def _require_shape(given: dict[str, Any], name: str, *shape: int) -> None:
    if tuple(given[name].shape) != shape:
        raise CannotReplay(f"its {name} has not the size of its input")


def _seen(given: dict[str, Any], scores: torch.Size) -> Tensor | None:
    """Which keys count, from a mask that is not zero where they do not; to be broadcast to `scores` (batch, heads, queries, keys).

    A mask of two dimensions is of (batch, keys) if its type says padding, else of (queries, keys).
    """
    mask, kind = given["mask"], given["mask_type"]
    if mask is None:
        return None
    if mask.dim() == 2:
        mask = mask[:, None, None, :] if kind == _PADDING else mask[None, None]
    if mask.dim() != 4 or any(size not in (1, full) for size, full in zip(mask.shape, scores, strict=True)):
        raise CannotReplay("what its mask says is not known")
    seen: Tensor = mask == 0
    return seen


def _attended(queries: Tensor, keys: Tensor, values: Tensor, given: dict[str, Any], heads: int) -> tuple[Tensor, Tensor]:
    """What attention between inputs (batch, tokens, width) makes, with its projection; and its weights, by head."""
    x = queries
    if (
        x.dim() != 3
        or heads < 1
        or x.shape[-1] % heads
        or keys.shape != values.shape
        or (keys.shape[0], keys.shape[2:]) != (len(x), x.shape[2:])
    ):
        raise CannotReplay("its inputs have no heads")
    width = x.shape[-1]
    _require_shape(given, "qkv_weight", 3 * width, width)
    _require_shape(given, "proj_weight", width, width)
    parts = zip((queries, keys, values), given["qkv_weight"].chunk(3), given["qkv_bias"].chunk(3), strict=True)
    q, k, v = (functional.linear(one, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2) for one, weight, bias in parts)
    scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
    seen = _seen(given, scores.shape)
    weights = (scores if seen is None else scores.masked_fill(~seen, -math.inf)).softmax(-1)
    made = (weights @ v).transpose(1, 2).reshape(x.shape)
    return functional.linear(made, given["proj_weight"], given["proj_bias"]), weights


def attention(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """`_native_multi_head_attention`."""
    x = given["query"]
    made, weights = _attended(x, given["key"], given["value"], given, given["num_head"])
    if not given["need_weights"]:
        return made, x.new_empty(0)
    return made, weights.mean(1) if given["average_attn_weights"] else weights


def encoder_layer(given: dict[str, Any]) -> Tensor:
    """`_transformer_encoder_layer_fwd`."""

    def norm(x: Tensor, number: int) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], given[f"norm_weight_{number}"], given[f"norm_bias_{number}"], given["eps"])

    def forward(x: Tensor) -> Tensor:
        inner = given["ffn_weight_1"].shape[0]
        _require_shape(given, "ffn_weight_1", inner, x.shape[-1])
        _require_shape(given, "ffn_weight_2", x.shape[-1], inner)
        made = functional.linear(x, given["ffn_weight_1"], given["ffn_bias_1"])
        made = functional.gelu(made) if given["use_gelu"] else made.relu()
        return functional.linear(made, given["ffn_weight_2"], given["ffn_bias_2"])

    x: Tensor = given["src"]
    if given["norm_first"]:
        y = norm(x, 1)
        x = x + _attended(y, y, y, given, given["num_heads"])[0]
        return x + forward(norm(x, 2))
    x = norm(x + _attended(x, x, x, given, given["num_heads"])[0], 1)
    return norm(x + forward(x), 2)


def elements(given: dict[str, Any]) -> int:
    """The weights of attention, or what lies inside the layer behind it."""
    x = given["src"] if "src" in given else given["query"]
    heads = int(given["num_heads"] if "num_heads" in given else given["num_head"])
    inner = given["ffn_weight_1"].shape[0] if "ffn_weight_1" in given else 3 * x.shape[-1]
    keys = given["key"].shape[-2] if "key" in given else x.shape[-2]
    return int(max(heads * math.prod(x.shape[:-1]) * keys, math.prod(x.shape[:-1]) * inner))
