"""How every capture is recorded, and `python -m captures`: makes them all anew, or those that are named."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerdiff import Recorder

HOME = Path(__file__).parent


def record(
    path: Path, model: nn.Module, /, *, operators: bool = False, kernel: AbstractContextManager[Any] | None = None, **inputs: Any
) -> None:
    """One forward of `model`, recorded to `path`; `kernel` lies below the recorder and changes what operators return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with kernel or nullcontext(), Recorder(path, model, operators=operators), torch.no_grad():
        model(**inputs)
