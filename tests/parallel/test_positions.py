"""A rank that counts its positions from zero holds the first rank's table: nobody could put that together, and all that came after was
excused by it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.positions import Positions, record, record_rank


@pytest.mark.parametrize(("operators", "dtype", "size"), [(False, "float32", 2), (True, "bfloat16", 4)])
@pytest.mark.parametrize("wrong", [False, True])
def test_positions_of_a_rank(wrong: bool, operators: bool, dtype: str, size: int, processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Positions(), operators)
    processes.run(record_rank, tmp_path / "target", Positions(dtype, wrong), operators, size=size)
    comparison = compare_traces(reference, tmp_path / "target")
    assert ([("turned", "cp-position-ids")] if wrong else []) == [(origin.site, origin.cause) for origin in comparison.origins]
    if wrong:
        assert f"rank 1 is given in[1] of places 0 to {16 // size - 1}" in comparison.origins[0].statement
