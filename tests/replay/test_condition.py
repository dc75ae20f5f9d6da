"""The generic contract holds what float32 makes of an operator, and is not so wide that a fault hides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from layerdiff.arithmetic.formats import FLOAT32
from layerdiff.replay.condition import generic_spread
from layerdiff.replay.operators import run64
from layerdiff.trace.arguments import Arguments


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Of float32, as float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.float64)


CASES: list[tuple[str, tuple[Any, ...], int]] = [
    ("aten.mm.default", (numbers(16, 256), numbers(256, 16, seed=1)), 256),
    ("aten.mm.default", (numbers(16, 256).abs(), numbers(256, 16, seed=1).abs()), 256),
    ("aten._softmax.default", (numbers(16, 64) * 4, -1, False), 64),
    ("aten.exp.default", (numbers(32, 32),), 1),
    ("aten.native_layer_norm.default", (numbers(16, 64) + 30, [64], numbers(64, seed=2), numbers(64, seed=3), 1e-5), 64),
    ("aten.convolution.default", (numbers(1, 8, 12, 12), numbers(6, 8, 3, 3, seed=4), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), 72),
    ("aten.cumsum.default", (numbers(8, 100), 1), 1),
    ("aten.logsumexp.default", (numbers(16, 64), [1]), 64),
]


def narrowed(thing: Any) -> Any:
    return thing.to(torch.float32) if isinstance(thing, torch.Tensor) and thing.is_floating_point() else thing


@pytest.mark.parametrize(("name", "args", "terms"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_it_holds_what_float32_makes(name: str, args: tuple[Any, ...], terms: int) -> None:
    _, base, overload = name.split(".")
    exact = run64(name, Arguments(args, {}))
    generic = generic_spread(name, Arguments(args, {}), exact, FLOAT32)
    recorded = getattr(getattr(torch.ops.aten, base), overload)(*[narrowed(thing) for thing in args])
    recorded = recorded if isinstance(recorded, tuple) else (recorded,)
    assert "generic contract" in generic.rule
    spread = generic.spreads[0]
    assert terms <= spread.terms <= 4 * terms or name == "aten.cumsum.default"
    error = np.abs(recorded[0].to(torch.float64).numpy() - exact[0].numpy())
    # The last rounding is left out of a spread, so it is let off here.
    beyond = np.maximum(error - FLOAT32.unit * np.abs(exact[0].numpy()), 0.0)
    assert (beyond <= spread.bound).all()
    assert np.sqrt(np.mean((beyond / np.maximum(spread.sigma, 1e-300)) ** 2)) <= 1.5
    # A scale of 1.001 is far beyond it.
    wrong = np.abs(exact[0].numpy()) * 1e-3
    assert np.sqrt(np.mean((wrong / np.maximum(spread.sigma, 1e-300)) ** 2)) > 12


def test_whole_numbers_and_unmoved_elements_are_exact() -> None:
    x = torch.tensor([3.0, 1.0, 2.0, -5.0], dtype=torch.float64)
    args = Arguments((x, 2), {})
    values, places = generic_spread("aten.topk.default", args, run64("aten.topk.default", args), FLOAT32).spreads
    assert 0.0 == np.asarray(places.sigma).max()
    assert (np.asarray(values.sigma) > 0).all()
    args = Arguments((x,), {})
    (relu,) = generic_spread("aten.relu.default", args, run64("aten.relu.default", args), FLOAT32).spreads
    assert 0.0 == relu.sigma[3]


def test_a_tie_may_go_either_way() -> None:
    x = torch.tensor([1.0, 1.0 + 2.0**-26], dtype=torch.float64)
    args = Arguments((x, 0), {})
    (place,) = generic_spread("aten.argmax.default", args, run64("aten.argmax.default", args), FLOAT32, draws=16).spreads
    assert np.isinf(place.sigma).all()


def test_nothing_is_changed_and_the_same_seed_says_the_same() -> None:
    x, y = numbers(4), numbers(4, seed=1)
    before = x.clone()
    exact = (x + y,)
    first = generic_spread("aten.add_.Tensor", Arguments((x, y), {}), exact, FLOAT32, seed=3)
    again = generic_spread("aten.add_.Tensor", Arguments((x, y), {}), exact, FLOAT32, seed=3)
    assert torch.equal(before, x)
    assert first.spreads[0].sigma.tolist() == again.spreads[0].sigma.tolist()


def test_numbers_that_are_none_stay_so() -> None:
    args = Arguments((torch.tensor([-1.0, 4.0, float("inf")], dtype=torch.float64),), {})
    (spread,) = generic_spread("aten.sqrt.default", args, run64("aten.sqrt.default", args), FLOAT32).spreads
    assert [True, True, True] == np.isfinite(spread.sigma).tolist()


@pytest.mark.parametrize("sign", [1, -1])
def test_what_decays_below_the_normal_numbers_has_a_floor(sign: int) -> None:
    """Decays of a linear attention go through the subnormals, which a device may take for zero; what is made of them is no fault."""
    decay = torch.exp(-4.0 * torch.arange(40, dtype=torch.float64))[:, None]
    left = torch.eye(40, dtype=torch.float64) + torch.tril(numbers(40, 40, seed=5) / 8, -1)
    right = (sign * numbers(40, 8, seed=6).abs() * decay).float().double()
    name, args = "aten.linalg_solve_triangular.default", (left.float().double(), right)
    exact = run64(name, Arguments(args, {"upper": False}))
    spread = generic_spread(name, Arguments(args, {"upper": False}), exact, FLOAT32).spreads[0]
    made = torch.linalg.solve_triangular(*(narrowed(thing) for thing in args), upper=False).double()
    error = np.abs(made.numpy() - exact[0].numpy())
    assert float(error.min(initial=1.0)) < 1e-38  # there are such numbers here
    beyond = np.maximum(error - FLOAT32.unit * np.abs(exact[0].numpy()), 0.0)
    assert (beyond <= spread.bound).all()
    assert float(np.max(beyond / spread.sigma)) <= 12
    assert float(np.max(1e-3 * np.abs(exact[0].numpy()) / spread.sigma)) > 12  # a factor of 1.001 is beyond it
