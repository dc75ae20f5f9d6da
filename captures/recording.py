"""How every capture is recorded, and `python -m captures`: makes them all anew, or those that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerdiff import Recorder

HOME = Path(__file__).parent


def record(path: Path, model: nn.Module, /, **inputs: Any) -> None:
    """One forward of `model`, recorded to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Recorder(path, model), torch.no_grad():
        model(**inputs)
