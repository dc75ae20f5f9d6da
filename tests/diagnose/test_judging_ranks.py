"""A call that is named stands for the modules around it, up to the body that it was named in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerdiff.compare import compare_traces
from layerdiff.diagnose.judging_ranks import _on_the_way
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.tables import BY_THRESHOLDS, Verdict
from layerdiff.trace.schema import CallKind
from tests.ranks import Rank

MODULE, OPERATOR = int(CallKind.MODULE), int(CallKind.OPERATOR)


def test_modules_around_a_named_call_are_not_blamed_by_thresholds_again() -> None:
    sites = {
        "parent": np.array([-1, 0, 1, 2, 1]),
        "kind": np.array([MODULE, MODULE, MODULE, OPERATOR, MODULE]),
        "exact": np.array([BY_THRESHOLDS] * 5),
    }
    at = [Found(row, Local((0, 0), "out", Verdict.UNEXPLAINED, "", 1.0, 0.0, "meaning")) for row in range(5)]
    assert [2, 1] == list(_on_the_way(sites, at[3], {0}))
    assert [2] == list(_on_the_way(sites, at[3], {1}))
    assert [4, 1] == list(_on_the_way(sites, at[4], {0}))  # a module that is no body is said by the programs, once
    assert [] == list(_on_the_way(sites, at[0], {0}))
    sites["exact"][2] = int(Verdict.IDENTICAL)
    assert [1] == list(_on_the_way(sites, at[3], {0}))


def test_of_two_infinities_there_is_no_difference(tmp_path: Path) -> None:
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    whole[0, 0] = np.inf
    for folder, made in (("reference", [whole * 2]), ("target", [whole[:4] * 2, whole[4:] * 2.1])):
        for number, part in enumerate(made):
            rank = Rank(tmp_path / folder, number, len(made))
            rank.module("layers.0", "Linear", whole, part, {"weight": np.eye(8, dtype=np.float32)})
            rank.close()
    comparison = compare_traces(tmp_path / "reference", tmp_path / "target")  # warnings are errors here
    assert [("layers.0", 1)] == [(origin.site, origin.rank) for origin in comparison.origins]
