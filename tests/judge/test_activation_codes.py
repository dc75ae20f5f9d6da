"""Activations, keys and values that one run alone rounds to codes are less precision; read back with another scale they are a defect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from layerdiff.compare import compare_traces
from layerdiff.judge.programs.codes import Codes, codes_of
from layerdiff.replay.recorded import Recorded
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.reader import open_trace
from layerdiff.trace.schema import Role
from tests.programs import IDS, Attention, Cached, Decoder, Record, decoder, origins, random, rotate, seeded

SITE = "layers.1.self_attn"
Keep = Callable[[Tensor], Tensor]


def int8(x: Tensor, times: float | Tensor = 1.0) -> Tensor:
    scale = x.abs().amax((0, 2, 3), keepdim=True) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8).to(x.dtype) * (scale * times).to(x.dtype)


def shifted(x: Tensor, times: float | Tensor = 1.0) -> Tensor:
    scale = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / 255
    zero = (x.amin(-1, keepdim=True) / scale).round()
    codes = (x / scale - zero).round().clamp(0, 255).to(torch.uint8)
    return (codes.to(x.dtype) + zero) * (scale * times).to(x.dtype)


def fp8(x: Tensor, times: float | Tensor = 1.0) -> Tensor:
    scale = x.abs().amax() / 448
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * (scale * times).to(x.dtype)


def pretended(x: Tensor, times: float | Tensor = 1.0) -> Tensor:
    scale = x.abs().amax() / 127
    return (x / scale).round() * (scale * times).to(x.dtype)


WAYS = pytest.mark.parametrize("way", [int8, shifted, fp8, pretended])


class Kept(Attention):
    """Attention whose values go through codes."""

    keep: Keep

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in (self.q_proj, self.k_proj, self.v_proj))
        angles = torch.arange(x.shape[1])[:, None].float() * 10000.0 ** (-torch.arange(0, q.shape[-1], 2).float() / q.shape[-1])
        angles = torch.cat([angles, angles], -1)
        q, k = (rotate(part, angles.cos().to(x.dtype), angles.sin().to(x.dtype)) for part in (q, k))
        y = ((q @ k.transpose(-1, -2)) * self.scale).softmax(-1) @ self.keep(v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def kept(keep: Keep) -> Callable[[Decoder], None]:
    def change(model: Decoder) -> None:
        attention = model.layers[1].self_attn
        attention.__class__ = Kept
        attention.keep = keep

    return change


def compared(write: Record, change: Callable[[Decoder], Any], dtype: torch.dtype = torch.float32, profile: str = "relaxed") -> Comparison:
    return compare_traces(write(decoder(), IDS), write(decoder(change).to(dtype), IDS), profile=profile)


@WAYS
def test_codes_are_less_precision_that_a_profile_may_allow(write: Record, way: Keep) -> None:
    for profile, forbidden in (("strict", True), ("relaxed", False)):
        found = compared(write, kept(way), profile=profile)
        assert [(SITE, "precision", "quantised-activation")] == [(site.partition("/")[0], *rest) for site, *rest in origins(found)]
        assert forbidden == found.defect


@WAYS
def test_codes_in_bfloat16_are_no_defect(write: Record, way: Keep) -> None:
    assert not compared(write, kept(way), torch.bfloat16).defect


@WAYS
@pytest.mark.parametrize(
    ("times", "dtype", "said"),
    [
        (1.4, torch.float32, "reads back 1.4 times what was rounded"),
        (torch.tensor([1.0, 1.2]).view(1, 2, 1, 1), torch.bfloat16, "in 96 of 192 elements"),
    ],
)
def test_another_scale_is_named(write: Record, way: Callable[..., Tensor], times: float | Tensor, dtype: torch.dtype, said: str) -> None:
    (origin,) = [one for one in compared(write, kept(lambda x: way(x, times)), dtype).origins if one.defect]
    assert (SITE, "quant-scale") == (origin.site.partition("/")[0], origin.cause)
    assert said in origin.statement


def test_a_scale_that_is_dropped_is_named_where_both_runs_round(write: Record) -> None:
    reference = write(decoder(kept(fp8)), IDS)
    dropped = write(decoder(kept(lambda x: (x / (x.abs().amax() / 448)).to(torch.float8_e4m3fn).to(x.dtype))), IDS)
    (origin,) = compare_traces(reference, dropped).origins
    assert (SITE, "defect", "quant-scale") == (origin.site.partition("/")[0], origin.verdict.label, origin.cause)


@pytest.mark.parametrize("coarse", [lambda x: x.round(), lambda x: (x * 2).to(torch.int8).to(x.dtype) / 2])
def test_whole_numbers_that_are_coarser_than_codes_are_not_explained(write: Record, coarse: Keep) -> None:
    (origin,) = compared(write, kept(coarse)).origins
    assert (SITE, "unexplained") == (origin.site.partition("/")[0], origin.verdict.label)
    assert "rounded to whole numbers, off by" in origin.statement


def test_what_is_not_made_of_the_codes_is_not_excused_by_them(write: Record) -> None:
    def wrong(x: Tensor) -> Tensor:
        made = int8(x)
        with _disable_current_modes():  # as a kernel would that does something else
            made[:, 0, 2] *= 1.1
        return made

    found = compared(write, kept(wrong)).origins
    assert {SITE} == {one.site.partition("/")[0] for one in found}
    assert any("of the recorded codes" in one.statement for one in found if one.defect)


class Eight(nn.Module):
    """A projection whose activations and weights are multiplied as whole numbers."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("codes", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        scale = flat.abs().amax(1, keepdim=True) / 127
        codes = (flat / scale).round().clamp(-127, 127).to(torch.int8)
        if self.fault == "activations":
            scale = scale * 1.1
        summed = codes.int() @ self.codes.T.int()
        return (summed.to(x.dtype) * scale * self.scale.to(x.dtype)).unflatten(0, x.shape[:-1])


def eight(fault: str = "") -> Callable[[Decoder], None]:
    def change(model: Decoder) -> None:
        module = Eight(model.layers[0].mlp.up_proj.weight)
        module.fault = fault
        if fault == "weights":
            module.scale[3] *= 1.5
        model.layers[0].mlp.up_proj = module

    return change


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_activations_and_weights_in_codes_are_less_precision(write: Record, dtype: torch.dtype) -> None:
    found = compared(write, eight(), dtype)
    assert not found.defect
    assert {"layers.0.mlp.up_proj"} == {one.site.partition("/")[0] for one in found.origins}
    assert ("layers.0.mlp.up_proj/aten.mm.default#0", "precision", "quantised-weight") in origins(found)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("weights", "1 of 24 scales in layers.0.mlp.up_proj.scale: 1.5 times"), ("activations", "1.1): 1.1 times what fits")],
)
def test_a_scale_of_either_is_named(write: Record, fault: str, said: str) -> None:
    (origin,) = [one for one in compared(write, eight(fault)).origins if one.defect]
    assert said in origin.statement


class CodedCache(Cached):
    """The cache in codes, with the scales of the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (torch.zeros(2, 8, 16, dtype=torch.int8) for _ in range(2))
        self.scales: list[Tensor] = []
        self.stale, self.room = False, 4.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = self.seen + torch.arange(x.shape[1])
        first = not self.scales
        self.scales = self.scales or [part.abs().amax((0, 1)) * self.room / 127 for part in (k, v)]
        for cache, part, scale in zip((self.keys, self.values), (k, v), self.scales, strict=True):
            cache.index_copy_(1, places, (part / scale).round().clamp(-127, 127).to(torch.int8))
        if self.stale and not first:
            with _disable_current_modes():
                self.keys[:, 2] = self.keys[:, 1]
        self.seen.add_(x.shape[1])
        hidden = torch.arange(8) > places[:, None]
        keys, values = (cache.to(x.dtype) * scale for cache, scale in zip((self.keys, self.values), self.scales, strict=True))
        return self.out((q @ keys.mT * self.scale).masked_fill(hidden, -torch.inf).softmax(-1) @ values)


@pytest.mark.parametrize(("stale", "room"), [(False, 4.0), (True, 4.0), (False, 1.5)])
def test_a_cache_in_codes_is_less_precision_unless_it_is_stale_or_full(write: Record, stale: bool, room: float) -> None:
    steps = [(random(2, 4, 16),), (random(2, 1, 16, seed=3),), (random(2, 1, 16, seed=4),)]
    model = seeded(CodedCache())
    model.stale, model.room = stale, room
    found = compare_traces(write(seeded(Cached()), steps=steps), write(model, steps=steps), profile="relaxed")
    wrong = stale or room < 2  # a later token is larger than there are codes for
    assert wrong == found.defect
    assert {"precision"} | ({"unexplained"} if wrong else set()) == {one.verdict.label for one in found.origins}


@pytest.mark.parametrize(
    ("way", "is_code"),
    [
        (lambda x: x.round().to(torch.int8).to(x.dtype), True),
        (lambda x: torch.cat([x.round().to(torch.int8)] * 2).to(x.dtype), True),
        (lambda x: (x.to(torch.int32) @ torch.ones(4, 4, dtype=torch.int32)).to(x.dtype), True),
        (lambda x: torch.arange(9.0)[x.abs().clamp(max=8).to(torch.int32)], False),  # places
        (lambda x: functional.embedding(x.abs().clamp(max=8).to(torch.int32), torch.ones(9, 2)), False),
        (lambda x: (x.round().to(torch.int8) & 15).to(x.dtype), False),  # two in a byte
        (lambda x: (x.to(torch.int8) > 1).to(x.dtype), False),
        (lambda x: x.to(torch.int8), False),  # handed on as they are
        (lambda x: x.round(decimals=1), False),
    ],
)
def test_what_is_used_as_anything_but_a_measure_is_no_code(write: Record, way: Keep, is_code: bool) -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return way(x)

    assert is_code == bool(_codes(write(Root(), random(4, 4) * 3)).memories)


def _codes(path: Path) -> Codes:
    run = Recorded(open_trace(path).files[0])
    return codes_of(run, run.children[0], run.edges(0, Role.OUTPUT).values(), [])
