"""Scaled dot product attention in float64, whichever kernel ran: the result, and the log of the sum of exponentials.

    out = softmax(scale q k^T + bias) v,  scale = 1 / sqrt(width of q) unless given

A causal mask starts at the top left. A row that sees nothing is zero, with a log sum of -inf. Never more than a block of scores is held.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from layerdiff.replay.refusal import CannotReplay

_BLOCK_ELEMENTS: Final = 1 << 24


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    causal: bool,
    scale: float | None,
    dropout: float = 0.0,
    diagonal: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention of queries (..., H, L, E) to keys (..., G, S, E) and values (..., G, S, V), float64; H a multiple of G.

    `bias` is added to the scores, or is boolean and true where they count; it broadcasts to (..., H, L, S). `diagonal` moves the
    causal mask to the right. Returns (..., H, L, V) and the log sums (..., H, L). Raises CannotReplay where there is dropout.
    """
    if dropout:
        raise CannotReplay("it drops out inside a fused kernel, and what it drew was not recorded")
    if q.dim() < 2 or k.dim() != q.dim() or v.dim() != q.dim():
        raise CannotReplay("its operands have no shape of queries, keys and values")
    k, v = _repeated(k, q), _repeated(v, q)
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    length, keys = q.shape[-2], k.shape[-2]
    heads = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])  # torch's own imports its compiler
    out = q.new_empty((*heads, length, v.shape[-1]))
    sums = q.new_empty((*heads, length))
    rows = max(1, _BLOCK_ELEMENTS // max(1, math.prod(heads) * keys))
    for first in range(0, length, rows):
        last = min(length, first + rows)
        scores = (q[..., first:last, :] * factor) @ k.transpose(-1, -2)
        if bias is not None:
            part = bias if bias.dim() < 2 or bias.shape[-2] == 1 else bias[..., first:last, :]
            scores = scores.masked_fill(~part, -math.inf) if part.dtype == torch.bool else scores + part
        if causal:
            seen = torch.arange(keys)[None, :] <= torch.arange(first, last)[:, None] + diagonal
            scores = scores.masked_fill(~seen, -math.inf)
        top = scores.amax(-1, keepdim=True) if keys else scores.new_full((*scores.shape[:-1], 1), -math.inf)
        top = top.masked_fill(top == -math.inf, 0.0)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        out[..., first:last, :] = (weights @ v) / total.masked_fill(total == 0, 1.0)
        sums[..., first:last] = (total.log() + top).squeeze(-1)
    return out, sums


def _repeated(shared: Tensor, q: Tensor) -> Tensor:
    if q.dim() < 3 or shared.shape[-3] in (1, q.shape[-3]):
        return shared
    if shared.shape[-3] == 0 or q.shape[-3] % shared.shape[-3]:
        raise CannotReplay(f"{q.shape[-3]} heads of queries cannot share {shared.shape[-3]} of keys")
    return shared.repeat_interleave(q.shape[-3] // shared.shape[-3], -3)


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


def _square(given: dict[str, Any]) -> None:
    if given["is_causal"] and given["query"].shape[-2] != given["key"].shape[-2]:
        raise CannotReplay("where the causal mask starts is not defined for this kernel with other numbers of queries than keys")


def _run(given: dict[str, Any], bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return attention(
        given["query"],
        given["key"],
        given["value"],
        bias,
        causal=bool(given["is_causal"]),
        scale=given.get("scale"),
        dropout=float(given.get("dropout_p") or 0.0),
    )


def composite(given: dict[str, Any]) -> Tensor:
    """`scaled_dot_product_attention`."""
    return _run(given, given["attn_mask"])[0]


def math_kernel(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """`_scaled_dot_product_attention_math`: the weights are its second result."""
    if given["dropout_mask"] is not None:
        raise CannotReplay("it drops out by a mask of its own")
    key = given["key"]
    identity = torch.eye(key.shape[-2], dtype=torch.float64).expand(*key.shape[:-2], -1, -1)
    return _run(given, given["attn_mask"])[0], _run({**given, "value": identity}, given["attn_mask"])[0]


def flash_on_host(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """`_scaled_dot_product_flash_attention_for_cpu`: its log sum of a row that sees nothing is 0."""
    out, sums = _run(given, given["attn_mask"])
    return out, sums.masked_fill(sums == -math.inf, 0.0)


def flash(given: dict[str, Any]) -> tuple[Any, ...]:
    """`_scaled_dot_product_flash_attention`: output, log sums, two unused, the longest sequences, three that only it can make."""
    _square(given)
    out, sums = _run(given, None)
    return out, sums, _nothing(), _nothing(), given["query"].shape[-2], given["key"].shape[-2], _nothing(), _nothing(), _nothing()


def cudnn(given: dict[str, Any]) -> tuple[Any, ...]:
    """`_scaled_dot_product_cudnn_attention`: like flash; its log sums keep a last dimension of 1."""
    _square(given)
    out, sums = _run(given, given["attn_bias"])
    longest = given["query"].shape[-2], given["key"].shape[-2]
    return out, sums.unsqueeze(-1), _nothing(), _nothing(), *longest, _nothing(), _nothing(), _nothing()


def overrideable(given: dict[str, Any]) -> tuple[Any, ...]:
    """`_scaled_dot_product_fused_attention_overrideable`: what a vendor's backend registers."""
    _square(given)
    out, sums = _run(given, given["attn_bias"])
    longest = given["query"].shape[-2], given["key"].shape[-2]
    return out, sums, _nothing(), _nothing(), *longest, _nothing(), _nothing(), _nothing()


def efficient(given: dict[str, Any]) -> tuple[Any, ...]:
    """`_scaled_dot_product_efficient_attention`: the log sums of each head are padded to a multiple of 32 rows, with inf."""
    out, sums = _run(given, given["attn_bias"])
    if not given["compute_log_sumexp"]:
        return out, sums[..., :0], _nothing(), _nothing()
    return out, torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32), value=math.inf), _nothing(), _nothing()
