"""A sum in many steps is `precision` where each is rounded as coarsely as results are; few steps, and steps in float32, are nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces
from tests.judge.functions import Function, say
from tests.programs import random

LONG = random(6, 256).bfloat16()
MASSIVE = random(6, 64).bfloat16()
MASSIVE[:, 0] = 24.0  # its square leaves no room for the others
MOST = torch.cat([MASSIVE[:, :1], LONG[:, 1:]], -1)
DTYPES = {"float32": "float32", "bfloat16": "bfloat16"}
Summing = Callable[[Tensor], Tensor]


def in_one_call(terms: Tensor) -> Tensor:
    return terms.sum(-1, keepdim=True)


def one_by_one(terms: Tensor) -> Tensor:
    total = torch.zeros_like(terms[..., :1])
    for i in range(terms.shape[-1]):
        total = total + terms[..., i : i + 1]
    return total


def in_bf16(terms: Tensor) -> Tensor:
    return one_by_one(terms.bfloat16()).float()


def norm_of(summed: Summing) -> Function:
    def norm(x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(summed(wide * wide) / x.shape[-1] + 1e-6)).to(x.dtype)

    return norm


def softmax_of(summed: Summing) -> Function:
    def softmax(x: Tensor) -> Tensor:
        e = (x.float() - x.float().amax(-1, keepdim=True)).exp()
        return (e / summed(e)).to(x.dtype)

    return softmax


def centred_by(summed: Summing) -> Function:
    def centred(x: Tensor) -> Tensor:
        return (x.float() - summed(x.float()) / x.shape[-1]).to(x.dtype)

    return centred


def in_parts(count: int) -> Summing:
    def summed(terms: Tensor) -> Tensor:
        return one_by_one(torch.cat([in_one_call(part) for part in terms.bfloat16().chunk(count, -1)], -1)).float()

    return summed


@pytest.mark.parametrize(
    ("function", "target", "x", "expected"),
    [
        (norm_of, in_bf16, MASSIVE, ["precision"]),
        (norm_of, one_by_one, MASSIVE, []),
        (norm_of, in_parts(8), MASSIVE, []),
        (softmax_of, in_bf16, LONG, ["precision"]),
        (softmax_of, in_parts(8), LONG, []),
        (centred_by, in_bf16, MOST, ["precision"]),
        (centred_by, in_parts(8), MOST, []),
    ],
)
def test_a_sum_in_steps(tmp_path: Path, function: Callable[[Summing], Function], target: Summing, x: Tensor, expected: list[str]) -> None:
    found = say(tmp_path, function(in_one_call), function(target), x, DTYPES, x)
    assert expected == [local.verdict.label for local in found.findings]


def test_zeros_of_another_number_are_no_sum(tmp_path: Path) -> None:
    def nothing_added(summed: Summing, nothing: Callable[[Tensor], Tensor]) -> Function:
        return lambda x: norm_of(summed)(x) + nothing(x)

    reference = nothing_added(in_one_call, lambda x: (x.float() @ torch.zeros(64, 8)).sum())
    target = nothing_added(in_parts(8), lambda x: (x[:, :3].float() * 0.0).sum())
    assert not say(tmp_path, reference, target, MASSIVE, DTYPES, MASSIVE).findings


class Embedded(nn.Module):
    """What a function makes of the rows of a table."""

    def __init__(self, table: Tensor, function: Function) -> None:
        super().__init__()
        self.embed_tokens, self.function = nn.Embedding.from_pretrained(table), function

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.function(self.embed_tokens(input_ids))


@pytest.mark.parametrize(("target", "expected"), [(in_bf16, ["precision"]), (in_parts(8), [])], ids=["one by one", "in parts"])
def test_a_sum_in_steps_of_a_prompt_in_chunks(tmp_path: Path, target: Summing, expected: list[str]) -> None:
    ids = torch.tensor([[3, 1, 4, 0, 5, 2]])
    for name, table, summed, pieces in (("r.h5", MASSIVE.float(), in_one_call, (6,)), ("t.h5", MASSIVE, target, (4, 1, 1))):
        with torch.no_grad(), Recorder(tmp_path / name, model := Embedded(table, norm_of(summed)), operators=True):
            for piece in ids.split(pieces, 1):
                model(piece)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert expected == [origin.verdict.label for origin in comparison.origins]
