"""Work that one run does inside a module, and the other around it: no fault where it is the same, beside whatever else is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from captures.llama import RMSNorm
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.programs import MLP, Record, random, seeded

IDS = torch.arange(12).reshape(2, 6) % 31
STEPS = [(IDS,), (IDS[:, :1] + 3,), (IDS[:, 1:2] + 5,)]
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


class Embedding(nn.Embedding):
    factor = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.factor if self.factor != 1.0 else super().forward(ids)


class Offset(nn.Module):
    """Turns what it is given by a bias, here or around it."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.bias, self.inside = nn.Parameter(torch.empty(16)), inside

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() + self.bias if self.inside else x.tanh()


class Model(nn.Module):
    """Keeps what it made in the steps before, as a cache does, so that it cannot be taken whole."""

    def __init__(self, inside: float, around: float, *, bias_inside: bool = True, bias: float = 1.0, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.embed, self.norm, self.mlp, self.offset = Embedding(31, 16), RMSNorm(16, epsilon), MLP(), Offset(inside=bias_inside)
        self.embed.factor, self.around, self.bias = inside, around, bias
        self.kept: list[Tensor] = []

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.around != 1.0:
            x = x * self.around
        x = x + self.mlp(self.norm(x))
        y = self.offset(x)
        if not self.offset.inside:
            y = y + self.offset.bias * self.bias
        self.kept.append(x)
        return y + torch.cat(self.kept, 1).mean(1, keepdim=True)


def compared(write: Record, dtype: torch.dtype, reference: Model, target: Model) -> Comparison:
    return compare_traces(write(seeded(reference), steps=STEPS), write(seeded(target).to(dtype), steps=STEPS))


def origins(comparison: Comparison) -> set[str]:
    return {origin.site for origin in comparison.origins if origin.defect}


@both_dtypes
@pytest.mark.parametrize(("inside", "around"), [(4.0, 1.0), (1.0, 4.0), (2.0, 2.0)])
def test_a_factor_on_either_side(write: Record, inside: float, around: float, dtype: torch.dtype) -> None:
    comparison = compared(write, dtype, Model(4.0, 1.0), Model(inside, around))
    assert (set(), False) == (origins(comparison), comparison.defect)


@both_dtypes
def test_a_bias_on_either_side(write: Record, dtype: torch.dtype) -> None:
    comparison = compared(write, dtype, Model(4.0, 1.0), Model(4.0, 1.0, bias_inside=False))
    assert (set(), False) == (origins(comparison), comparison.defect)


@both_dtypes
@pytest.mark.parametrize("around", [4.02, 3.98, 2.0, -4.0])
def test_another_factor_is_a_fault(write: Record, around: float, dtype: torch.dtype) -> None:
    found = origins(compared(write, dtype, Model(4.0, 1.0), Model(1.0, around)))
    assert {"/aten.mul.Tensor#0"} <= found <= {"/aten.mul.Tensor#0", "embed/aten.mul.Tensor#0"}


@both_dtypes
def test_another_bias_is_a_fault(write: Record, dtype: torch.dtype) -> None:
    found = origins(compared(write, dtype, Model(4.0, 1.0), Model(4.0, 1.0, bias_inside=False, bias=1.1)))
    assert found and all(site.startswith(("/", "offset")) for site in found)


@both_dtypes
def test_a_fault_beside_is_found_alone(write: Record, dtype: torch.dtype) -> None:
    found = origins(compared(write, dtype, Model(4.0, 1.0), Model(1.0, 4.0, epsilon=1e-4)))
    assert {"norm/aten.add.Tensor#0"} == found


@both_dtypes
def test_a_fault_around_is_found_beside(write: Record, dtype: torch.dtype) -> None:
    """What both reach is not told apart, and the factor stays among the origins."""
    found = origins(compared(write, dtype, Model(4.0, 1.0), Model(1.0, 4.0, bias_inside=False, bias=1.1)))
    assert any(site.startswith(("/aten.add", "/aten.mul.Tensor#1", "offset")) for site in found)


class Small(nn.Module):
    """Two numbers of which little follows, on both sides of a border."""

    def __init__(self, epsilon: float, factor: float) -> None:
        super().__init__()
        self.norm, self.out, self.factor = RMSNorm(16, epsilon), nn.Linear(16, 16), factor
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(self.norm(x * 30) * self.factor)
        self.kept.append(y)
        return torch.cat(self.kept, 1)


def test_what_is_small_on_both_sides_is_not_taken_for_one_work(write: Record) -> None:
    steps = [(random(2, 4, 16, seed=step),) for step in range(3)]
    reference = write(seeded(Small(1e-6, 0.75)), steps=steps)
    comparison = compare_traces(reference, write(seeded(Small(1e-5, 0.75 + 2.0**-23)), steps=steps))
    assert {"norm/aten.add.Tensor#0", "/aten.mul.Tensor#1"} == origins(comparison)
