"""The same model in fp32 and in bfloat16: rounding everywhere, and no fault."""

from __future__ import annotations

from pathlib import Path

from captures.llama import small_llama, tokens
from captures.recording import record


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    record(folder / "reference.h5", small_llama(), input_ids=tokens())
    record(folder / "target.h5", small_llama().bfloat16(), input_ids=tokens())
