"""The attention of layer 1 in the target does not scale its scores. Both fp32, with operators."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from captures.llama import Attention, rotate, small_llama, tokens
from captures.recording import record


def unscaled(attention: Attention, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Attention as it is, without the scale."""
    batch, length, hidden = x.shape
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (proj(x).view(batch, length, attention.heads, -1).transpose(1, 2) for proj in projections)
    q, k = rotate(q, *rotary), rotate(k, *rotary)
    scores = q @ k.transpose(-1, -2) + mask
    mixed = scores.float().softmax(-1).to(v.dtype) @ v
    return attention.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(hidden=32, layers=2), input_ids=tokens(), operators=True)
    target = small_llama(hidden=32, layers=2)
    target.layers[1].self_attn.forward = partial(unscaled, target.layers[1].self_attn)
    record(folder / "target.h5", target, input_ids=tokens(), operators=True)
