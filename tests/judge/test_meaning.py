"""Meaning of one body: which figure, which call, which grade."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from captures.kernels import Kernel
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING, RATIO, BodyVerdict
from layerdiff.judge.tables import Verdict
from tests.judge.functions import Function, Of, X, say
from tests.programs import random


def names(said: BodyVerdict, path: Path) -> list[tuple[str, str]]:
    return [(local.verdict.label, str(local.evidence.get("static", ""))) for local in said.findings]


def test_nothing_runs_where_the_wiring_is_the_same(tmp_path: Path) -> None:
    said = say(tmp_path, lambda x: x * 2 + 1, lambda x: x * 2 + 1)
    assert (1, 1, []) == (said.compared, said.same, said.findings)


def test_the_figure_is_the_worst_row_over_its_root_mean_square(tmp_path: Path) -> None:
    (local,) = say(tmp_path, lambda x: x + 0.5, lambda x: x + 0.75).findings
    target = (X.double() + 0.75).numpy()
    expected = float((0.25 / np.sqrt(np.mean(np.square(target), axis=1))).max())
    assert expected == pytest.approx(local.measured, rel=1e-12)
    assert (NOTHING, Verdict.UNEXPLAINED, "add(0.75), reference add(0.5)") == (local.allowed, local.verdict, local.statement)


HARMLESS: dict[str, tuple[Function, Function]] = {
    "order of a sum": (lambda x: x.sum(-1), lambda x: x.flip(-1).sum(-1)),
    "a factor drawn out": (lambda x: (x * 3) @ x.T, lambda x: (x @ x.T) * 3),
    "one operator in place of two": (lambda x: x.softmax(-1).log(), lambda x: x.log_softmax(-1)),
    "a root and its reciprocal": (
        lambda x: x / x.pow(2).mean(-1, keepdim=True).sqrt(),
        lambda x: x * x.pow(2).mean(-1, keepdim=True).rsqrt(),
    ),
    "casts": (lambda x: x * 3, lambda x: (x.double() * 3).float()),
    "fused norm": (
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
        lambda x: functional.layer_norm(x, (6,)),
    ),
}


@pytest.mark.parametrize(("reference", "target"), HARMLESS.values(), ids=HARMLESS)
def test_another_way_to_the_same(tmp_path: Path, reference: Function, target: Function) -> None:
    assert [] == say(tmp_path, reference, target).findings


FAULTS: dict[str, tuple[Function, Function, list[tuple[str, str]]]] = {
    "a scalar": (lambda x: x * 2 + 1, lambda x: x * 3 + 1, [("unexplained", "mul(3), reference mul(2)")]),
    "a step missing": (lambda x: (x * 2).exp() + 1, lambda x: x.exp() + 1, [("unexplained", "the target lacks mul(2)")]),
    "a step more": (lambda x: x.exp() + 1, lambda x: x.exp().sqrt() + 1, [("unexplained", "the target adds sqrt")]),
    "a function": (
        functional.gelu,
        lambda x: functional.gelu(x, approximate="tanh"),
        [("unexplained", "gelu(approximate=tanh), reference gelu")],
    ),
    "two scalars": (
        lambda x: (x + 0.5) * 2 + x,
        lambda x: (x + 0.25) * 3 + x,
        [("unexplained", "add(0.25), reference add(0.5)"), ("unexplained", "mul(3), reference mul(2)")],
    ),
    "an axis": (
        lambda x: x[:, :4].softmax(-1) * 2,
        lambda x: x[:, :4].softmax(0) * 2,
        [("unexplained", "_softmax(0, False), reference _softmax(-1, False)")],
    ),
}


@pytest.mark.parametrize(("reference", "target", "expected"), FAULTS.values(), ids=FAULTS)
def test_something_else(tmp_path: Path, reference: Function, target: Function, expected: list[tuple[str, str]]) -> None:
    assert sorted(expected) == sorted(names(say(tmp_path, reference, target), tmp_path))


def test_a_fault_convicts_in_a_coarse_dtype_too(tmp_path: Path) -> None:
    said = say(tmp_path, lambda x: x + 1e-6, lambda x: x + 1e-5, X.bfloat16(), {"float32": "bfloat16"})
    assert [("unexplained", "add(1e-05), reference add(1e-06)")] == names(said, tmp_path)


def test_a_permutation_is_another_value(tmp_path: Path) -> None:
    """The same numbers in another order have the same norm: the projection tells them apart."""
    said = say(tmp_path, lambda x: x.unflatten(-1, (2, 3)) * 2, lambda x: x.unflatten(-1, (2, 3)).flip(1) * 2)
    assert 1 == len(said.findings)


def test_what_is_made_at_once_is_what_its_parts_are(tmp_path: Path) -> None:
    """A fused product is not blamed for what is computed of its parts; parts in another order are other values."""
    apart = lambda x: (x[..., :3] * 2).sigmoid() * (x[..., 3:] * 2)  # noqa: E731
    fused = lambda x: torch.stack([(x * 2)[..., :3].tanh(), (x * 2)[..., 3:]]).prod(0)  # noqa: E731
    for one, other in ((apart, fused), (fused, apart)):
        (local,) = say(tmp_path, one, other).findings
        assert "tanh" in local.statement and "sigmoid" in local.statement, local.statement
    (local,) = say(tmp_path, lambda x: (x * 2).sigmoid(), lambda x: (x.flip(-1) * 2).sigmoid()).findings
    assert "flip" in local.statement


def test_below_rounding_is_a_notice_unless_a_scalar_says_why(tmp_path: Path) -> None:
    """2^-21 is below 2^-20: a difference of steps is said, a difference of a scalar is another model."""
    (local,) = say(tmp_path, lambda x: x * 2, lambda x: x * 2 + (x * 2).abs().sign() * x * 2.0**-21).findings[:1]
    assert local.measured < 2 * BELOW_ROUNDING
    (scalar,) = say(tmp_path, lambda x: x + 3e-8, lambda x: x + 1e-8).findings
    assert scalar.measured < BELOW_ROUNDING
    assert (False, Verdict.UNEXPLAINED) == (scalar.notice, scalar.verdict)


def test_a_view_of_another_part(tmp_path: Path) -> None:
    (local,) = say(tmp_path, lambda x: x[:2] * 2, lambda x: x[2:] * 2).findings
    assert local.measured > NOTHING


def test_a_constant_that_differs_is_named(tmp_path: Path) -> None:
    multiply = lambda x, w: x * w  # noqa: E731
    (local,) = say(tmp_path, Of(multiply, scale=random(6)), Of(multiply, scale=random(6) * 1.5)).findings
    assert ("another scale", "scale") == (local.statement, local.evidence["constant"])
    assert [] == say(tmp_path, Of(multiply, scale=random(6)), Of(multiply, scale=random(6).bfloat16())).findings


def test_new_nan_is_broken(tmp_path: Path) -> None:
    (local,) = say(tmp_path, lambda x: (x - 2.9).abs().sqrt(), lambda x: (x - 2.9).sqrt()).findings
    assert Verdict.BROKEN == local.verdict
    assert float("inf") == local.measured


# coarser than the run


def rounding_between(x: Tensor) -> Tensor:
    return (x * 2).bfloat16().float() + 1


def test_a_value_that_is_rounded_on_the_way(tmp_path: Path) -> None:
    (local,) = say(tmp_path, lambda x: x * 2 + 1, rounding_between).findings
    assert (Verdict.PRECISION, "lower-precision", "declared") == (local.verdict, local.cause, local.kind)
    assert local.measured > RATIO >= local.allowed


def test_a_run_that_is_coarse_throughout_is_no_finding(tmp_path: Path) -> None:
    said = say(tmp_path, lambda x: x * 2 + 1, lambda x: x * 2 + 1, X.bfloat16(), {"float32": "bfloat16"})
    assert [] == said.findings


def test_a_recorded_value_that_no_program_explains(tmp_path: Path) -> None:
    """What an operator that cannot run did is judged by what it should have done."""
    library = torch.library.Library("meaning_tests", "DEF")
    library.define("twice(Tensor x, float by) -> Tensor")
    library.impl("twice", lambda x, by: x * by, "CPU")
    try:
        ours = lambda x: (x + 1) * 2  # noqa: E731
        right = say(tmp_path, ours, lambda x: torch.ops.meaning_tests.twice(x + 1, 2.0))
        wrong = say(tmp_path, ours, lambda x: torch.ops.meaning_tests.twice(x + 1, 2.01))
    finally:
        library._destroy()
    assert ([], 1) == (right.findings, len(right.opaque))
    assert 1 == len(wrong.findings)
    assert wrong.findings[0].measured > RATIO


@pytest.mark.parametrize("by", [1.0, 1e-4, 1e-6, 2e-7])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_what_lies_below_the_normal_numbers_is_rounded_to_their_distance(tmp_path: Path, by: float, dtype: torch.dtype) -> None:
    def twice(x: Tensor) -> Tensor:
        small = (x * by).tanh()
        return small + small + small

    dtypes = {"float32": str(dtype).removeprefix("torch.")}
    assert [] == say(tmp_path, lambda x: (x * by).tanh() * 3, twice, X.to(dtype), dtypes).findings
    model = Of(twice)
    wrong = [Kernel(model, ("aten.tanh.default",), lambda func, args, kwargs, result: result * 1.5)]
    assert say(tmp_path, lambda x: (x * by).tanh() * 3, model, X.to(dtype), dtypes, below=wrong).findings
