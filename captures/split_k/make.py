"""The down projection of layer 1 in the target sums four products in fp32. Both fp32, with operators. No fault."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from torch.nn import functional

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(hidden=32, layers=2), input_ids=tokens(), operators=True)
    target = small_llama(hidden=32, layers=2)
    linear = target.layers[1].mlp.down_proj

    def split(x: Tensor) -> Tensor:
        pieces = zip(x.chunk(4, -1), linear.weight.chunk(4, -1), strict=True)
        first, *others = (functional.linear(a, w) for a, w in pieces)
        for other in others:
            first = first + other
        return first

    linear.forward = split
    record(folder / "target.h5", target, input_ids=tokens(), operators=True)
