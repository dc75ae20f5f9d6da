"""A comparison in the making says nothing that it takes back later: whoever stops it keeps what is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerdiff.compare import compare_in_steps
from layerdiff.judge.tables import BY_THRESHOLDS, Verdict
from layerdiff.judge.unfinished import Unfinished
from layerdiff.saved.comparison import Comparison
from layerdiff.verdicts import judge_again

CAPTURES = Path(__file__).parents[1] / "captures"


def states(case: str) -> tuple[list[Comparison], Comparison]:
    folder = CAPTURES / case
    target = next(path for path in (folder / "target", folder / "target.h5") if path.exists())
    *states, last = (step.comparison for step in compare_in_steps(folder / "reference.h5", target, snapshot_seconds=0.0))
    return states, last


@pytest.mark.parametrize("case", ["missing_all_reduce", "clean_tp4_bf16", "epsilon"])
def test_no_state_says_what_a_later_one_withdraws(case: str) -> None:
    before, last = states(case)
    final_notices = {(notice.kind, notice.statement) for notice in last.notices}
    final_origins = {(origin.site, origin.rank) for origin in last.origins}
    for state in before:
        assert {(notice.kind, notice.statement) for notice in state.notices} <= final_notices
        assert {(origin.site, origin.rank) for origin in state.origins} <= final_origins
        assert not state.defect or last.defect


def test_ranks_that_are_not_put_together_are_no_other_weights() -> None:
    before, last = states("missing_all_reduce")
    assert not any(notice.kind == "weight-differs" for state in before for notice in state.notices)
    assert not before[0].defect and last.defect


def test_stopped_on_the_way_it_stays_so_under_another_profile() -> None:
    folder = CAPTURES / "int8_weights"
    steps = compare_in_steps(folder / "reference.h5", folder / "target.h5", snapshot_seconds=0.0)
    measured = next(step for step in steps if step.done >= step.total // 2).comparison  # its programs are not judged yet
    steps.close()  # type: ignore[attr-defined]  # it is a generator
    assert Verdict.PENDING in measured.sites["verdict"] and not measured.defect
    again = judge_again(measured, profile="strict")
    assert Verdict.PENDING in again.sites["verdict"] and not again.defect


def test_what_waits() -> None:
    parent = np.array([-1, 0, 1, 0], np.int64)
    verdict = np.array([Verdict.UNEXPLAINED, Verdict.BROKEN, Verdict.PENDING, Verdict.UNEXPLAINED], np.uint8)
    sites = {"verdict": verdict, "parent": parent, "exact": np.full(4, BY_THRESHOLDS, np.uint8)}
    nowhere = np.zeros(4, bool)
    assert [True, True, False, False] == Unfinished(False, nowhere).open_rows(sites).tolist()
    assert [True, True, False, True] == Unfinished(False, ~nowhere).open_rows(sites).tolist()
    judged = {**sites, "exact": np.full(4, Verdict.UNEXPLAINED, np.uint8)}
    assert not Unfinished(False, ~nowhere).open_rows(judged).any()


@pytest.mark.parametrize("case", ["missing_all_reduce", "epsilon"])
def test_of_how_much_is_known_from_the_start(case: str) -> None:
    folder = CAPTURES / case
    target = next(path for path in (folder / "target", folder / "target.h5") if path.exists())
    steps = [(step.done, step.total) for step in compare_in_steps(folder / "reference.h5", target, snapshot_seconds=0.0)]
    assert 1 == len({total for _, total in steps})
    assert steps == sorted(steps) and steps[-1][0] == steps[-1][1]
