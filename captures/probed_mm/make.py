"""One linear of 1024 terms: in the reference in blocks of 64, in the target as torch's CPU adds it, whose tree a probe found. No fault.

`tree.json` is what `layerdiff probe linear --shape 16x1024 --shape 32x1024` said on the machine that made the traces.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from captures.recording import record
from layerdiff.arithmetic.orders.probe import save_probe
from layerdiff.replay.probing import probe

TERMS, ROWS, COLUMNS, BLOCK = 1024, 16, 32, 64


class InBlocks(nn.Linear):
    """The same linear, 64 terms at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = (functional.linear(a, w) for a, w in zip(x.split(BLOCK, -1), self.weight.split(BLOCK, -1), strict=True))
        for other in others:
            first = first + other
        return first


def model(kind: type[nn.Linear]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind(TERMS, COLUMNS, bias=False)).eval()


def make(folder: Path) -> None:
    """Record both runs into `folder`, and probe this machine's own kernel."""
    x = torch.randn(ROWS, TERMS, generator=torch.Generator().manual_seed(1))
    record(folder / "reference.h5", model(InBlocks), operators=True, input=x)
    record(folder / "target.h5", model(nn.Linear), operators=True, input=x)
    save_probe(probe("linear", [(ROWS, TERMS), (COLUMNS, TERMS)], dtype="float32"), folder / "tree.json")
