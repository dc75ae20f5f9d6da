"""A weight that the reference makes anew in each forward, of constants, and that the target keeps made: rounded to its dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.programs import random, record, seeded

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
kinds_of_module = pytest.mark.parametrize("convolution", [False, True], ids=["linear", "convolution"])


class Normed(nn.Module):
    """Rows of its weight have the lengths `g`."""

    def __init__(self, *, convolution: bool) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(16, 12, 3) if convolution else torch.empty(16, 12))
        self.g, self.bias = nn.Parameter(torch.empty(16)), nn.Parameter(torch.empty(16))

    def weight(self) -> Tensor:
        return self.v * (self.g / self.v.flatten(1).norm(dim=1)).reshape(-1, *[1] * (self.v.dim() - 1))

    def forward(self, x: Tensor) -> Tensor:
        return applied(x, self.weight(), self.bias)


class Made(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return applied(x, self.weight, self.bias)


def applied(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight, bias) if weight.dim() == 2 else functional.conv1d(x.mT, weight, bias, padding=1).mT


class Model(nn.Module):
    def __init__(self, *, convolution: bool) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(8, 12), Normed(convolution=convolution), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(functional.gelu(self.inner(self.before(x))))


def compared(folder: Path, convolution: bool, dtype: torch.dtype, change: Callable[[Tensor], Tensor], seed: int = 0) -> Comparison:
    x = random(2, 9, 8, seed=seed + 2)
    reference = record(folder / "r.h5", seeded(Model(convolution=convolution), seed), x)
    model = seeded(Model(convolution=convolution), seed)
    inner = model.inner
    with torch.no_grad():
        model.inner = Made(change(inner.weight()), inner.bias.clone())
    return compare_traces(reference, record(folder / "t.h5", model.to(dtype), x.to(dtype)))


@both_dtypes
@kinds_of_module
@pytest.mark.parametrize("seed", [0, 1])
def test_a_weight_made_before_is_none_other(tmp_path: Path, convolution: bool, dtype: torch.dtype, seed: int) -> None:
    comparison = compared(tmp_path, convolution, dtype, lambda x: x, seed)
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)


def one_element(weight: Tensor) -> Tensor:
    """The largest element is off by two units in the last place of bfloat16."""
    flat = weight.clone().view(-1)
    flat[flat.abs().argmax()] *= 1 + 2**-6
    return flat.view(weight.shape)


@both_dtypes
@kinds_of_module
@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight * 1.004,
        lambda weight: weight.roll(1, 0),
        lambda weight: weight.flip(-1),
        lambda weight: torch.cat([weight[:1] * 1.02, weight[1:]]),
        one_element,
    ],
    ids=["size", "rows", "flipped", "one row", "one element"],
)
def test_another_is_found(tmp_path: Path, convolution: bool, dtype: torch.dtype, change: Callable[[Tensor], Tensor]) -> None:
    comparison = compared(tmp_path, convolution, dtype, change)
    assert ["inner"] == list({origin.site.partition("/")[0] for origin in comparison.origins})
