"""A norm of gated values is held against what the reference's makes of the target's, whichever its groups and its gate are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces
from layerdiff.judge.gated_norms import gated_error

Array = NDArray[Any]
FP32 = 2.0**-24
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal(32)


def gated(x: Array, gate: Array, groups: int, eps: float = 1e-6) -> Array:
    made = (x * gate / (1 + np.exp(-gate))).reshape(*x.shape[:-1], groups, -1)
    return np.asarray((made / np.sqrt(np.mean(made * made, -1, keepdims=True) + eps)).reshape(x.shape) * WEIGHT)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("gate_first", [False, True])
def test_what_a_gated_norm_only_hands_on(groups: int, gate_first: bool) -> None:
    x, gate = RANDOM.standard_normal((2, 9, 32))
    x[0] *= 1e4
    others = [one + 1e-2 * RANDOM.standard_normal(one.shape) for one in (x, gate)]
    given = [(x, others[0]), (gate, others[1])][:: -1 if gate_first else 1]
    right = gated(x, gate, groups)
    found = gated_error(given, (right, gated(*others, groups)), 1e-6, (FP32, FP32))
    assert found is not None and found[0] < found[1]
    wrong = {
        "groups": gated(*others, 2 if groups != 2 else 4),
        "no gate": gated(others[0], np.full_like(gate, 50.0), groups),
        "epsilon": gated(*others, groups, 1e-2),
    }
    for name, made in wrong.items():
        assert gated_error(given, (right, made), 1e-6, (FP32, FP32)) is None, name


class RMSNormGated(nn.Module):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        made = (x * nn.functional.silu(gate)).unflatten(-1, (2, -1))
        return (made * torch.rsqrt(made.square().mean(-1, keepdim=True) + 1e-6)).flatten(-2)


class Block(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.norm, self.gate = nn.Linear(16, 16), nn.GELU(approximate), RMSNormGated(), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.act(self.first(4 * nn.functional.normalize(x, dim=-1))), self.gate(x))  # type: ignore[no-any-return]


def test_a_gated_norm_behind_a_fault_is_no_origin_beside_a_massive_row(tmp_path: Path) -> None:
    x = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 4000
    paths = [tmp_path / "r.h5", tmp_path / "t.h5"]
    for path, model in zip(paths, (Block("none"), Block("tanh")), strict=True):
        with torch.no_grad(), Recorder(path, model):
            model(x)
    assert ["act"] == [origin.site for origin in compare_traces(*paths).origins]
