"""The target's rotary embedding has base 500 000 instead of 10 000. Reference fp32, target bfloat16."""

from __future__ import annotations

from pathlib import Path

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(), input_ids=tokens())
    record(folder / "target.h5", small_llama(rope_base=500_000.0).bfloat16(), input_ids=tokens())
