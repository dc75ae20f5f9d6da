"""A second run of the target, and a baseline: what they say, and what they never change."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from captures.kernels import PRODUCTS, Kernel, product, split_dropped
from layerdiff import Recorder, compare_traces, open_comparison
from layerdiff.judge.tables import Again, Verdict
from layerdiff.report.markdown import as_markdown
from layerdiff.saved.comparison import Comparison
from layerdiff.text.summary import summary
from layerdiff.verdicts import judge_again

Change = Callable[[Tensor, Tensor], Tensor]
PRODUCT = "first/aten.mm.default#0"


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 64, bias=False)
        self.drop = nn.Dropout(dropout)
        self.second = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.drop(torch.relu(self.first(x))))
        return y


def in_order(seed: int) -> Change:
    """A product summed one by one in an order of its own: what an atomic add does."""

    def change(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(a.shape[0], b.shape[1])
        for k in torch.randperm(a.shape[-1], generator=torch.Generator().manual_seed(seed)).tolist():
            total = total + a.float()[:, k : k + 1] * b.float()[k : k + 1]
        return total.double()

    return change


def record(path: Path, change: Change | None = None, *, operators: bool = True, model: nn.Module | None = None, seed: int = 1) -> Path:
    model = Net().eval() if model is None else model
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed))
    kernel: AbstractContextManager[Any] = nullcontext()
    if change is not None:
        kernel = Kernel(model.first, PRODUCTS, product(change))  # type: ignore[arg-type]  # a module
    with torch.no_grad(), kernel, Recorder(path, model, operators=operators):
        model(x.to(next(model.parameters()).dtype))
    return path


def verdict(comparison: Comparison, site: str) -> Verdict:
    number = comparison.texts.all().index(site)
    return Verdict(int(comparison.sites["verdict"][int(np.flatnonzero(comparison.sites["site"] == number)[0])]))


def again_at(comparison: Comparison, site: str) -> Again:
    number = comparison.texts.all().index(site)
    return Again(int(comparison.sites["again"][int(np.flatnonzero(comparison.sites["site"] == number)[0])]))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("reference") / "r.h5")


def runs(folder: Path, first: Change | None, second: Change | None, **options: Any) -> tuple[Path, Path]:
    return record(folder / "t.h5", first, **options), record(folder / "t2.h5", second, **options)


def test_a_sum_in_another_order_is_noise_where_it_is_made(reference: Path, tmp_path: Path) -> None:
    target, again = runs(tmp_path, in_order(1), in_order(2))
    assert verdict(compare_traces(reference, target), PRODUCT) in (Verdict.ORDER_CONSISTENT, Verdict.ORDER_EXACT)
    made = compare_traces(reference, target, again=again)
    assert (Verdict.NONDETERMINISTIC, Again.NOISE) == (verdict(made, PRODUCT), again_at(made, PRODUCT))
    assert (Verdict.INHERITED, Again.DIFFERS) == (verdict(made, "second/aten.mm.default#0"), again_at(made, "second/aten.mm.default#0"))
    assert Again.SAME == again_at(made, "first/aten.t.default#0")
    assert 1 == int(np.sum(made.sites["verdict"] == Verdict.NONDETERMINISTIC))
    assert ((), False, Verdict.NONDETERMINISTIC) == (made.origins, made.defect, made.verdict)
    (notice,) = [notice for notice in made.notices if notice.kind == "nondeterministic"]
    assert (PRODUCT, False) == (notice.site, notice.defect)
    calls = int(np.sum(made.sites["again"] > Again.UNKNOWN))
    differ = calls - 2 - int(np.sum(made.sites["again"] == Again.SAME)) + 2
    assert notice.statement.startswith(f"the target differs from itself between two runs at {differ} of {calls} calls, first at {PRODUCT}")


def test_without_operators_it_is_the_module(tmp_path: Path) -> None:
    reference = record(tmp_path / "r.h5", operators=False)
    target, again = runs(tmp_path, in_order(1), in_order(2), operators=False)
    made = compare_traces(reference, target, again=again)
    assert (Verdict.NONDETERMINISTIC, Verdict.INHERITED) == (verdict(made, "first"), verdict(made, "second"))
    assert not made.defect


def test_noise_excuses_no_local_error_of_both_runs(reference: Path, tmp_path: Path) -> None:
    def wrong(seed: int) -> Change:
        return lambda a, b: split_dropped(a, b) + 1e-6 * seed

    target, again = runs(tmp_path, wrong(1), wrong(2))
    alone, made = compare_traces(reference, target), compare_traces(reference, target, again=again)
    assert Again.ENTERS == again_at(made, PRODUCT)
    assert [(origin.site, origin.verdict) for origin in alone.origins] == [(origin.site, origin.verdict) for origin in made.origins]
    assert verdict(alone, PRODUCT) == verdict(made, PRODUCT) >= Verdict.UNEXPLAINED
    assert made.defect


def test_a_local_error_of_the_second_run_alone_is_an_origin(reference: Path, tmp_path: Path) -> None:
    target, again = runs(tmp_path, in_order(1), split_dropped)
    assert not compare_traces(reference, target).defect
    made = compare_traces(reference, target, again=again)
    (origin,) = made.origins
    assert (PRODUCT, True) == (origin.site, origin.defect)
    assert origin.statement.startswith("in the second run of the target: ")
    assert origin.verdict == verdict(made, PRODUCT) >= Verdict.UNEXPLAINED
    assert made.defect
    assert "no noise excuses" in next(notice.statement for notice in made.notices if notice.kind == "nondeterministic")
    read = open_comparison(made.save(tmp_path / "run.ldiff"))
    for other in (read, judge_again(read, profile="relaxed")):
        assert [PRODUCT] == [origin.site for origin in other.origins]
        assert other.defect


def test_two_runs_of_the_same_bits_say_so_and_change_nothing(reference: Path, tmp_path: Path) -> None:
    target, again = runs(tmp_path, in_order(1), in_order(1))
    alone, made = compare_traces(reference, target), compare_traces(reference, target, again=again)
    np.testing.assert_array_equal(alone.sites["verdict"], made.sites["verdict"])
    assert alone.notices == made.notices
    assert {Again.SAME} == set(made.sites["again"].tolist())
    calls = len(made.sites["site"])
    assert f"again      {again}  all {calls} calls have the same bits as in the first run" in [line.plain for line in summary(made)]


def test_other_random_numbers_are_no_noise(tmp_path: Path) -> None:
    def dropping(seed: int) -> nn.Module:
        model = Net(dropout=0.5).train()
        torch.manual_seed(seed)
        return model

    reference = record(tmp_path / "r.h5", model=dropping(1))
    target, again = record(tmp_path / "t.h5", model=dropping(1)), record(tmp_path / "t2.h5", model=dropping(2))
    made = compare_traces(reference, target, again=again)
    assert 0 == int(np.sum(made.sites["verdict"] == Verdict.NONDETERMINISTIC))
    notice = next(notice for notice in made.notices if notice.kind == "nondeterministic")
    assert "1 of them drew other random numbers, so give both runs one seed" in notice.statement


def test_a_second_run_on_other_input_is_no_second_run(reference: Path, tmp_path: Path) -> None:
    target, again = record(tmp_path / "t.h5"), record(tmp_path / "t2.h5", seed=9)
    made = compare_traces(reference, target, again=again)
    assert 0 == int(np.sum(made.sites["verdict"] == Verdict.NONDETERMINISTIC))
    (notice,) = [notice for notice in made.notices if notice.kind == "again-differs"]
    assert "(in[0])" in notice.statement and not notice.defect


def test_saved_and_judged_again_it_stays_noise(reference: Path, tmp_path: Path) -> None:
    target, again = runs(tmp_path, in_order(1), in_order(2))
    made = compare_traces(reference, target, again=again)
    read = open_comparison(made.save(tmp_path / "run.ldiff"))
    assert made.again == read.again
    assert made.to_json(sites=None) == read.to_json(sites=None)
    other = judge_again(read, profile="relaxed")
    assert Verdict.NONDETERMINISTIC == verdict(other, PRODUCT)
    assert [notice.kind for notice in made.notices] == [notice.kind for notice in other.notices]


def rel_l2(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def test_a_baseline_gives_ratios_and_no_verdict(reference: Path, tmp_path: Path) -> None:
    target = record(tmp_path / "t.h5", lambda a, b: (a @ b) * 1.02)
    baseline = record(tmp_path / "b.h5", model=Net().eval().bfloat16())
    alone, made = compare_traces(reference, target), compare_traces(reference, target, baseline=baseline)
    np.testing.assert_array_equal(alone.sites["verdict"], made.sites["verdict"])
    assert (alone.origins, alone.notices, alone.defect) == (made.origins, made.notices, made.defect)
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        right, narrow = Net().first(x), Net().bfloat16().first(x.bfloat16())
    expected = 0.02 / rel_l2(narrow, right)
    value = made.to_json(sites=None)
    schema = json.loads(files("layerdiff.saved").joinpath("comparison.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(value, allow_nan=False)))
    found = {site["site"]: site["baseline_ratio"] for site in value["sites"]}
    assert expected == pytest.approx(found[PRODUCT], rel=1e-5)
    assert str(baseline) == value["baseline"]["path"]
    assert "baseline" not in alone.to_json() and "baseline_ratio" not in alone.to_json()["sites"][0]
    line = next(line.plain for line in summary(made) if line.plain.startswith("baseline"))
    assert f"{baseline}  the target is " in line and "in what the model returns, at most " in line
    written = as_markdown(made)
    assert "### Beside the baseline" in written and f"--baseline {baseline}" in written
    read = open_comparison(made.save(tmp_path / "run.ldiff"))
    assert read.to_json(sites=None) == value


def test_a_second_run_in_json_is_as_the_schema_has_it(reference: Path, tmp_path: Path) -> None:
    target, again = runs(tmp_path, in_order(1), in_order(2))
    value = compare_traces(reference, target, again=again).to_json()
    schema = json.loads(files("layerdiff.saved").joinpath("comparison.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(value, allow_nan=False)))
    assert str(again) == value["again"]["path"]
    assert 0 < value["again"]["differ"] < value["again"]["calls"]
    noisy = next(site for site in value["sites"] if site["site"] == PRODUCT)
    assert ("nondeterministic", None) == (noisy["verdict"], noisy["allowed"])
    assert 0 < noisy["measured"] < 1e-6
