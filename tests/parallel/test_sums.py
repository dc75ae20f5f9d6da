"""A sum over ranks that is never added up is told by modules, also where what it lacks is less than rounding, or goes through a norm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.sums import Sum, record, record_rank


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("case", [Sum(), Sum(size=0.01), Sum(normed=True)], ids=["plain", "little", "normed"])
def test_a_sum_that_is_never_added_up(case: Sum, reduced: bool, ranks: int, processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", case)
    processes.run(record_rank, tmp_path / "target", replace(case, reduced=reduced, dtype="bfloat16"), size=ranks)
    found = [(origin.site, origin.cause) for origin in compare_traces(reference, tmp_path / "target").origins]
    assert found == ([] if reduced else [("layers.0.down", "allreduce-missing")])
