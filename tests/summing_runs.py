"""Runs of a model that multiplies one matrix, recorded with its operators; the target's kernel may leave out a part of every sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerdiff.record.recorder import Recorder

TERMS, PART = 512, 128
MM = "proj/aten.mm.default#0"


class Projection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(TERMS, 48, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = Projection()
        self.norm = nn.LayerNorm(48)
        self.act = nn.Hardtanh()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.norm(self.proj(x)))
        return y


class PartLost(TorchDispatchMode):
    """Every matrix product without terms PART to 2 PART - 1."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.mm.default:
            left, right = args
            return function(left[:, :PART], right[:PART]) + function(left[:, 2 * PART :], right[2 * PART :])
        return function(*args, **(kwargs or {}))


def record(path: Path, *, lost: bool = False, operators: bool = True, keep: str | None = None) -> Path:
    """A forward of 48 rows."""
    model, x = Model().eval(), torch.randn(48, TERMS, generator=torch.Generator().manual_seed(2))
    recorder = Recorder(path, model, operators=operators, **({} if keep is None else {"keep": keep}))
    with torch.no_grad():
        if lost:
            with PartLost(), recorder:
                model(x)
        else:
            with recorder:
                model(x)
    return path
