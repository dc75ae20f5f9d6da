"""Experts whose tokens were routed otherwise for a few: the rest is judged all the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces


class Experts(nn.Module):
    """A loop over experts, each for its tokens alone: how many those are is in the recorded shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(1)))
        self.factor = 1.0

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(len(self.weights)):
            tokens = (chosen == expert).any(dim=1).nonzero().reshape(-1)
            out.index_add_(0, tokens, x[tokens] @ self.weights[expert] * self.factor)
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts()

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return self.experts(x, chosen)


def recorded(path: Path, model: Model, chosen: Tensor) -> Path:
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(x, chosen)
    return path


def test_a_fault_behind_a_flip_is_found_and_a_flip_alone_is_none(tmp_path: Path) -> None:
    chosen = torch.arange(24).reshape(12, 2) % 4
    flipped = chosen.clone()
    flipped[3, 0] = (flipped[3, 0] + 1) % 4
    reference = recorded(tmp_path / "r.h5", Model(), chosen)
    harmless = compare_traces(reference, recorded(tmp_path / "t.h5", Model(), flipped))
    assert [] == [origin.site for origin in harmless.origins if origin.site.startswith("experts")]
    wrong = Model()
    wrong.experts.factor = 1.01
    faulty = compare_traces(reference, recorded(tmp_path / "w.h5", wrong, flipped))
    assert {"experts"} == {origin.site.partition("/")[0] for origin in faulty.origins}
    assert any("mul(1.01), reference mul(1.0)" in origin.statement for origin in faulty.origins)
