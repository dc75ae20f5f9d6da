"""Layers that one kernel makes: held against the same by operators, against wrong weights, and against kernels that are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff.arithmetic.formats import accumulator_for, format_named
from layerdiff.arithmetic.own import own_replay
from layerdiff.compare import compare_traces
from layerdiff.replay.condition import generic_spread
from layerdiff.replay.operators import run64
from layerdiff.replay.own import CONVICTING
from layerdiff.trace.arguments import Arguments
from tests.programs import random, record, seeded

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
sizes = pytest.mark.parametrize("seed", [0, 1])


class Model(nn.Module):
    """An encoder, then recurrent layers."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lstm, self.out = nn.LSTM(width, 10, 2, batch_first=True, bidirectional=True), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.encoder(x))[0])


@contextmanager
def by_operators() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks at the settings of all devices
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def traced(path: Path, model: Model, seed: int, dtype: torch.dtype, *below: Any) -> Path:
    return record(path, model.to(dtype), random(2, 30, 24, seed=seed + 3).to(dtype), below=below)


@pytest.mark.parametrize(("dtype", "seed"), [(torch.float32, 0), (torch.bfloat16, 1)], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("reference", "target"), [("fused", "fused"), ("fused", "operators"), ("operators", "fused")])
def test_the_same_layer_in_one_kernel_or_by_operators(tmp_path: Path, reference: str, target: str, dtype: torch.dtype, seed: int) -> None:
    ways = [[by_operators()] if way == "operators" else [] for way in (reference, target)]
    r = traced(tmp_path / "r.h5", seeded(Model(), seed), seed, torch.float32, *ways[0])
    t = traced(tmp_path / "t.h5", seeded(Model(), seed), seed, dtype, *ways[1])
    comparison = compare_traces(r, t)
    assert ([], False) == ([origin.statement for origin in comparison.origins], comparison.defect)
    assert not {"not-judged", "results-not-compared"} & {notice.kind for notice in comparison.notices}


def test_under_autocast(tmp_path: Path) -> None:
    r = traced(tmp_path / "r.h5", seeded(Model()), 0, torch.float32)
    t = traced(tmp_path / "t.h5", seeded(Model()), 0, torch.float32, torch.autocast("cpu", torch.bfloat16))
    assert [] == [origin.statement for origin in compare_traces(r, t).origins]


def other_gates(rows: Tensor) -> Tensor:
    """Input and forget gate exchanged."""
    enter, forget, *rest = rows.chunk(4)
    return torch.cat([forget, enter, *rest])


FUSED, BY_OPERATORS = ("fused", torch.float32, 0), ("operators", torch.bfloat16, 1)


@pytest.mark.parametrize(
    ("weight", "change", "place", "way", "dtype", "seed"),
    [
        ("lstm.weight_hh_l0", other_gates, "lstm", *BY_OPERATORS),
        ("lstm.weight_ih_l1_reverse", other_gates, "lstm", *FUSED),
        ("lstm.bias_hh_l1", lambda x: 1.02 * x, "lstm", *FUSED),
        ("encoder.layers.1.self_attn.in_proj_weight", lambda x: x.roll(24, 0), "encoder.layers.1.self_attn", *FUSED),
        ("encoder.layers.0.self_attn.out_proj.bias", lambda x: 1.02 * x, "encoder.layers.0.self_attn", *BY_OPERATORS),
    ],
)
def test_another_weight_is_found(
    tmp_path: Path, weight: str, change: Callable[[Tensor], Tensor], place: str, way: str, dtype: torch.dtype, seed: int
) -> None:
    model = seeded(Model(), seed)
    with torch.no_grad():
        parameter = model.get_parameter(weight)
        parameter.copy_(change(parameter.clone()))
    r = traced(tmp_path / "r.h5", seeded(Model(), seed), seed, torch.float32)
    t = traced(tmp_path / "t.h5", model, seed, dtype, *([by_operators()] if way == "operators" else []))
    assert {place} == {origin.site.partition("/")[0] for origin in compare_traces(r, t).origins}


def lstm_args(seed: int, dtype: torch.dtype, length: int) -> tuple[Any, ...]:
    weights = [random(40, 16, seed=seed + 1) / 4, random(40, 10, seed=seed + 2) / 3, random(40, seed=seed + 3), random(40, seed=seed + 4)]
    x, hx, cx = random(length, 8, 16, seed=seed), random(8, 10, seed=seed + 5), random(8, 10, seed=seed + 6)
    floats = [one.to(dtype) for one in (x, *weights, hx, cx)]
    return (*floats, False, [], 2, 10, 1, True, False, False, False)


def verdict(args: tuple[Any, ...], recorded: Tensor, dtype: torch.dtype) -> str:
    name, known = "aten.mkldnn_rnn_layer.default", str(dtype).removeprefix("torch.")
    given = Arguments(tuple(one.double() if isinstance(one, Tensor) else one for one in args), {})
    exact, accumulator = run64(name, given), accumulator_for(known)
    spreads = generic_spread(name, given, exact, accumulator, inner=format_named(known)).spreads
    return own_replay([recorded.double().numpy()], [known], [exact[0].numpy()], [spreads[0]], accumulator).verdict


@both_dtypes
@sizes
@pytest.mark.parametrize("length", [2, 40])
def test_a_kernel_that_is_wrong_is_convicted_by_itself(length: int, seed: int, dtype: torch.dtype) -> None:
    args = lstm_args(seed, dtype, length)

    def kernel(*, at: int = 1, change: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
        changed = (*args[:at], change(args[at]), *args[at + 1 :])
        made: Tensor = torch.ops.aten.mkldnn_rnn_layer.default(*changed)[0]
        return made

    assert verdict(args, kernel(), dtype) not in CONVICTING
    small = 1.1 if dtype == torch.bfloat16 else 1.001
    for at, change in [(2, other_gates), (4, torch.zeros_like), (1, lambda x: small * x), (6, torch.zeros_like)]:
        assert verdict(args, kernel(at=at, change=change), dtype) in CONVICTING, at
    late = kernel()
    late[-1] = late[-2]
    assert verdict(args, late, dtype) in CONVICTING
    assert np.isfinite(late.double().numpy()).all()
