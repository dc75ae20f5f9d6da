"""Experts that one run goes through one by one, and the other with its tokens sorted: each has lists and an order of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.programs import MLP, record, seeded

HIDDEN, INNER, EXPERTS, TOP = 16, 12, 6, 2


class Gate(nn.Module):
    """Experts of the best of some groups, and shares that are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return routed(functional.linear(x, self.weight), hidden=0.0)


def routed(logits: Tensor, *, hidden: float, scaled: bool = True, adds: int = 0) -> tuple[Tensor, Tensor]:
    """What is in no group is `hidden` below all scores: either way it is not chosen."""
    scores = logits.sigmoid()
    best = scores.view(-1, 3, 2).sum(-1).topk(2).indices
    kept = torch.zeros(len(scores), 3).scatter(1, best, 1.0)[..., None].expand(-1, 3, 2).reshape(scores.shape)
    chosen = scores.masked_fill(kept == 0, hidden).topk(TOP).indices
    shares = scores.gather(1, chosen)
    shares = shares / shares.sum(-1, keepdim=True)
    return (shares * 2.5 if scaled else shares), (chosen + adds) % EXPERTS if adds else chosen


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.shared = Gate(), MLP()
        self.up, self.down = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN)), nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER))

    def forward(self, x: Tensor) -> Tensor:
        return self.one_by_one(x, *self.gate(x)) + self.shared(x)

    def one_by_one(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(EXPERTS):
            token, place = torch.where(chosen == expert)
            made = functional.silu(x[token] @ self.up[expert].T) @ self.down[expert].T
            out.index_add_(0, token, made * shares[token, place, None])
        return out


class Engine(Mixture):
    """The gate is no call of a module, and tokens are sorted by their experts."""

    fault = ""

    def forward(self, x: Tensor) -> Tensor:
        fault = self.fault
        logits = functional.linear(x, self.gate.weight)
        shares, chosen = routed(logits, hidden=-1.0, scaled=fault not in ("scaled", "scaled, one by one"), adds=int(fault == "ids"))
        if "one by one" in fault:
            return self.one_by_one(x, shares, chosen) + self.shared(x)
        order = chosen.reshape(-1).argsort(stable=True)
        counts = torch.bincount(chosen.reshape(-1), minlength=EXPERTS).tolist()
        made = []
        for expert, rows in enumerate(x[order // TOP].split(counts)):
            down = self.down[expert - 1 if fault == "expert" and expert == 3 else expert]
            made.append(functional.silu(rows @ self.up[expert].T) @ down.T)
        back = torch.cat(made)[(order.roll(1) if fault == "places" else order).argsort()]
        out = (back.view(-1, TOP, HIDDEN) * shares[..., None]).sum(1)
        return out if fault == "shared" else out + self.shared(x)


def compared(folder: Path, fault: str, dtype: torch.dtype = torch.float32) -> Comparison:
    x = torch.randn(14, HIDDEN, generator=torch.Generator().manual_seed(2))
    engine = seeded(Engine())
    engine.fault = fault
    return compare_traces(record(folder / "r.h5", seeded(Mixture()), x), record(folder / "t.h5", engine.to(dtype), x.to(dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_in_another_order_are_no_fault(tmp_path: Path, dtype: torch.dtype) -> None:
    comparison = compared(tmp_path, "", dtype)
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)


FAULTS = {
    "scaled": ("/aten.mul.Tensor", None),
    "scaled, one by one": ("gate/aten.mul.Tensor", "operator-missing"),
    "ids": ("/aten.add.Tensor", None),
    "expert": ("/aten.mm.default", None),
    "places": ("/aten.mul.Tensor", None),
    "shared": ("shared", "module-missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_neither_a_list_nor_a_scalar_that_shows_nowhere(tmp_path: Path, fault: str) -> None:
    (origin,) = compared(tmp_path, fault).origins
    assert FAULTS[fault] == (origin.site.partition("#")[0], origin.cause), origin.statement
