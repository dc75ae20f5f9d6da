"""Ranks that share out the requests of a batch: those that no rank runs are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.requests import COUNT, record, record_rank

WHERE = "by the ids at embed in[0]: rank 0 runs 0, 1; rank 1 runs 0, 1"
SAID = f"no rank runs requests 2, 3 of 5, counted from 0, and 0, 1 are on several, {WHERE}"


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize(
    ("shares", "singly", "said"),
    [
        ([[0, 1, 2], [3, 4]], False, []),
        ([[3, 1, 4], [2, 0]], False, []),  # by their lengths, say
        ([[0, 1, 2], [3, 4]], True, []),
        ([[0, 1, 2, 3, 4]] * 2, False, []),
        ([[0, 1], [0, 1]], False, [SAID]),  # 4 is a request like 0
        ([[0, 1], [0, 1]], True, [SAID]),
    ],
)
def test_requests_that_no_rank_runs_are_said(
    shares: list[list[int]], singly: bool, said: list[str], operators: bool, processes: Processes, tmp_path: Path
) -> None:
    reference = record(tmp_path / "reference.h5", list(range(COUNT)), operators)
    processes.run(record_rank, tmp_path / "target", shares, operators, singly, size=2)
    comparison = compare_traces(reference, tmp_path / "target")
    assert said == [notice.statement for notice in comparison.notices if notice.kind == "requests-missing"]
    assert bool(said) == comparison.defect
