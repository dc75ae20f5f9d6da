"""A module that makes all that it should, and hands on another of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import RMSNorm
from layerdiff.compare import compare_traces
from tests.programs import MLP, Record, origins, random, seeded

X = random(2, 6, 16)
Way = Callable[["Layer", Tensor, Tensor, Tensor], Any]


class Layer(nn.Module):
    """A norm whose result a gate is given; what else is done with it, and with what it was given, is `way`."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.norm, self.gate, self.mlp = RMSNorm(16, 1e-6), nn.Linear(16, 16, bias=False), MLP()
        self.way = way

    def forward(self, x: Tensor) -> Any:
        h = x * 1.5 + x.sin()
        n = self.norm(h)
        return self.way(self, h, n, self.gate(n).sigmoid())


class Model(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(way) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            made = layer(x)
            made = made if isinstance(made, Tensor) else made[0] + made[1]
            x = x + functional.pad(made, (0, x.shape[-1] - made.shape[-1]))
        return x


def given(which: str) -> Way:
    return lambda layer, h, n, gate: h + gate * layer.mlp(n if which == "norm" else h)


def residual(which: str) -> Way:
    return lambda _, h, n, gate: (gate * 0.5, n if which == "norm" else h)


def half(which: str) -> Way:
    return lambda _, h, n, gate: (gate[..., :8] + h[..., :8], n[..., :8] if which == "norm" else n[..., 8:])


def turned(which: str) -> Way:
    return lambda _, h, n, gate: (gate[..., :6] + h[..., :6], n[..., :6] if which == "norm" else n[..., :6].mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("way", "said"),
    [
        (given, "hands on what add makes in place of what layers.0.norm hands on"),
        (residual, "hands on what add makes in place of what layers.0.norm hands on"),
        (half, "hands on another view of what layers.0.norm hands on"),
        (turned, "hands on another view of what layers.0.norm hands on"),
    ],
)
def test_another_value_that_came_in_or_was_made_is_handed_on(
    write: Record, way: Callable[[str], Way], said: str, dtype: torch.dtype
) -> None:
    reference, target = write(seeded(Model(way("norm"))), X), write(seeded(Model(way("other"))).to(dtype), X.to(dtype))
    comparison = compare_traces(reference, target)
    assert [("layers.0", "unexplained", None), ("layers.1", "unexplained", None)] == origins(comparison)
    assert said == comparison.origins[0].statement
    assert [] == origins(compare_traces(reference, write(seeded(Model(way("norm"))).to(dtype), X.to(dtype))))


def copied(layer: Layer, h: Tensor, n: Tensor, gate: Tensor) -> Tensor:
    return h + gate * layer.mlp(n.clone())


def copied_again(layer: Layer, h: Tensor, n: Tensor, gate: Tensor) -> Tensor:
    return h + gate * layer.mlp(n.transpose(0, 1).contiguous().transpose(0, 1))


@pytest.mark.parametrize("way", [copied, copied_again])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_copy_of_it_is_no_other(write: Record, way: Way, turn: int) -> None:
    comparison = compare_traces(*[write(seeded(Model(one)), X) for one in (given("norm"), way)[::turn]])
    assert [] == origins(comparison)


class Table(nn.Module):
    """Returns one of two weights, or one of what was left on its object before."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(random(6, 16, seed=seed)) for seed in (3, 4))
        self.which, self.left = which, {}

    def forward(self, x: Tensor) -> Tensor:
        if self.which in self.left:
            return self.left[self.which]
        return getattr(self, self.which)


class Beside(nn.Module):
    def __init__(self, which: str, *, leaves: bool) -> None:
        super().__init__()
        self.table, self.leaves = Table(which), leaves

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.leaves:
            self.table.left = {"a": x * 2, "b": functional.silu(x)}
        return x * 3, self.table(x)


@pytest.mark.parametrize("leaves", [True, False], ids=["what was left", "weights"])
def test_what_nobody_handed_in_is_handed_on(write: Record, leaves: bool) -> None:
    paths = {which: write(Beside(which, leaves=leaves), X) for which in "ab"}
    assert ["table"] == [site for site, _, _ in origins(compare_traces(paths["a"], paths["b"]))]
    assert [] == origins(compare_traces(paths["a"], write(Beside("a", leaves=leaves), X)))


def test_a_second_fault_beside_it_is_found(write: Record) -> None:
    def wrong(layer: Layer, h: Tensor, n: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        return gate * 0.25, h

    comparison = compare_traces(write(seeded(Model(residual("norm"))), X), write(seeded(Model(wrong)), X))
    assert {"layers.0", "layers.0/aten.mul.Tensor#1"} == {site for site, _, _ in origins(comparison) if site.startswith("layers.0")}


class Branches(nn.Module):
    """Two branches, of which the second is left out or not, and what they make in another shape than it is handed on in."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.first, self.second, self.both = MLP(), MLP(), both

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        made = self.first(flat)
        return (made + self.second(flat) if self.both else made).reshape(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_branch_that_never_runs_beside_one_that_is_handed_on_alone(write: Record, dtype: torch.dtype) -> None:
    reference = write(seeded(Branches(both=True)), X)
    comparison = compare_traces(reference, write(seeded(Branches(both=False)).to(dtype), X.to(dtype)))
    assert [("second", "module-missing")] == [(origin.site, origin.cause) for origin in comparison.origins]


class Sides(nn.Module):
    """Norms side by side, some of which never run; two are handed to a module, and one is added to what that returns."""

    def __init__(self, *runs: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (RMSNorm(16, 1e-6) for _ in range(3))
        self.scores, self.runs = nn.Bilinear(16, 16, 16), runs

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (norm(x * n) if name in self.runs else x * n for n, (name, norm) in enumerate(self.named_children(), 1) if n < 4)
        return self.scores(q, k) + v


@pytest.mark.parametrize("runs", ["", "v", "q", "qkv"])
def test_every_module_that_never_runs_is_said(write: Record, runs: str) -> None:
    comparison = compare_traces(write(seeded(Sides(*"qkv")), X), write(seeded(Sides(*runs)), X))
    expected = [(name, "module-missing") for name in "qkv" if name not in runs]
    assert expected == [(origin.site, origin.cause) for origin in comparison.origins]


class Cached(nn.Module):
    """Keeps keys and values; in its step `stale` it reads another value than it keeps."""

    def __init__(self, stale: int, *, returns: bool) -> None:
        super().__init__()
        self.k, self.v, self.stale, self.returns, self.step = nn.Linear(16, 16), nn.Linear(16, 16), stale, returns, 0

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Any:
        self.keys, self.values = torch.cat([keys, self.k(x)], 1), torch.cat([values, self.v(x)], 1)
        used = torch.cat([self.values[:, :-1], self.values[:, -2:-1]], 1) if self.step == self.stale else self.values
        self.step += 1
        made = (x @ self.keys.mT).softmax(-1) @ used
        return (made, self.keys, self.values) if self.returns else made


class Decoder(nn.Module):
    """Hands out what its layer kept, as a cache does."""

    def __init__(self, stale: int = -1, *, returns: bool) -> None:
        super().__init__()
        self.layer = Cached(stale, returns=returns)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        made = self.layer(x, keys, values)
        return x + (made[0] if self.layer.returns else made), {"keys": self.layer.keys, "values": self.layer.values}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stale", [0, 2])
@pytest.mark.parametrize("returns", [True, False])
def test_what_is_handed_on_right_is_no_fault_of_a_call_that_it_was_aligned_with(
    write: Record, returns: bool, stale: int, dtype: torch.dtype
) -> None:
    steps = [(random(2, 1, 16, seed=step), random(2, 3 + step, 16, seed=8), random(2, 3 + step, 16, seed=9)) for step in range(3)]
    reference = write(seeded(Decoder(returns=returns)), steps=steps)
    target = write(seeded(Decoder(stale, returns=returns)).to(dtype), steps=[tuple(one.to(dtype) for one in each) for each in steps])
    found = [(origin.site.partition("/")[0], origin.step) for origin in compare_traces(reference, target).origins]
    assert [("layer", stale)] == found
