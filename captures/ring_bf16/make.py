"""Layer 1's down projection of the target is a sum over four ranks, in bfloat16, added in a ring. Both bfloat16, with operators."""

from __future__ import annotations

from pathlib import Path

from captures.kernels import PRODUCTS, Kernel, product, ring_of_four
from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(layers=2).bfloat16(), input_ids=tokens(), operators=True)
    target = small_llama(layers=2).bfloat16()
    kernel = Kernel(target.layers[1].mlp.down_proj, PRODUCTS, product(ring_of_four))
    record(folder / "target.h5", target, input_ids=tokens(), operators=True, kernel=kernel)
