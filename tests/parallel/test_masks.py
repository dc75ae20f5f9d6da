"""Booleans and complex numbers cross between modules of many ranks as floats do: those of one rank that are others are its fault alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.masks import record, record_rank


@pytest.mark.parametrize(("turned", "operators"), [(False, False), (False, True), (True, True)])
def test_masks_and_rotations_of_each_ranks_tokens(turned: bool, operators: bool, processes: Processes, tmp_path: Path) -> None:
    one = record(0, 1, tmp_path / "one.h5", operators, turned=False)
    processes.run(record_rank, tmp_path / "two", operators, size=2)
    processes.run(record_rank, tmp_path / "four", operators, turned, size=4)
    for reference in (one, tmp_path / "two"):
        comparison = compare_traces(reference, tmp_path / "four")
        assert [("tables", 3)] * turned == [(origin.site.partition("/")[0], origin.rank) for origin in comparison.origins]
        assert turned == comparison.defect
