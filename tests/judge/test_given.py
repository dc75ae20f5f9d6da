"""What a call is given in place of what it should be, where what it is given was made on the way by calls that both programs have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import rotate
from layerdiff.compare import compare_traces
from tests.programs import Record, origins, random, seeded

X = random(2, 7, 32)


class Norm(nn.Module):
    """Of means, or of sums."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.weight, self.by = nn.Parameter(torch.ones(8)), by

    def forward(self, x: Tensor) -> Tensor:
        squares = x.pow(2)
        size = squares.sum(-1, keepdim=True) if self.by == "sums" else squares.mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(size + 1e-6))


class Attention(nn.Module):
    """Attention with norms of queries and keys, behind a convolution of four tokens; `fault`: what is wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.mix = nn.Conv1d(32, 32, 4, padding=3, groups=32)
        self.qkv, self.q_norm, self.k_norm = nn.Linear(32, 96, bias=False), Norm(fault), Norm("means")
        self.o = nn.Linear(32, 32, bias=fault != "unbiased")

    def forward(self, x: Tensor) -> Tensor:
        begin = 1 if self.fault == "later" else 0
        x = functional.silu(self.mix(x.mT)[..., begin : begin + x.shape[1]].contiguous()).mT
        q, k, v = (part.unflatten(-1, (4, 8)) for part in self.qkv(x).split(32, -1))
        if self.fault == "exchanged":
            k, v = v, k
        q = q if self.fault in ("skipped", "after") else self.q_norm(q)
        q, k, v = q.transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        angles = torch.arange(x.shape[1])[:, None] * 100.0 ** (-torch.arange(0, 8, 2) / 8)
        cos, sin = (torch.cat([part, part], -1).to(x.dtype) for part in (angles.cos(), angles.sin()))
        turned = q * cos + torch.cat((q[..., 4:], -q[..., :4]), -1) * sin if self.fault == "back" else rotate(q, cos, sin)
        turned = self.q_norm(turned) if self.fault == "after" else turned
        y = functional.scaled_dot_product_attention(turned, rotate(k, cos, sin), v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first, self.second = Attention("none"), Attention(fault)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        return x + self.second(x)


@pytest.mark.parametrize(
    ("fault", "at", "verdict", "cause", "said"),
    [
        ("sums", "second.q_norm", "defect", "operator-differs", "sum([-1], True), reference mean([-1], True)"),
        ("unbiased", "second.o", "defect", "operator-differs", "mm, reference addmm"),
        ("skipped", "second.q_norm", "defect", "module-missing", "the target never runs second.q_norm (Norm)"),
        ("after", "second.q_norm", "unexplained", None, "the reference never makes what mul makes"),
        ("back", "second", "unexplained", None, "cat(-1) is given what second.q_norm hands on in place of what neg makes"),
        ("later", "second", "unexplained", None, "silu is given another view of what second.mix hands on"),
        ("exchanged", "second", "unexplained", None, "another view of what second.qkv hands on"),
    ],
)
def test_what_is_given_is_said(write: Record, fault: str, at: str, verdict: str, cause: str | None, said: str) -> None:
    reference, target = write(seeded(Model("none")), X), write(seeded(Model(fault)).bfloat16(), X.bfloat16())
    comparison = compare_traces(reference, target)
    assert {(at, verdict, cause)} == {(site.partition("/")[0], *rest) for site, *rest in origins(comparison)}
    assert said in comparison.origins[0].statement


class Weights(nn.Module):
    """Weights of the two best of four: of their scores alone, or of those of all."""

    def __init__(self, of_all: bool) -> None:
        super().__init__()
        self.weight, self.of_all = nn.Parameter(torch.ones(4, 32)), of_all

    def forward(self, x: Tensor) -> Tensor:
        scores = functional.linear(x, self.weight).flatten(0, 1)
        best, places = scores.topk(2, -1)
        return scores.softmax(-1).gather(-1, places) if self.of_all else best.softmax(1)


def test_scalars_that_say_the_same_hide_no_operand(write: Record) -> None:
    comparison = compare_traces(write(seeded(Weights(False)), X), write(seeded(Weights(True)).bfloat16(), X.bfloat16()))
    assert [("/aten._softmax.default#0", "unexplained", None)] == origins(comparison)
    assert "_softmax(-1, False) is given what mm makes in place of what topk(2) makes" == comparison.origins[0].statement
