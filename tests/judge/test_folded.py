"""Weights folded into others are the same function, and a fault among them is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff.arithmetic.formats import format_named, round_to
from layerdiff.compare import compare_traces
from layerdiff.judge.meaning import folded
from layerdiff.judge.meaning.changes import Change
from layerdiff.judge.meaning.region import Region
from layerdiff.judge.meaning.stored import rounding_drawn
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.reader import open_trace
from layerdiff.trace.schema import CallKind
from tests.programs import IDS, Decoder, Record, decoder, kinds, origins, random, seeded

BF16 = torch.bfloat16
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])


def defects(comparison: Comparison) -> list[tuple[str, str, str | None]]:
    return [found for found, origin in zip(origins(comparison), comparison.origins, strict=True) if origin.defect]


def gains(model: Decoder) -> None:
    """Each gain of a layer into the projections behind it; ones stay."""
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, behind in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            for projection in behind:
                projection.weight.mul_(norm.weight)
            norm.weight.fill_(1.0)


def plain(x: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def gains_left_out(model: Decoder) -> None:
    """The same, and the norms do without."""
    gains(model)
    for layer in model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = lambda x, norm=norm: plain(x.float(), norm.variance_epsilon).to(x.dtype)


def scales(model: Decoder) -> None:
    for layer in model.layers:
        layer.self_attn.q_proj.weight.mul_(layer.self_attn.scale)
        layer.self_attn.scale = 1.0


def rotated(model: Decoder) -> None:
    """Values and the projection behind them turned against each other, each head by itself."""
    turn = torch.linalg.qr(random(8, 8).double())[0].float()
    for layer in model.layers:
        v, o = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
        v.copy_((turn @ v.view(2, 8, 16)).reshape(16, 16))
        o.copy_((o.view(16, 2, 8) @ turn.T).reshape(16, 16))


def with_gain_of_another(model: Decoder) -> None:
    weight, gain = model.layers[1].self_attn.k_proj.weight, model.layers[1].post_attention_layernorm.weight
    wrong = weight * gain
    gains(model)
    weight.copy_(wrong)


def with_gain_twice(model: Decoder) -> None:
    gain = model.layers[1].post_attention_layernorm.weight.clone()
    gains(model)
    model.layers[1].mlp.up_proj.weight.mul_(gain)


def with_another_epsilon(model: Decoder) -> None:
    gains(model)
    model.layers[1].input_layernorm.variance_epsilon = 1e-5


def with_another_scale(model: Decoder) -> None:
    scales(model)
    model.layers[1].self_attn.q_proj.weight.mul_(1.01)


def with_another_projection(model: Decoder) -> None:
    gains(model)
    model.layers[1].self_attn.o_proj.weight.mul_(1.004)


def compared(write: Record, change: Callable[[Decoder], Any], dtype: torch.dtype) -> Comparison:
    return compare_traces(write(decoder(), IDS), write(decoder(change).to(dtype), IDS))


def scales_and_gains(model: Decoder) -> None:
    scales(model)
    gains(model)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [(gains, torch.float32), (gains_left_out, BF16), (scales, torch.float32), (scales, BF16), (rotated, BF16), (scales_and_gains, BF16)],
)
def test_folded_weights_are_the_same_function(write: Record, change: Callable[[Decoder], Any], dtype: torch.dtype) -> None:
    comparison = compared(write, change, dtype)
    assert [] == origins(comparison)
    assert not comparison.defect
    assert "weight-differs" in kinds(comparison)  # said, and no defect


@pytest.mark.parametrize(
    ("change", "dtype", "expected"),
    [
        (with_gain_of_another, BF16, ("layers.1.self_attn.k_proj/aten.mm.default#0", "defect", "weight-differs")),
        (with_gain_twice, torch.float32, ("layers.1.mlp.up_proj/aten.mm.default#0", "defect", "weight-differs")),
        (with_another_epsilon, torch.float32, ("layers.1.input_layernorm/aten.add.Tensor#0", "defect", "rmsnorm-eps")),
        (with_another_epsilon, BF16, ("layers.1.input_layernorm/aten.add.Tensor#0", "defect", "rmsnorm-eps")),
        (with_another_projection, BF16, ("layers.1.self_attn.o_proj/aten.mm.default#0", "defect", "weight-differs")),
    ],
)
def test_a_fault_among_folded_weights_is_named_alone(
    write: Record, change: Callable[[Decoder], Any], dtype: torch.dtype, expected: tuple[str, str, str]
) -> None:
    comparison = compared(write, change, dtype)
    assert [expected] == defects(comparison)


@both_dtypes
def test_a_scale_folded_wrongly_is_found_where_it_is(write: Record, dtype: torch.dtype) -> None:
    found = defects(compared(write, with_another_scale, dtype))
    assert {("layers.1.self_attn.q_proj/aten.mm.default#0", "defect", "weight-differs")} <= set(found)
    assert {"layers.1.self_attn", "layers.1.self_attn.q_proj"} >= {site.partition("/")[0] for site, _, _ in found}


class Low(nn.Module):
    """A projection with a small one beside it."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.scale = projection, 0.5
        self.down, self.up = nn.Parameter(random(2, 16, seed=3) / 4), nn.Parameter(random(16, 2, seed=4) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + (x @ self.down.T) @ self.up.T * self.scale


def beside(model: Decoder) -> None:
    for layer in model.layers:
        layer.self_attn.q_proj = Low(layer.self_attn.q_proj)


def merged(model: Decoder, scale: float = 0.5) -> None:
    for layer in model.layers:
        low = Low(layer.self_attn.q_proj)
        low.base_layer.weight.add_(scale * low.up @ low.down)


@both_dtypes
@pytest.mark.parametrize("way", ["merged", "apart"])
def test_a_merged_adapter_is_the_same_function_and_with_another_scale_it_is_not(write: Record, way: str, dtype: torch.dtype) -> None:
    def both(scale: float) -> Comparison:
        changes = [beside, lambda model: merged(model, scale)]
        ours, theirs = changes if way == "merged" else changes[::-1]
        return compare_traces(write(decoder(ours), IDS), write(decoder(theirs).to(dtype), IDS))

    harmless = both(0.5)
    assert [] == origins(harmless)
    assert not harmless.defect
    assert {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj"} == {
        site.partition("/")[0].removesuffix(".base_layer") for site, _, _ in defects(both(1.0))
    }


class Convolved(nn.Module):
    """A convolution and a norm of its channels; then two projections, of which one may hold the other's bias."""

    def __init__(self, *, folded: bool = False, epsilon: float = 1e-3) -> None:
        super().__init__()
        first, norm = nn.Conv1d(4, 6, 3, bias=folded), nn.BatchNorm1d(6, eps=1e-3)
        second, third = nn.Linear(14, 8), nn.Linear(8, 8)
        with torch.no_grad():
            for seed, tensor in enumerate(
                (first.weight, norm.weight, norm.bias, norm.running_mean, second.weight, second.bias, third.weight, third.bias)
            ):
                tensor.copy_(random(*tensor.shape, seed=seed) / 3)
            norm.running_var.copy_(random(6, seed=6).square() + 0.1)
            if folded:
                by = norm.weight * torch.rsqrt(norm.running_var + epsilon)
                first.weight.mul_(by[:, None, None])
                first.bias.copy_(norm.bias - norm.running_mean * by)
                third.bias.add_(third.weight @ second.bias)
                second.bias.zero_()
        self.front = nn.Sequential(first, nn.Identity() if folded else norm)
        self.back = nn.Sequential(second, third)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.front(x))


@both_dtypes
def test_a_norm_of_channels_and_a_bias_are_folded_and_another_epsilon_is_found(write: Record, dtype: torch.dtype) -> None:
    def against(model: Convolved) -> Comparison:
        x = random(4, 4, 16)
        return compare_traces(write(Convolved().eval(), x), write(model.eval().to(dtype), x.to(dtype)))

    harmless = against(Convolved(folded=True))
    assert [] == defects(harmless)
    assert not harmless.defect
    assert {"front"} == {site.partition("/")[0].partition(".")[0] for site, _, _ in defects(against(Convolved(folded=True, epsilon=0.1)))}


class Small(nn.Module):
    """A gain and a projection whose weights lie below the normal numbers of fp16, in fp32 from then on."""

    def __init__(self, *, folded: bool = False, wrong: float = 1.0) -> None:
        super().__init__()
        gain, weight = random(16, seed=3).abs() + 0.5, random(16, 16, seed=4) * 2e-6
        self.gain = nn.Parameter(torch.ones(16) if folded else gain)
        self.weight = nn.Parameter(weight * gain * wrong if folded else weight)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.gain).float() @ self.weight.T.float()


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=["fp16", "bf16"])
def test_weights_below_the_normal_numbers_are_rounded_to_the_distance_of_these(write: Record, dtype: torch.dtype) -> None:
    def against(**options: Any) -> list[str]:
        x = random(2, 6, 16)
        comparison = compare_traces(write(Small(), x), write(Small(folded=True, **options).to(dtype), x.to(dtype)))
        return [site for site, _, _ in defects(comparison)]

    assert [] == against()
    assert {"/aten.mm.default#0", "/aten.mul.Tensor#0"} == set(against(wrong=1.1))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-7, 1e-39])
def test_drawn_roundings_are_as_large_as_those_that_were_made(name: str, size: float) -> None:
    format = format_named(name)
    assert format is not None
    random = np.random.default_rng(1)
    exact = random.standard_normal(20000) * size
    stored = round_to(exact, format)
    if np.count_nonzero(stored) < len(stored) / 2:  # nearly all are zero
        return
    made, drawn = (float(np.sqrt(np.mean(np.square(x - stored)))) for x in (exact, rounding_drawn(stored, format, random)))
    assert made == pytest.approx(drawn, rel=0.1)


class Headed(Decoder):
    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.head = nn.Linear(16, 31, bias=False)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(super().forward(input_ids, mask))


def headed(by: float | None, dtype: torch.dtype = torch.float32) -> Headed:
    """The last gain folded into the head, `by` times as large; None for kept."""
    model = seeded(Headed(3))
    if by is not None:
        with torch.no_grad():
            model.head.weight.mul_(model.norm.weight * by)
            model.norm.weight.fill_(1.0)
    return model.to(dtype)


@both_dtypes
def test_what_is_over_before_the_fold_begins_is_not_run_again(write: Record, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Counted(Region):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            calls.append(self.calls)

    monkeypatch.setattr(folded, "Region", Counted)
    reference = write(headed(None), IDS)
    assert [] == defects(compare_traces(reference, write(headed(1.0, dtype), IDS)))
    assert 20 > max(calls)  # of hundreds
    assert {"head", "norm"} == {
        site.partition("/")[0] for site, _, _ in defects(compare_traces(reference, write(headed(1.02, dtype), IDS)))
    }


def test_no_more_is_tried_beside_faults_than_so_many_forwards(write: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of another training: everything is another, and nothing is folded."""
    tried: list[int] = []
    base = Region.base

    def counted(self: Region, changed: Change) -> Any:
        tried.append(self.calls if changed else 0)
        return base(self, changed)

    monkeypatch.setattr(Region, "base", counted)
    monkeypatch.setattr(folded, "_MOST_FORWARDS", 5)
    reference, target = write(decoder(), IDS), write(seeded(Decoder(), seed=5), IDS)
    file = open_trace(target).files[0]
    compare_traces(reference, target)
    assert 0 < sum(tried) <= 5 * np.count_nonzero(file.calls.kind == CallKind.OPERATOR)
