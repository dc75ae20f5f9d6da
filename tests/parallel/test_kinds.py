"""A module that is called once for each kind of layer, in an order that each process has of its own: words tell which call is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.kinds import KINDS, record, record_rank


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_calls_in_another_order_are_no_fault(swapped: bool, operators: bool, processes: Processes, tmp_path: Path) -> None:
    one = record(tmp_path / "one.h5", KINDS, operators)
    other = record(tmp_path / "other.h5", KINDS[::-1], operators, swapped)
    processes.run(record_rank, tmp_path / "two", 0, operators, size=2)
    processes.run(record_rank, tmp_path / "more", 1, operators, swapped, size=2)
    for reference, target in ((one, other), (one, tmp_path / "more"), (tmp_path / "two", tmp_path / "more")):
        found = {origin.site.partition("/")[0] for origin in compare_traces(reference, target).origins}
        assert found == ({""} if swapped else set())
