"""Weights kept as whole numbers and scaled in the graph are the reference's quantised; with another scale or zero point they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.programs import IDS, Decoder, Record, decoder, kinds, origins

SITE = "layers.1.self_attn.o_proj"


class Kept(nn.Module):
    """A projection by whole numbers: made floats before the product, scaled after it, in groups with a zero point, or two in a byte."""

    def __init__(self, weight: Tensor, way: str) -> None:
        super().__init__()
        self.way = way
        if way in ("before", "after"):
            scale = weight.abs().amax(1, keepdim=True) / 127
            codes, zero = (weight / scale).round(), torch.zeros_like(scale)
        else:
            grouped = weight.unflatten(1, (-1, 8))
            low, high = grouped.amin(2, keepdim=True), grouped.amax(2, keepdim=True)
            scale = (high - low) / 15
            zero = (-low / scale).round()
            codes = ((grouped / scale).round() + zero).clamp(0, 15)
        if way == "packed":
            flat = codes.flatten(1).to(torch.uint8)
            codes = flat[:, ::2] | (flat[:, 1::2] << 4)
        self.register_buffer("codes", codes.to(torch.uint8 if way == "packed" else torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero.to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "after":
            return functional.linear(x, self.codes.to(x.dtype)) * self.scale.flatten().to(x.dtype)
        if self.way == "before":
            return functional.linear(x, self.codes.to(x.dtype) * self.scale.to(x.dtype))
        codes = self.codes
        if self.way == "packed":
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1).unflatten(1, (-1, 8))
        weight = (codes.to(x.dtype) - self.zero.to(x.dtype)) * self.scale.to(x.dtype)
        return functional.linear(x, weight.flatten(1))


def kept(way: str, wrong: Callable[[Kept], Any] = lambda _: None) -> Callable[[Decoder], None]:
    def change(model: Decoder) -> None:
        module = Kept(model.layers[1].self_attn.o_proj.weight, way)
        wrong(module)
        model.layers[1].self_attn.o_proj = module

    return change


WAYS = pytest.mark.parametrize("way", ["before", "after", "groups", "packed"])


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_codes_are_less_precision_that_a_profile_may_allow(write: Record, way: str, dtype: torch.dtype) -> None:
    reference, target = write(decoder(), IDS), write(decoder(kept(way)).to(dtype), IDS)
    strict, relaxed = (compare_traces(reference, target, profile=profile) for profile in ("strict", "relaxed"))
    for comparison in (strict, relaxed):
        assert [(SITE, "precision", "quantised-weight")] == [(site.partition("/")[0], *rest) for site, *rest in origins(comparison)]
        assert "weight-differs" not in kinds(comparison)
    assert strict.defect
    assert not relaxed.defect


def one_scale(module: Kept) -> None:
    module.scale[3] *= 1.5


def all_scales(module: Kept) -> None:
    module.scale.mul_(1.02 if module.way in ("before", "after") else 1.1)


def shifted(module: Kept) -> None:
    module.scale = module.scale.roll(1, 0)


def inverse(module: Kept) -> None:
    module.scale = 1 / module.scale


def zeros(module: Kept) -> None:
    module.zero.add_(1)


def transposed(module: Kept) -> None:
    module.scale = module.scale.T.contiguous()


@WAYS
@pytest.mark.parametrize(
    ("wrong", "dtype"), [(one_scale, torch.bfloat16), (all_scales, torch.float32), (shifted, torch.bfloat16), (inverse, torch.float32)]
)
def test_another_scale_is_named(write: Record, way: str, wrong: Callable[[Kept], Any], dtype: torch.dtype) -> None:
    (origin,) = compare_traces(write(decoder(), IDS), write(decoder(kept(way, wrong)).to(dtype), IDS), profile="relaxed").origins
    assert (f"{SITE}/aten.mul.Tensor#0", "weight-differs", f"{SITE}.scale") == (origin.site, origin.cause, origin.evidence["constant"])
    assert origin.defect and origin.evidence["with_what_fits"] <= 2
    assert "times what fits the reference's weight" in origin.statement


class OneNumber(nn.Module):
    """A projection by whole numbers and one scale, a number in the code."""

    def __init__(self, weight: Tensor, times: float) -> None:
        super().__init__()
        self.right = float(weight.abs().max() / 127)
        self.register_buffer("codes", (weight / self.right).round().to(torch.int8))
        self.scale = self.right * times

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.codes.to(x.dtype) * self.scale)


@pytest.mark.parametrize("times", [1.0, 1.3, 0.5])
def test_another_scale_that_is_a_number(write: Record, times: float) -> None:
    def change(model: Decoder) -> None:
        model.layers[0].mlp.up_proj = OneNumber(model.layers[0].mlp.up_proj.weight, times)

    (origin,) = _relaxed(write, change).origins
    assert "layers.0.mlp.up_proj/aten.mul.Tensor#0" == origin.site
    assert (times != 1.0, "quantised-weight" if times == 1.0 else "scalar-differs") == (origin.defect, origin.cause)
    assert times == 1.0 or f"{times} times what fits" in origin.statement


@pytest.mark.parametrize("way", ["groups", "packed"])
def test_another_zero_point_is_no_scale(write: Record, way: str) -> None:
    found = _relaxed(write, kept(way, zeros))
    assert [(SITE, None)] == sorted({(one.site.partition("/")[0], one.cause) for one in found.origins if one.defect})


def test_scales_along_the_other_axis_are_a_defect(write: Record) -> None:
    found = _relaxed(write, kept("before", transposed))
    assert [SITE] == sorted({origin.site.partition("/")[0] for origin in found.origins if origin.defect})


def _relaxed(write: Record, change: Callable[[Decoder], None]) -> Comparison:
    return compare_traces(write(decoder(), IDS), write(decoder(change), IDS), profile="relaxed")
