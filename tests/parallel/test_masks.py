"""Booleans, complex and whole numbers of many ranks are held against each other as floats are: others on one rank are its fault alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.masks import record, record_rank


@pytest.mark.parametrize(("turned", "operators"), [(False, False), (False, True), (True, True)])
def test_masks_and_rotations_of_each_ranks_tokens(turned: bool, operators: bool, processes: Processes, tmp_path: Path) -> None:
    one = record(0, 1, tmp_path / "one.h5", operators, turned=False, cuts=True)
    processes.run(record_rank, tmp_path / "two", operators, False, False, size=2)
    for reference, cuts in ((one, True), (tmp_path / "two", False)):
        target = tmp_path / f"four {cuts}"
        processes.run(record_rank, target, operators, turned, cuts, size=4)
        comparison = compare_traces(reference, target)
        assert [("tables", 3)] * turned == [(origin.site.partition("/")[0], origin.rank) for origin in comparison.origins]
        assert turned == comparison.defect
