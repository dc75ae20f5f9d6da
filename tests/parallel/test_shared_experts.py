"""What is added once too often, or never reduced, is told where it lies in another form than what it is added to: tokens in a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.shared_experts import Shared, record, record_rank


@pytest.mark.parametrize(("operators", "dtype"), [(False, "float32"), (True, "bfloat16")])
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_shared_expert(cut: bool, wrong: bool, operators: bool, dtype: str, processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Shared(), operators)
    processes.run(record_rank, tmp_path / "target", Shared(cut, wrong, dtype), operators, size=2)
    found = [(origin.site, origin.cause) for origin in compare_traces(reference, tmp_path / "target").origins]
    assert ([("mlp.shared", "allreduce-missing" if cut else "allreduce-duplicated")] if wrong else []) == found


@pytest.mark.parametrize("operators", [False, True])
def test_what_is_added_up_again_inside_a_module(operators: bool, processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Shared(), operators)
    processes.run(record_rank, tmp_path / "target", Shared(cut=True, dtype="bfloat16", sums=2), operators, size=2)
    found = [(origin.site, origin.cause) for origin in compare_traces(reference, tmp_path / "target").origins]
    assert [("mlp", "allreduce-duplicated")] == found
