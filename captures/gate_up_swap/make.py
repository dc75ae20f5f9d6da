"""In layer 1 of the target the activation is applied to what up returns, and gate is multiplied. Both fp32, with operators."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(hidden=32, layers=2), input_ids=tokens(), operators=True)
    target = small_llama(hidden=32, layers=2)
    mlp = target.layers[1].mlp

    def swapped(x: Tensor) -> Tensor:
        return mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x))

    mlp.forward = swapped
    record(folder / "target.h5", target, input_ids=tokens(), operators=True)
