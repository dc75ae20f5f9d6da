"""The down projection of layer 1 in the target has weights that went through int8, a scale a row. Both fp32, with operators."""

from __future__ import annotations

from pathlib import Path

import torch

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(hidden=32, layers=2), input_ids=tokens(), operators=True)
    target = small_llama(hidden=32, layers=2)
    weight = target.layers[1].mlp.down_proj.weight
    with torch.no_grad():
        scale = weight.abs().amax(-1, keepdim=True) / 127
        weight.copy_((weight / scale).round() * scale)
    record(folder / "target.h5", target, input_ids=tokens(), operators=True)
