"""Which call is named where a module is written otherwise: what both programs make is no fault, and no name is given without proof."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.judge.functions import Function, Of, say
from tests.programs import random

SIZES = {"small": (random(2, 5, 8), torch.float32), "other seed": (random(3, 7, 8, seed=5) * 2, torch.bfloat16)}


def statements(folder: Path, reference: Function, target: Function, x: Tensor, dtype: torch.dtype) -> list[str]:
    said = say(folder, reference, target, x.to(dtype), {"float32": str(dtype).removeprefix("torch.")}, ours=x)
    return [local.statement for local in said.findings if not local.notice and "meaning" in local.evidence]


# softmax and attention


def weights(scores: Tensor, more: float = 0.0, *, binary: bool = False) -> Tensor:
    power = scores * math.log2(math.e) if binary else scores
    e = (torch.exp2 if binary else torch.exp)(power - power.amax(-1, keepdim=True))
    return e / (e.sum(-1, keepdim=True) + more) if more else e / e.sum(-1, keepdim=True)


def masked(x: Tensor, scale: float, seen: int = 1) -> Tensor:
    later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(seen)
    return (x @ x.transpose(-1, -2) * scale).masked_fill(later, -torch.inf)


def fused(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0]


def by_hand(x: Tensor, scale: float = 8**-0.5, seen: int = 1, more: float = 0.0) -> Tensor:
    return weights(masked(x, scale, seen), more) @ x


def by_request(x: Tensor, scale: float = 8**-0.5, seen: int = 1, more: float = 0.0) -> Tensor:
    return torch.stack([by_hand(one, scale, seen, more) for one in x])


def plain(x: Tensor) -> Tensor:
    return masked(x, 8**-0.5).softmax(-1) @ x


# norms


def scaled(x: Tensor, eps: float) -> Tensor:
    return x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)


def in_place(x: Tensor, eps: float) -> Tensor:
    return x.float() / x.float().square().mean(-1, keepdim=True).add_(eps).sqrt()


def divided(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return wide / torch.sqrt((wide * wide).sum(-1, keepdim=True) / x.shape[-1] + eps)


def centred(x: Tensor, eps: float) -> Tensor:
    off = x.float() - x.float().mean(-1, keepdim=True)
    return off * torch.rsqrt(off.square().mean(-1, keepdim=True) + eps)


def by_moments(x: Tensor, eps: float) -> Tensor:
    mean = x.float().mean(-1, keepdim=True)
    return (x.float() - mean) / (x.float().square().mean(-1, keepdim=True) - mean * mean + eps).sqrt()


def layer_norm(x: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x.float(), x.shape[-1:], eps=eps)


def gelu(x: Tensor, cubed: float = 0.044715) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + cubed * x.pow(3))))


def tanh_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


# what is said: the reference, the target written otherwise, the target with a fault, and the fault

SAID: dict[str, tuple[Function, Function, Function, str]] = {
    "one more": (plain, by_hand, lambda x: by_hand(x, more=1.0), "the target adds add(1.0)"),
    "one more, fused": (fused, by_hand, lambda x: by_hand(x, more=1.0), "the target adds add(1.0)"),
    "one more, in powers of two": (
        lambda x: x.softmax(-1),
        lambda x: weights(x, binary=True),
        lambda x: weights(x, 1.0, binary=True),
        "the target adds add(1.0)",
    ),
    "one more a request": (plain, by_request, lambda x: by_request(x, more=1.0), "the target adds add(1.0)"),
    "scale": (plain, by_hand, lambda x: by_hand(x, 0.25), f"mul(0.25), reference mul({8**-0.5})"),
    "scale a request": (plain, by_request, lambda x: by_request(x, 0.25), f"mul(0.25), reference mul({8**-0.5})"),
    "scale, fused": (
        fused,
        by_hand,
        lambda x: by_hand(x, 0.25),
        f"mul(0.25), reference {8**-0.5} in _scaled_dot_product_flash_attention_for_cpu(0.0, True)",
    ),
    "mask a request": (fused, by_request, lambda x: by_request(x, seen=2), "the reference never makes what triu(2) makes"),
    "mask": (fused, by_hand, lambda x: by_hand(x, seen=2), "the reference never makes what triu(2) makes"),
    "a constant of gelu": (tanh_gelu, gelu, lambda x: gelu(x, 0.04715), "mul(0.04715), reference 0.044715 in gelu(approximate=tanh)"),
    "a number of silu": (
        functional.silu,
        lambda x: x / (1 + (-x).exp()),
        lambda x: x / (2 + (-x).exp()),
        "add(2), reference 1.0 in silu",
    ),
    "quick gelu": (
        functional.silu,
        lambda x: x * x.sigmoid(),
        lambda x: x * (1.702 * x).sigmoid(),
        "the target adds mul(1.702)",
    ),
    "a factor behind": (
        lambda x: functional.silu(x) * x.cos(),
        lambda x: x * x.sigmoid() * x.cos(),
        lambda x: x * x.sigmoid() * x.cos() * 1.1,
        "the target adds mul(1.1)",
    ),
    "a sign": (
        lambda x: x[..., :4] * x[..., 4:].cos() - x[..., 4:] * x[..., :4].sin(),
        lambda x: x[..., :4] * x[..., 4:].cos() + -x[..., 4:] * x[..., :4].sin(),
        lambda x: x[..., :4] * x[..., 4:].cos() + x[..., 4:] * x[..., :4].sin(),
        "add, reference sub",
    ),
    "the mean lacks a factor": (
        lambda x: x / x.square().mean(-1, keepdim=True) * x.cos(),
        lambda x: x / (x.square().sum(-1, keepdim=True) / 8) * x.cos(),
        lambda x: x / (x.square().sum(-1, keepdim=True) / 8),
        "the target lacks mul",
    ),
    **{
        f"epsilon of {name}": (
            lambda x, one=one: one(x, 1e-6),
            lambda x, other=other: other(x, 1e-6),
            lambda x, other=other: other(x, 1e-5),
            said,
        )
        for name, one, other, said in (
            ("rms, in place", scaled, in_place, "add_(1e-05), reference add(1e-06)"),
            ("rms, divided", in_place, divided, "add(1e-05), reference add_(1e-06)"),
            ("layer norm", layer_norm, centred, "add(1e-05), reference native_layer_norm([8], 1e-06)"),
            ("layer norm by moments", layer_norm, by_moments, "add(1e-05), reference native_layer_norm([8], 1e-06)"),
            ("fused", centred, layer_norm, "native_layer_norm([8], 1e-05), reference add(1e-06)"),
        )
    },
}


@pytest.mark.parametrize(("x", "dtype"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("reference", "right", "wrong", "expected"), SAID.values(), ids=SAID)
def test_behind_a_rewrite(
    tmp_path: Path, reference: Function, right: Function, wrong: Function, expected: str, x: Tensor, dtype: torch.dtype
) -> None:
    assert [] == statements(tmp_path, reference, right, x, dtype)
    assert [expected] == statements(tmp_path, reference, wrong, x, dtype)


def test_two_faults_behind_a_rewrite(tmp_path: Path) -> None:
    said = statements(tmp_path, plain, lambda x: by_hand(x, 0.25, more=1.0), *SIZES["small"])
    assert [f"mul(0.25), reference mul({8**-0.5})", "the target adds add(1.0)"] == said


def test_an_operator_is_not_said_to_be_added_without_proof(tmp_path: Path) -> None:
    """A rewrite of which no call has a partner, and which no single call of it mends."""
    power = lambda x: torch.exp2(x).reciprocal() * x.sin()  # noqa: E731
    (said,) = statements(tmp_path, torch.sigmoid, power, *SIZES["small"])
    assert "the reference never makes what exp2 makes" == said


@pytest.mark.parametrize("count", [2, 3])
def test_what_is_selected_from_other_values(tmp_path: Path, count: int) -> None:
    """The largest of the scores with a bias are what a top-k hands out too, and yet no weights."""

    def routed(biased: bool) -> Function:
        def route(x: Tensor) -> Tensor:
            scores = x.sigmoid()
            choose = scores + torch.linspace(0, 0.5, 8)
            chosen = choose.topk(count, -1).indices
            kept = (choose if biased else scores).gather(-1, chosen)
            return kept / kept.sum(-1, keepdim=True)

        return route

    x, dtype = SIZES["small"]
    assert [] == statements(tmp_path, routed(False), routed(False), x, dtype)
    (said,) = statements(tmp_path, routed(False), routed(True), x, dtype)
    assert "gather(-1) is given what add makes in place of what sigmoid makes" == said


@pytest.mark.parametrize(("x", "dtype"), SIZES.values(), ids=SIZES)
def test_what_is_handed_out_beside_the_choice_in_place_of_what_was_gathered(tmp_path: Path, x: Tensor, dtype: torch.dtype) -> None:
    def routed(biased: bool) -> Function:
        def route(x: Tensor) -> Tensor:
            scores = x.sigmoid()
            largest, chosen = (scores + torch.linspace(0, 0.5, 8)).topk(2, -1)
            kept = largest if biased else scores.gather(-1, chosen)
            return kept / kept.sum(-1, keepdim=True)

        return route

    (said,) = statements(tmp_path, routed(False), routed(True), x, dtype)
    assert "sum([-1], True) is given what topk(2) makes in place of what gather(-1) makes" == said


def test_a_number_below_rounding_is_no_reason_without_proof(tmp_path: Path) -> None:
    """What a call makes that the other program never does is no cause, whatever numbers stand in it."""
    otherwise = lambda x: (x * 0.5).tanh() * (0.5 + 2.0**-25) + 0.5  # noqa: E731
    x, _ = SIZES["small"]
    said = say(tmp_path, torch.sigmoid, otherwise, x, ours=x).findings
    assert [("the reference never makes what mul(0.5) makes, below rounding", True)] == [(local.statement, local.notice) for local in said]


@pytest.mark.parametrize(
    ("read", "scale", "said"),
    [
        (lambda x, w: x @ w[0].t(), 1.0, "mm is given another view of w"),  # transposed
        (lambda x, w: x @ w[1], 1.0, "mm is given another view of w"),  # the next expert
        (lambda x, w: x @ w[0], 1.5, "another w"),
        (lambda x, w: functional.linear(x, w[0].t()), 1.0, None),
    ],
)
def test_another_view_of_a_weight_is_no_other_weight(tmp_path: Path, read: Function, scale: float, said: str | None) -> None:
    w = random(2, 8, 8, seed=3)
    found = say(tmp_path, Of(lambda x, w: x @ w[0], w=w), Of(read, w=w * scale), x := random(4, 8), ours=x)
    assert ([] if said is None else [said]) == [local.statement for local in found.findings]
