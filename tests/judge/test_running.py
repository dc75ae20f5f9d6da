"""The two programs of a body, run: decisions that are followed, kept, or hang by a rounding; draws as recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from captures.kernels import Kernel
from layerdiff.judge.meaning.decisions import with_decisions
from layerdiff.judge.programs.choices import compare_decisions, decides, follow
from layerdiff.judge.programs.noise import Rounding
from layerdiff.judge.programs.setting import BodyVerdict, Setting
from layerdiff.replay.recorded import Operation
from layerdiff.trace.arguments import Arguments
from tests.programs import Prepared, prepared, random, record, seeded

X = random(4, 6)
SCORES = np.array([[0.1, 0.5, 0.3, 0.4]])


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def read(
    folder: Path, reference: nn.Module, target: nn.Module, *, below: list[Any] | None = None, x: Tensor = X, given: Tensor = X
) -> Prepared:
    return prepared(record(folder / "r.h5", reference, x), record(folder / "t.h5", target, given, below=below or []))


def out(found: Prepared, side: str, position: str = "out", **options: Any) -> np.ndarray:
    return found.programs.run(side, **options).cuts[found.body.calls[0 if side == "reference" else 1], position]


# programs


def test_both_programs_run_on_the_targets_values(tmp_path: Path) -> None:
    found = read(tmp_path, Of(lambda x: x * 2 + 1), Of(lambda x: x * 2 + 3), given=X + 10)
    assert ((X + 10).double() * 2 + 1).tolist() == out(found, "reference").tolist()
    assert ((X + 10).double() * 2 + 3).tolist() == out(found, "target").tolist()


def test_casts_between_floats_are_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, Of(lambda x: x / 3), Of(lambda x: (x.bfloat16() / 3).float()))
    assert (X.double() / 3).tolist() == out(found, "target").tolist()
    assert out(found, "reference").tolist() == out(found, "target").tolist()


def test_a_child_hands_back_what_the_target_recorded(tmp_path: Path) -> None:
    class Outer(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.inner = Of(lambda x: x * by)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + 1) - 1

    found = read(tmp_path, Outer(2.0), Outer(5.0))
    recorded = ((X + 1) * 5.0).double() - 1
    assert recorded.tolist() == out(found, "reference").tolist()
    ((pair, _),) = found.body.children.items()
    assert (X.double() + 1).tolist() == found.programs.run("reference").cuts[pair[0], "in[0]"].tolist()


def test_results_that_are_taken_stand_in_place_of_running(tmp_path: Path) -> None:
    found = read(tmp_path, Of(lambda x: (x + 1) * 2), Of(lambda x: (x + 1) * 2))
    add = found.call("reference", "aten.add.Tensor")
    taken = {add: {"out": np.full((4, 6), 7.0)}}
    assert np.full((4, 6), 14.0).tolist() == out(found, "reference", taken=taken).tolist()
    assert 7.0 == found.programs.run("reference", taken=taken, watch=True).results[add]["out"][0, 0]


def test_a_draw_is_the_targets_on_both_sides(tmp_path: Path) -> None:
    function = lambda x: x * torch.rand_like(x)  # noqa: E731
    found = read(tmp_path, Of(function), Of(function))
    assert out(found, "reference").tolist() == out(found, "target").tolist()
    drawn = found.programs.run("target", watch=True).results[found.call("target", "aten.rand_like.default")]["out"]
    assert (X.double().numpy() * drawn).tolist() == out(found, "reference").tolist()


def test_an_operator_that_cannot_be_run_is_taken_as_recorded(tmp_path: Path) -> None:
    found = read(tmp_path, Of(lambda x: x.view(torch.int32) + 1), Of(lambda x: x.view(torch.int32) + 1))
    ran = found.programs.run("target")
    assert [] == [name for call, name in ran.opaque if "add" in found.runs.target.operation(call).name]
    assert (X.view(torch.int32) + 1).tolist() == out(found, "target").tolist()


# which calls decide


def operation(name: str) -> Operation:
    return Operation(0, name, {}, {}, {}, (), False, None, True)


@pytest.mark.parametrize(
    ("name", "args", "results", "expected"),
    [
        ("aten.topk.default", (SCORES, 2), {"out[1]": np.array([[1, 3]])}, True),
        ("aten.gt.Scalar", (SCORES, 0.2), {"out": SCORES > 0.2}, True),
        ("aten.gt.Scalar", (np.array([1, 2]), 1), {"out": np.array([False, True])}, False),
        ("aten.round.default", (SCORES,), {"out": np.round(SCORES)}, True),
        ("aten._to_copy.default", (SCORES,), {"out": np.array([[0, 0, 0, 0]])}, True),
        ("aten._to_copy.default", (SCORES,), {"out": SCORES}, False),
        ("aten.mul.Tensor", (SCORES, 2.0), {"out": SCORES * 2}, False),
    ],
)
def test_what_decides(name: str, args: Any, results: Any, expected: bool) -> None:
    assert expected == decides(operation(name), Arguments(args, {}), results)


def test_a_division_decides_where_it_rounds() -> None:
    decided = [
        decides(operation("aten.div.Tensor_mode"), Arguments((SCORES, 2.0), {"rounding_mode": mode}), {}) for mode in ("floor", None)
    ]
    assert [True, False] == decided


def test_following_takes_the_recorded_indices_and_the_exact_values_there() -> None:
    own = {"out[0]": np.array([[0.5, 0.4]]), "out[1]": np.array([[1, 3]])}
    recorded = {"out[0]": np.array([[0.5, 0.298]]), "out[1]": np.array([[1, 2]])}
    found = follow(Arguments((SCORES, 2), {}), own, recorded)
    assert found is not None
    assert ([[0.5, 0.3]], [[1, 2]]) == (found["out[0]"].tolist(), found["out[1]"].tolist())


def test_following_along_another_dimension() -> None:
    operand = SCORES.T
    found = follow(
        Arguments((operand, 0), {}),
        {"out[0]": np.array([0.5]), "out[1]": np.array([1])},
        {"out[0]": np.array([0.4]), "out[1]": np.array([3])},
    )
    assert found is not None
    assert [0.4] == found["out[0]"].tolist()


def test_nothing_is_followed_where_shapes_differ_or_nothing_was_recorded() -> None:
    own = {"out[0]": np.array([[0.5]]), "out[1]": np.array([[1]])}
    assert follow(Arguments((SCORES, 1), {}), own, {}) is None
    assert follow(Arguments((SCORES, 1), {}), own, {"out[0]": np.array([[0.5, 0.4]]), "out[1]": np.array([[1, 3]])}) is None


# margins


def margin(name: str, args: tuple[Any, ...], own: dict[str, Any], other: dict[str, Any]) -> list[float] | None:
    decision = compare_decisions(operation(name), Arguments(args, {}), own, other)
    return None if decision is None else np.asarray(decision.margin).reshape(-1).tolist()


def test_the_margin_of_a_top_k_is_what_the_choices_are_worth() -> None:
    own = {"out[0]": np.array([[0.5, 0.4]]), "out[1]": np.array([[1, 3]])}
    other = {"out[0]": np.array([[0.5, 0.3]]), "out[1]": np.array([[1, 2]])}
    assert pytest.approx([0.0, 0.1]) == margin("aten.topk.default", (SCORES, 2), own, other)
    assert margin("aten.topk.default", (SCORES, 2), own, own) is None


def test_the_margin_of_an_argmax() -> None:
    assert pytest.approx([0.2]) == margin("aten.argmax.default", (SCORES, -1), {"out": np.array([1])}, {"out": np.array([2])})
    assert pytest.approx([0.4]) == margin("aten.argmax.default", (SCORES,), {"out": np.array(1)}, {"out": np.array(0)})


def test_the_margin_of_a_comparison_is_the_distance_of_its_sides() -> None:
    own = SCORES > 0.3
    other = np.array([[False, True, True, True]])
    assert pytest.approx([0, 0, 0, 0]) == margin("aten.gt.Scalar", (SCORES, 0.3), {"out": own}, {"out": other})  # a tie: 0.3 > 0.3
    other = np.array([[True, True, False, True]])
    assert pytest.approx([0.2, 0, 0, 0]) == margin("aten.gt.Scalar", (SCORES, 0.3), {"out": own}, {"out": other})


def test_the_margin_of_a_rounding_is_the_distance_to_the_half() -> None:
    x = np.array([1.25, 2.5, 3.0])
    own, other = {"out": np.array([1.0, 2.0, 3.0])}, {"out": np.array([2.0, 3.0, 3.0])}
    assert pytest.approx([0.25, 0.0, 0.0]) == margin("aten.round.default", (x,), own, other)


@pytest.mark.parametrize(
    ("name", "args", "own", "other", "expected"),
    [
        ("aten.floor.default", (np.array([1.25, 2.999, -0.25]),), [1, 2, -1], [0, 3, 0], [0.25, 0.001, 0.25]),
        ("aten.ceil.default", (np.array([1.25, 3.001]),), [2, 4], [1, 3], [0.25, 0.001]),
        ("aten.trunc.default", (np.array([0.25, -0.25, 2.999, -2.999]),), [0, 0, 2, -2], [1, -1, 3, -3], [0.75, 0.75, 0.001, 0.001]),
        ("aten._to_copy.default", (np.array([2.999, 2.5, np.nan]),), [2, 2, 0], [3, 3, 7], [0.001, 0.5, 0.0]),
        ("aten.sign.default", (np.array([0.25, -0.5, 0.0]),), [1, -1, 0], [0, 1, 1], [0.25, 0.5, 0.0]),
        ("aten.floor_divide.default", (np.array([5.999, 7.0]), 2.0), [2, 3], [3, 2], [0.001, 1.0]),
        ("aten.bucketize.Tensor", (np.array([0.5, 0.9, 1.0]), np.array([0.0, 1.0, 2.0])), [1, 1, 1], [1, 2, 2], [0.0, 0.1, 0.0]),
        ("aten.searchsorted.Tensor", (np.array([0.0, 1.0, 2.0]), np.array([0.9])), [1], [3], [1.1]),
        ("aten.any.default", (np.array([0.5, 0.0]),), True, False, [np.inf]),
    ],
)
def test_the_margin_of_a_jump_is_the_distance_to_where_the_other_result_is_right(
    name: str, args: Any, own: Any, other: Any, expected: list[float]
) -> None:
    assert pytest.approx(expected) == margin(name, args, {"out": np.array(own)}, {"out": np.array(other)})


# flips and faults


def setting(found: Prepared) -> Setting:
    return Setting(found.runs, found.programs.contents, {}, Rounding(found.runs, {}))


def chosen(apart: float) -> Callable[[Tensor], Tensor]:
    """The larger of two numbers of each row, which are `apart`."""
    return lambda x: (x[:, :2] * 0 + torch.tensor([1.0 + apart, 1.0])).argmax(-1)


@pytest.mark.parametrize(
    ("apart", "notices"),
    # allowed: 4 spreads of the operand, a rounding of fp32 of numbers about 1 on average, + 2u = 2^-23
    [(0.0, ["tie-order"]), (2.0**-23, ["flip"]), (1e-5, [])],
)
def test_a_choice_against_what_rounding_makes(tmp_path: Path, apart: float, notices: list[str]) -> None:
    model = Of(chosen(apart))
    other = Kernel(model, ("aten.argmax.default",), lambda func, args, kwargs, result: 1 - result)
    found = read(tmp_path, Of(chosen(apart)), model, below=[other])
    said = BodyVerdict()
    ours, kept = with_decisions(setting(found), found.programs, found.programs.run("target"), said)
    assert notices == [local.kind for local in said.findings]
    assert bool(kept) == (not notices)
    # followed where it hangs by a rounding: the target's 1; its own, 0, else
    assert [1 if notices else 0] * 4 == ours.cuts[found.body.calls[0], "out"].tolist()


EDGES = torch.arange(1.0, 7.0)
LESS = torch.tensor(0.7)
"""A little less in float32, where its products are whole numbers all the same."""


@pytest.mark.parametrize(
    ("reference", "target", "notices", "keeps"),
    [
        (lambda x: (x * LESS * 10 / 7).long(), lambda x: (x * LESS * 10 / 7).long() * 1, ["flip"], False),
        (lambda x: torch.bucketize(x, EDGES), lambda x: torch.bucketize(x, EDGES, right=True), [], True),
        (lambda x: x.sum().sort()[0], lambda x: x.sum().sort(descending=True)[0], [], False),
        (lambda x: x.unique(), lambda x: (x * 1).unique(), [], False),
        (lambda x: (x / 7).round(decimals=1), lambda x: (x / 7).round(decimals=2), [], False),
    ],
    ids=["what is nearly whole is cut off", "a border is of the other bucket", "one number is sorted", "what is there once", "tenths"],
)
def test_results_that_jump(tmp_path: Path, reference: Any, target: Any, notices: list[str], keeps: bool) -> None:
    found = read(tmp_path, Of(reference), Of(target), x=EDGES, given=EDGES)
    said = BodyVerdict()
    _, kept = with_decisions(setting(found), found.programs, found.programs.run("target"), said)
    assert (notices, keeps) == ([local.kind for local in said.findings], bool(kept))


def test_choices_that_agree_say_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, Of(chosen(0.5)), Of(chosen(0.5)))
    said = BodyVerdict()
    _, kept = with_decisions(setting(found), found.programs, found.programs.run("target"), said)
    assert ([], frozenset()) == (said.findings, kept)


def test_noise_is_the_same_each_time_and_of_the_size_of_the_rounding(tmp_path: Path) -> None:
    found = read(tmp_path, seeded(Of(lambda x: x * 3)), seeded(Of(lambda x: x * 3)))
    exact = out(found, "reference")
    noisy = out(found, "reference", noise=Rounding(found.runs, {"float32": "bfloat16"}).as_expected)
    again = out(found, "reference", noise=Rounding(found.runs, {"float32": "bfloat16"}).as_expected)
    assert noisy.tolist() == again.tolist()
    off = np.abs(noisy - exact) / np.abs(exact)
    assert 2.0**-10 < off.max() < 4 * 2.0**-8
