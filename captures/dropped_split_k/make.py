"""The kernel of layer 1's down projection drops one of four splits of K in the target. Both fp32, with operators."""

from __future__ import annotations

from pathlib import Path

from captures.kernels import PRODUCTS, Kernel, product, split_dropped
from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(hidden=32, layers=2), input_ids=tokens(), operators=True)
    target = small_llama(hidden=32, layers=2)
    kernel = Kernel(target.layers[1].mlp.down_proj, PRODUCTS, product(split_dropped))
    record(folder / "target.h5", target, input_ids=tokens(), operators=True, kernel=kernel)
