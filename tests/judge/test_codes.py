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
def test_another_zero_point_is_named(write: Record, way: str) -> None:
    (origin,) = (one for one in _relaxed(write, kept(way, zeros)).origins if one.defect)
    assert (SITE, "quant-zero-point") == (origin.site.partition("/")[0], origin.cause)
    assert "codes count from one more than fits the reference's weight" == origin.statement


class Awq(nn.Module):
    """Eight codes of neighbouring columns in a number, in an order of their own, with zero points that are packed alike."""

    ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

    def __init__(self, weight: Tensor, group: int = 8) -> None:
        super().__init__()
        grouped = weight.T.unflatten(0, (-1, group))
        low, high = grouped.amin(1).clamp(max=0), grouped.amax(1).clamp(min=0)
        scale = (high - low) / 15
        zero = (-low / scale).round()
        codes = ((grouped / scale[:, None]).round() + zero[:, None]).clamp(0, 15).flatten(0, 1)
        self.group = group
        self.register_buffer("qweight", self._packed(codes))
        self.register_buffer("qzeros", self._packed(zero))
        self.register_buffer("scales", scale)

    def _packed(self, codes: Tensor) -> Tensor:
        apart = codes.int().unflatten(1, (-1, 8))
        return sum(apart[..., one] << (4 * place) for place, one in enumerate(self.ORDER))

    def _unpacked(self, packed: Tensor) -> Tensor:
        apart = (packed[:, :, None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
        return apart[..., torch.tensor(self.ORDER).argsort()].flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        codes, zero = (self._unpacked(one).to(x.dtype) for one in (self.qweight, self.qzeros))
        at = torch.arange(len(codes)) // self.group
        return x @ ((codes - zero[at]) * self.scales.to(x.dtype)[at])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("wrong", [False, True])
def test_codes_in_an_order_of_their_own_are_less_precision(write: Record, wrong: bool, dtype: torch.dtype) -> None:
    def change(model: Decoder) -> None:
        model.layers[0].mlp.up_proj = module = Awq(model.layers[0].mlp.up_proj.weight)
        if wrong:
            module.scales[1] *= 1.5

    found = compare_traces(write(decoder(), IDS), write(decoder(change).to(dtype), IDS), profile="relaxed")
    assert ["layers.0.mlp.up_proj"] == [one.site.partition("/")[0] for one in found.origins]
    assert ("weight-differs" if wrong else "quantised-weight", wrong) == (found.origins[0].cause, found.defect)
    assert not wrong or "24 of 48 scales in layers.0.mlp.up_proj.scales" in found.origins[0].statement


class Blocks(nn.Module):
    """A projection by floats of 8 bits, with a scale for each block."""

    def __init__(self, weight: Tensor, block: int = 8) -> None:
        super().__init__()
        blocks = weight.unflatten(1, (-1, block)).unflatten(0, (-1, block))
        scale = blocks.abs().amax((1, 3)) / 448
        self.block = block
        self.register_buffer("weight", (blocks / scale[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.repeat_interleave(self.block, 0).repeat_interleave(self.block, 1)
        return functional.linear(x, (self.weight.float() * scale).to(x.dtype))


def test_the_scale_of_a_block_of_8_bit_floats_is_named(write: Record) -> None:
    def change(model: Decoder) -> None:
        model.layers[0].mlp.up_proj = module = Blocks(model.layers[0].mlp.up_proj.weight)
        module.scale[1, 0] *= 1.25

    (origin,) = _relaxed(write, change).origins
    assert ("weight-differs", True) == (origin.cause, origin.defect)
    assert origin.statement.startswith("1 of 6 scales in layers.0.mlp.up_proj.scale: 1.2")  # 1.25 by the fit of 64 numbers of 3 bits


def test_scales_along_the_other_axis_are_a_defect(write: Record) -> None:
    found = _relaxed(write, kept("before", transposed))
    assert [SITE] == sorted({origin.site.partition("/")[0] for origin in found.origins if origin.defect})


def _relaxed(write: Record, change: Callable[[Decoder], None]) -> Comparison:
    return compare_traces(write(decoder(), IDS), write(decoder(change), IDS), profile="relaxed")
