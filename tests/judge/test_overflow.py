"""Numbers that the reference's own dtype cannot hold: what any way of computing loses there is no fault of the way that the target goes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.judge.functions import Function, say
from tests.programs import random

GARBAGE = random(4, 64)
GARBAGE[1, -3:] = 1e30  # its squares are no float32
LARGE = torch.full((4, 64), 0.5)
LARGE[2] = 400.0  # its squares are no float16


def norm(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def otherwise(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide / torch.sqrt((wide * wide).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)).to(x.dtype)


def in_bf16(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6).bfloat16().float()


def not_widened(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)


@pytest.mark.parametrize(
    ("target", "x", "dtype", "expected"),
    [
        (otherwise, GARBAGE, torch.float32, []),
        (in_bf16, GARBAGE, torch.float32, ["precision"]),  # in the rows that nothing is wrong with
        (otherwise, LARGE, torch.float16, []),
        (not_widened, LARGE, torch.float32, []),
        (not_widened, LARGE, torch.float16, ["unexplained"]),
    ],
)
def test_what_overflows_in_the_references_way_too(
    tmp_path: Path, target: Function, x: Tensor, dtype: torch.dtype, expected: list[str]
) -> None:
    found = say(tmp_path, norm, target, x.to(dtype), {"float32": str(dtype).removeprefix("torch.")}, ours=x)
    assert expected == [local.verdict.label for local in found.findings]
