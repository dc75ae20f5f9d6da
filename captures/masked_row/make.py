"""The first three tokens are padding. The target masks with -inf, so the softmax of their rows is NaN. Both fp32."""

from __future__ import annotations

from pathlib import Path

import torch

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    record(folder / "reference.h5", small_llama(), input_ids=ids, attention_mask=mask)
    record(folder / "target.h5", small_llama(mask_value=-float("inf")), input_ids=ids, attention_mask=mask)
