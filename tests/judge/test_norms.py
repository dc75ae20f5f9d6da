"""A norm magnifies without bound what differs in small rows: it is held against what the reference's norm makes of the target's input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces, open_comparison
from layerdiff.compare import compare_in_steps
from layerdiff.judge.epsilons import other_epsilon
from layerdiff.judge.norms import local_error
from layerdiff.verdicts import judge_again

Array = NDArray[Any]
FP32, BF16 = 2.0**-24, 2.0**-8


def rms(x: Array, eps: float = 1e-6) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * WEIGHT)


def layer(x: Array, eps: float = 1e-6) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * WEIGHT + BIAS)


RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.standard_normal((2, 32))


def inputs(rows: int, massive: float, mean: float) -> tuple[Array, Array]:
    x = RANDOM.standard_normal((2, rows, 32)) + mean
    x[:, 0] *= massive
    y = x + 1e-2 * RANDOM.standard_normal(x.shape)
    y[:, 0] = x[:, 0]
    return x, y


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(("norm", "mean"), [(rms, 0.0), (layer, 0.0), (layer, 50.0)])
@pytest.mark.parametrize("massive", [1.0, 1e4])
def test_what_a_norm_only_hands_on(norm: Callable[..., Array], mean: float, massive: float, rows: int) -> None:
    both = inputs(rows, massive, mean)
    found = local_error(both, [norm(x).astype(np.float32) for x in both], 1e-6, (FP32, FP32))
    assert found is not None and found[0] < found[1]


@pytest.mark.parametrize("norm", [rms, layer])
@pytest.mark.parametrize("epsilon", [1e-3, 1.19e-7])
def test_an_epsilon_that_nobody_recorded_is_fitted(norm: Callable[..., Array], epsilon: float) -> None:
    both = [0.02 * x for x in inputs(9, 1e3, 0.0)]
    assert local_error(both, [norm(x, epsilon) for x in both], 0.0, (FP32, FP32)) is not None
    assert local_error(both, (norm(both[0], epsilon), norm(both[1], 2 * epsilon)), 0.0, (FP32, FP32)) is None


@pytest.mark.parametrize("norm", [rms, layer])
@pytest.mark.parametrize("other", ["epsilon", "weight", "form", "a row"])
def test_what_a_norm_does_otherwise(norm: Callable[..., Array], other: str) -> None:
    x, y = inputs(9, 1e3, 1.0)
    made = norm(y, 1e-3 if other == "epsilon" else 1e-6)
    if other == "weight":
        made[..., 3] *= 1.001
    if other == "form":
        made = (layer if norm is rms else rms)(y)
    if other == "a row":
        made[1, 4] *= 1.0001
    assert local_error((x, y), (norm(x), made), 1e-6, (FP32, FP32)) is None


class Block(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.norm, self.last = nn.Linear(16, 16), nn.GELU(approximate), nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(x + self.act(self.first(4 * nn.functional.normalize(x, dim=-1)))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_behind_a_fault_is_no_origin_beside_a_massive_row(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 4000
    paths = [tmp_path / "r.h5", tmp_path / "t.h5"]
    for path, model in zip(paths, (Block("none"), Block("tanh").to(dtype)), strict=True):
        with torch.no_grad(), Recorder(path, model):
            model(x.to(dtype) if path is paths[1] else x.to(dtype).float())
    comparison = compare_traces(*paths)
    expected = ["act"] if dtype == torch.float32 else []  # bf16 hides the fault
    again = judge_again(open_comparison(comparison.save(tmp_path / "run.ldiff")), profile="relaxed")
    for one in (comparison, again):
        assert expected == [origin.site for origin in one.origins]


def test_a_norm_that_may_be_acquitted_waits_until_it_is_run(tmp_path: Path) -> None:
    """What is said of a comparison in the making is never withdrawn."""
    x = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 4000
    paths = [tmp_path / "r.h5", tmp_path / "t.h5"]
    for path, model in zip(paths, (Block("none"), Block("tanh")), strict=True):
        with torch.no_grad(), Recorder(path, model):
            model(x)
    said = [{origin.site for origin in one.comparison.origins} for one in compare_in_steps(*paths, snapshot_seconds=0)]
    assert len(said) > 2
    assert all(one <= {"act"} for one in said) and said[-1] == {"act"}


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


def kernel(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype, steps: str) -> Tensor:
    """An RMSNorm of a kernel that rounds its result alone, or each step to the dtype."""
    if steps == "result":
        return rounded(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight, dtype)
    mean = rounded(rounded(x * x, dtype).mean(-1, keepdim=True), dtype)
    return rounded(rounded(x * rounded(torch.rsqrt(rounded(mean + epsilon, dtype)), dtype), dtype) * weight, dtype)


@pytest.mark.parametrize("rows", ["alike", "of many sizes", "beside a massive one"])
@pytest.mark.parametrize("steps", ["result", "each"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_epsilon_that_each_number_hides(dtype: torch.dtype, steps: str, rows: str) -> None:
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(512, 64, generator=random) * 0.02
        if rows != "alike":
            x *= torch.exp(0.5 * torch.randn(512, 1, generator=random))
        if rows == "beside a massive one":
            x[0] *= 1000
        weight = 1 + 0.2 * torch.randn(64, generator=random)
        made = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight
        given, own = rounded(x, dtype), rounded(weight, dtype)
        for epsilon, found in ((1e-6, False), (1e-5, True)):
            theirs = kernel(given, own, epsilon, dtype, steps)
            unit = BF16 if dtype is torch.bfloat16 else 2.0**-11
            other = other_epsilon((x.numpy(), given.numpy()), (made.numpy(), theirs.numpy()), 1e-6, [FP32, unit])
            assert (other is not None) == found
            assert other is None or other.fitted == pytest.approx(epsilon, rel=0.25)


@pytest.mark.parametrize("reference", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "cause"), [(nn.RMSNorm, "rmsnorm-eps"), (nn.LayerNorm, "layernorm-eps")])
def test_an_epsilon_in_bf16_is_found_and_named(kind: type[nn.Module], cause: str, reference: torch.dtype, tmp_path: Path) -> None:
    x = 0.05 * torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    for name, dtype, epsilon in (("r", reference, 1e-6), ("s", torch.bfloat16, 1e-6), ("t", torch.bfloat16, 1e-5)):
        model = nn.Sequential(nn.Identity(), kind(64, eps=epsilon)).to(dtype)  # type: ignore[call-arg]
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model(x.to(dtype))
    assert not compare_traces(tmp_path / "r.h5", tmp_path / "s.h5").origins
    (origin,) = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins
    assert (origin.site, origin.cause) == ("1", cause)


def test_norms_of_nothing_say_nothing(tmp_path: Path) -> None:
    for name, dtype in (("r", torch.float32), ("t", torch.bfloat16)):
        model = nn.Sequential(nn.Identity(), nn.LayerNorm(8)).to(dtype)
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model(torch.zeros(2, 0, 8, dtype=dtype))
    assert not compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins
    empty = np.zeros((3, 0))
    assert other_epsilon((empty, empty), (empty, empty), 1e-6, [FP32, BF16]) is None
