"""Attention whose scores are large is held against what the reference's form makes of the target's queries, keys and values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from layerdiff import Recorder, compare_traces
from layerdiff.judge.attention_forms import Form, Given, held_against_form

BF16 = 2.0**-8
RANDOM = np.random.default_rng(0)


def given(form: Form, size: float, like: Given | None = None) -> Given:
    """Four heads, of two of keys; `like`: with inputs that are rounding off those."""
    angles = np.outer(np.arange(9), 1.0 / 10 ** np.arange(4))[None]
    if form.turns == "pairs":
        tables = [np.repeat(np.cos(angles), 2, -1), np.repeat(np.sin(angles), 2, -1)]
    else:
        tables = [np.concatenate([one, one], -1) for one in (np.cos(angles), np.sin(angles))]
    if like is None:
        q, k, v = (RANDOM.standard_normal((2, 9, heads * 8)) * scale for heads, scale in ((4, size), (2, size), (2, 1.0)))
    else:
        q, k, v = (x * (1 + BF16 * RANDOM.uniform(-1, 1, x.shape)) for x in (like.queries, like.keys, like.values))
    one = Given(q, k, v, np.zeros_like(q), *tables)
    return Given(q, k, v, form.run(one, 0.0 if like is None else BF16, None if like is None else RANDOM), *tables)


FORM = Form(8, 8**-0.5, later=0)


@pytest.mark.parametrize("size", [1.0, 10.0, 30.0])
@pytest.mark.parametrize(
    "form",
    [FORM, replace(FORM, turns="pairs"), Form(8, 1.0), replace(FORM, tiled=True)],
    ids=["causal", "interleaved", "all keys", "tiled"],
)
def test_what_rounding_makes_of_large_scores(form: Form, size: float) -> None:
    ours = given(form, size)
    told = held_against_form(ours, given(form, size, ours), [8], [form.scale], [0.0, BF16])
    assert told is not None and told.right


@pytest.mark.parametrize(
    "other",
    [
        replace(FORM, scale=1.2 * FORM.scale),
        *(replace(FORM, turns=turns) for turns in ("pairs", "back", "queries", "keys", "none")),
        replace(FORM, later=None),
        replace(FORM, later=1),
        replace(FORM, tiled=True),
    ],
    ids=lambda form: f"{form.scale:.2f} {form.turns} {form.later} {form.tiled}",
)
def test_attention_of_another_form_is_not_acquitted(other: Form) -> None:
    ours = given(FORM, 1.0)
    theirs = given(FORM, 1.0, ours)
    told = held_against_form(ours, replace(theirs, made=other.run(theirs)), [8], [], [0.0, BF16])
    assert told is not None and not told.right and told.wrong and told.beyond > 0.4 * told.rows
    assert told.other is not None and replace(told.other, scale=other.scale) == other
    assert told.other.scale == pytest.approx(other.scale, rel=1e-2)


class Attention(nn.Module):
    """Causal, of two heads, with biases of keys and queries as large as some models have."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(16, 16) for _ in range(4))
        self.q_proj.bias.data *= bias
        self.k_proj.bias.data *= 4 * bias
        self.scaling, self.head_dim, self.causal = 8**-0.5, 8, True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        y = scaled_dot_product_attention(q * torch.sin(3 * q), k, v, is_causal=self.causal, scale=self.scaling)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class PlainAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        y = scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scaling)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "wrong", "expected"), [(PlainAttention, False, []), (PlainAttention, True, [""]), (Attention, False, [""])]
)
def test_large_biases_in_bf16(kind: type[Attention], wrong: bool, expected: list[str], tmp_path: Path) -> None:
    """`Attention` has no form that is known, and is left to thresholds, which two right runs do not keep."""
    x = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name, dtype in (("r", torch.float32), ("t", torch.bfloat16)):
        model = kind(60.0).to(torch.bfloat16).to(dtype)
        model.causal = not (wrong and name == "t")
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model(x.to(dtype))
    assert expected == [origin.site for origin in compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins]


class NarrowAttention(Attention):
    """Its values, and what it hands on, are of another width than its queries, and its tables lie in no usual form."""

    def __init__(self, bias: float) -> None:
        super().__init__(bias)
        self.v_proj, self.o_proj = nn.Linear(16, 6), nn.Linear(6, 16)

    def forward(self, x: Tensor, cos: Tensor | None = None, sin: Tensor | None = None) -> Tensor:  # type: ignore[override]
        scores = self.q_proj(x) @ self.k_proj(x).mT * self.scaling
        return self.o_proj(scores.softmax(-1) @ self.v_proj(x))  # type: ignore[no-any-return]


def test_forms_that_fit_nothing_are_left_to_thresholds(tmp_path: Path) -> None:
    x = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name, dtype in (("r", torch.float32), ("t", torch.bfloat16)):
        model = NarrowAttention(60.0).to(torch.bfloat16).to(dtype)
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model(x.to(dtype), torch.ones(7, dtype=dtype), torch.ones(3, 5, dtype=dtype))
    assert [""] == [origin.site for origin in compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins]


def test_tables_that_are_wider_than_a_head_turn_nothing() -> None:
    ours = given(FORM, 1.0)
    assert held_against_form(ours, ours, [4], [], [0.0, BF16]) is None


class FusedAttention(Attention):
    """Queries, keys and values of a head beside each other."""

    def __init__(self) -> None:
        super().__init__(1.0)
        del self.q_proj, self.k_proj, self.v_proj
        self.qkv_proj = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(2 * x).view(*x.shape[:2], 2, 3, 8).permute(3, 0, 2, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scaling)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("factor", [1.0, 0.8])
@pytest.mark.parametrize("reference", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [PlainAttention, FusedAttention])
def test_a_wrong_scale_that_thresholds_do_not_see(kind: type[Attention], reference: torch.dtype, factor: float, tmp_path: Path) -> None:
    x = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name, dtype in (("r", reference), ("t", torch.bfloat16)):
        model = (kind(2.0) if kind is PlainAttention else kind()).to(torch.bfloat16).to(dtype)  # type: ignore[call-arg]
        model.scaling *= factor if name == "t" else 1.0
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model(x.to(dtype))
    found = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins
    assert [(origin.site, origin.cause) for origin in found] == ([] if factor == 1.0 else [("", "attention-scale")])
