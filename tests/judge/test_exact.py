"""What exact arithmetic found, under a profile, in the table of sites, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff.compare import compare_traces
from layerdiff.judge.exact import apply_exact, can_judge_exactly, is_defect
from layerdiff.judge.found import Found, from_json, to_json
from layerdiff.judge.local import Local
from layerdiff.judge.profiles import load_profile
from layerdiff.judge.tables import BY_THRESHOLDS, Verdict
from layerdiff.record.recorder import Recorder
from tests.judge.judging import Tables
from tests.programs import judged, opened, random, record

LOCAL = Local(
    (3, 4), "out", Verdict.UNEXPLAINED, "add(2), reference add(1)", 0.5, 1e-9, "meaning", evidence={"static": "add(2), reference add(1)"}
)
PRECISION = replace(LOCAL, verdict=Verdict.PRECISION)


@pytest.mark.parametrize(
    ("local", "strict", "relaxed"),
    [
        (LOCAL, True, True),
        (replace(LOCAL, verdict=Verdict.BROKEN), True, True),
        (replace(LOCAL, verdict=Verdict.RECONVERGES), False, False),
        (replace(PRECISION, kind="constant"), False, False),
        (replace(PRECISION, kind="tf32"), True, False),
        (replace(PRECISION, kind="quantised"), True, False),
        (replace(PRECISION, kind="accumulator"), True, True),
        (replace(PRECISION, kind="declared"), True, True),
    ],
)
def test_what_a_profile_forbids(local: Local, strict: bool, relaxed: bool) -> None:
    assert (strict, relaxed) == (is_defect(local, load_profile("strict")), is_defect(local, load_profile("relaxed")))


@pytest.mark.parametrize("local", [LOCAL, replace(LOCAL, measured=float("inf"), cause="x", kind="flip", notice=True, evidence={"n": 1})])
def test_a_finding_as_json_and_back(local: Local) -> None:
    found = Found(7, local)
    assert found == from_json(json.loads(json.dumps(to_json(found))))


@pytest.mark.parametrize(
    "change",
    [{"verdict": "perfect"}, {"calls": [1]}, {"calls": "12"}, {"evidence": []}, {"measured": "many"}, {"row": "x"}, {"verdict": None}],
)
def test_json_that_is_no_finding(change: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json({**to_json(Found(7, LOCAL)), **change})


def table(*exact: int) -> Tables:
    tables = Tables()
    for i, verdict in enumerate(exact):
        tables.site(
            f"m{i}",
            "Linear",
            exact=verdict,
            exact_measured=0.25,
            exact_allowed=1.5,
            exact_rule=tables.texts.intern("own replay"),
            verdict=8,
        )
    return tables


def applied(tables: Tables, *found: Found) -> list[Verdict]:
    sites, _ = tables.columns()
    return [Verdict(int(v)) for v in apply_exact(sites, tables.texts, found)["verdict"]]


def test_exact_verdicts_stand_in_place_of_those_of_thresholds() -> None:
    tables = table(BY_THRESHOLDS, int(Verdict.INHERITED))
    assert [Verdict(8), Verdict.INHERITED] == applied(tables)
    sites, _ = tables.columns()
    judged = apply_exact(sites, tables.texts, [])
    assert [True, False] == np.isnan(judged["measured"]).tolist()
    assert (0.25, 1.5, "own replay") == (judged["measured"][1], judged["allowed"][1], tables.texts[int(judged["rule"][1])])


def test_the_worst_finding_of_a_site_is_its_verdict_and_a_notice_none() -> None:
    tables = table(int(Verdict.INHERITED), int(Verdict.NOT_COMPARABLE), int(Verdict.IDENTICAL))
    found = [Found(0, PRECISION), Found(0, LOCAL), Found(1, PRECISION), Found(2, replace(LOCAL, notice=True))]
    assert [Verdict.UNEXPLAINED, Verdict.PRECISION, Verdict.IDENTICAL] == applied(tables, *found)
    assert [Verdict.UNEXPLAINED] == applied(table(int(Verdict.INHERITED)), Found(0, LOCAL), Found(0, PRECISION))


def test_nothing_exact_leaves_the_columns_as_they_are() -> None:
    tables = table(BY_THRESHOLDS)
    sites, _ = tables.columns()
    assert sites is apply_exact(sites, tables.texts, [])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


def test_both_traces_must_have_operators(tmp_path: Path) -> None:
    with Recorder(tmp_path / "modules.h5", model := Twice()), torch.no_grad():
        model(random(2, 4))
    operators = record(tmp_path / "operators.h5", model, random(2, 4))
    assert "" == can_judge_exactly(opened(operators, tmp_path / "modules.h5"))
    assert can_judge_exactly(opened(operators, operators)) is None
    comparison = compare_traces(operators, tmp_path / "modules.h5")
    assert {BY_THRESHOLDS} == set(comparison.sites["exact"].tolist())


def test_every_cut_is_counted_and_nothing_runs_for_one_program(tmp_path: Path) -> None:
    """Cuts: what the child is handed, what it returns, what the root returns."""
    model = Twice()
    path = record(tmp_path / "t.h5", model, random(2, 4))
    found = judged(path, path)
    assert (3, 3, [], {}) == (found.compared, found.same, found.findings, found.unjudged)
    assert 2 == len(found.judged)


def test_modules_that_were_not_asked_for_are_judged_by_thresholds(tmp_path: Path) -> None:
    whole = record(tmp_path / "r.h5", Twice(), random(2, 4))
    with Recorder(tmp_path / "t.h5", model := Twice(), operators="inner"), torch.no_grad():
        model.load_state_dict(Twice().state_dict())
        model(random(2, 4))
    comparison = compare_traces(whole, tmp_path / "t.h5")
    by_site = dict(zip((comparison.texts[int(s)] for s in comparison.sites["site"]), comparison.sites["exact"].tolist(), strict=True))
    assert BY_THRESHOLDS == by_site[""]
    assert BY_THRESHOLDS != by_site["inner"]
