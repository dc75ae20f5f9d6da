"""The RMSNorm before the attention of layer 3 has epsilon 1e-5 in the target, and 1e-6 in the reference. Both fp32."""

from __future__ import annotations

from pathlib import Path

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(), input_ids=tokens())
    target = small_llama()
    target.layers[3].input_layernorm.variance_epsilon = 1e-5
    record(folder / "target.h5", target, input_ids=tokens())
