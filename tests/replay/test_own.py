"""Each call on its own recorded operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.kernels import Kernel
from layerdiff.arithmetic.verdict import Own
from layerdiff.judge.programs.reading import Reading
from layerdiff.replay.own import excused, leaves_unwritten, replay_own
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.reader import open_trace
from tests.programs import random, record

X = random(8, 64)


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def calls(path: Path, model: nn.Module, x: Tensor = X, **options: Any) -> tuple[Recorded, dict[str, int]]:
    """The last operator call of each name."""
    file = open_trace(record(path, model, x, **options)).files[0]
    run = Recorded(file)
    return run, {run.operation(call).name.split(".")[1]: call for call in range(len(file.calls)) if not run.is_module(call)}


def own(path: Path, function: Callable[[Tensor], Any], name: str, x: Tensor = X, wrong: Any = None, **options: Any) -> Own | None:
    model = Of(function)
    below = [] if wrong is None else [Kernel(model, (wrong[0],), lambda func, args, kwargs, result: wrong[1](result))]
    run, found = calls(path, model, x, below=below, **options)
    return replay_own(run, run.operation(found[name]), Reading(Both(run, run)))


RIGHT = ("identical", "order-consistent")
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mm": (lambda x: x @ x.T, "mm"),
    "sum": (lambda x: x.sum(-1), "sum"),
    "softmax": (lambda x: x.softmax(-1), "_softmax"),
    "layer norm": (lambda x: functional.layer_norm(x, (64,)), "native_layer_norm"),
    "gelu": (functional.gelu, "gelu"),
    "exp": (lambda x: x.exp(), "exp"),
    "add": (lambda x: x + x.flip(0), "add"),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    "without a contract": (lambda x: torch.logcumsumexp(x, -1), "logcumsumexp"),
    "top-k": (lambda x: x.topk(3).values, "topk"),
    "in place": (lambda x: x.clone().mul_(3.0), "mul_"),
    "a cast": (lambda x: x.to(torch.float16), "_to_copy"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("function", "name"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_right_kernels_are_right(tmp_path: Path, function: Callable[[Tensor], Tensor], name: str, dtype: torch.dtype) -> None:
    found = own(tmp_path / "t.h5", function, name, X.to(dtype))
    assert found is not None
    assert found.verdict in RIGHT, found.statement


def one_element(result: Any) -> Any:
    first = (result if isinstance(result, Tensor) else result[0]).clone()
    first.view(-1)[5] += 0.25
    return first if isinstance(result, Tensor) else (first, *result[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("function", "name", "operator"),
    [
        (FUNCTIONS["mm"][0], "mm", "aten.mm.default"),
        (FUNCTIONS["softmax"][0], "_softmax", "aten._softmax.default"),
        (FUNCTIONS["layer norm"][0], "native_layer_norm", "aten.native_layer_norm.default"),
        (FUNCTIONS["exp"][0], "exp", "aten.exp.default"),
        (FUNCTIONS["without a contract"][0], "logcumsumexp", "aten.logcumsumexp.default"),
        (FUNCTIONS["in place"][0], "mul_", "aten.mul_.Tensor"),
    ],
)
def test_one_wrong_element_convicts(tmp_path: Path, function: Any, name: str, operator: str, dtype: torch.dtype) -> None:
    found = own(tmp_path / "t.h5", function, name, X.to(dtype), (operator, one_element))
    assert found is not None
    assert found.verdict in ("defect", "unexplained")
    assert 5 == found.worst


def test_a_wrong_index_and_a_lost_number(tmp_path: Path) -> None:
    shifted = ("aten.argmax.default", lambda result: (result + 1) % 64)
    found = own(tmp_path / "i.h5", lambda x: x.argmax(-1), "argmax", wrong=shifted)
    assert found is not None
    assert ("defect", 8.0) == (found.verdict, found.measured)
    lost = ("aten.exp.default", lambda result: result.where(result > result.min(), torch.nan))
    found = own(tmp_path / "n.h5", lambda x: x.exp(), "exp", wrong=lost)
    assert found is not None
    assert ("broken", 1) == (found.verdict, found.evidence["informative"])


def test_what_has_no_replay(tmp_path: Path) -> None:
    assert own(tmp_path / "v.h5", lambda x: x.T + 1, "add") is not None
    run, found = calls(
        tmp_path / "t.h5", Of(lambda x: x.t().unsqueeze(0) + torch.rand_like(x.t()) + torch.empty(64, 8).fill_(0).sum().item())
    )
    reading = Reading(Both(run, run))
    for name in ("t", "unsqueeze", "rand_like", "empty", "_local_scalar_dense"):
        assert replay_own(run, run.operation(found[name]), reading) is None, name
    assert [name for name, call in found.items() if leaves_unwritten(run, run.operation(call))] == ["empty"]


def test_operands_that_were_not_recorded_are_said(tmp_path: Path) -> None:
    with pytest.raises(CannotReplay, match="statistics only"):
        own(tmp_path / "t.h5", lambda x: x + 1, "add", keep="statistics")


def test_an_operator_that_no_contract_knows_says_how_its_error_was_found(tmp_path: Path) -> None:
    found = own(tmp_path / "t.h5", *FUNCTIONS["without a contract"])
    assert found is not None
    assert ";" in found.rung


CONVICTED = Own("unexplained", "9: excess over sigma", 20.0, 1.5, 20.0, 50.0, 64, 0, None, "")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, False),
        (replace(CONVICTED, verdict="order-consistent", measured=1.0), False),
        (CONVICTED, True),
        (replace(CONVICTED, measured=5.1), True),  # a quarter of the target's is still the operator's way
        (replace(CONVICTED, measured=4.9), False),
        (replace(CONVICTED, verdict="broken", rung="2: NaN or Inf where the exact result is finite"), False),
        (replace(CONVICTED, measured=float("inf")), False),
    ],
)
def test_a_residual_that_the_reference_has_too_convicts_nobody(reference: Own | None, expected: bool) -> None:
    assert expected == excused(CONVICTED, reference)


def test_a_large_product_is_sampled_until_it_is_wrong(tmp_path: Path) -> None:
    x = random(512, 512)
    found = own(tmp_path / "r.h5", lambda x: x @ x.T, "mm", x)
    assert found is not None
    assert "order-consistent" == found.verdict
    assert found.rung.endswith("; 64 of 512 rows sampled")

    def wrong(result: Any) -> Any:
        changed = result.clone()
        changed[205, 17] += 0.25
        return changed

    found = own(tmp_path / "w.h5", lambda x: x @ x.T, "mm", x, ("aten.mm.default", wrong))
    assert found is not None
    assert found.verdict in ("defect", "unexplained")
    assert 205 * 512 + 17 == found.worst
    assert 512 * 512 == found.count
