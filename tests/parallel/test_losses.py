"""The cross entropy of a vocabulary that lies on all ranks: the largest of a part is no choice that the whole would make, and what is never
masked or reduced is named, not the detours that ranks take besides.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.losses import Case, record, record_rank


@pytest.mark.parametrize(
    ("wrong", "size", "found"),
    [
        ("", 2, []),
        ("", 4, []),
        ("embedding", 2, [("embedding/aten.embedding.default#0", None)]),
        ("label", 2, [("loss/aten.gather.default#0", None)]),
        ("largest", 2, [("loss/aten.max.dim#0", "allreduce-missing")]),
        ("sum", 4, [("loss/aten.sum.dim_IntList#0", "allreduce-missing")]),
        ("token", 2, [("loss/aten.max.dim#1", None)]),  # the largest of all ranks is found, where it is counts from each rank's first
    ],
)
def test_a_loss_over_ranks(wrong: str, size: int, found: list[tuple[str, str | None]], processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Case())
    processes.run(record_rank, tmp_path / "target", Case("bfloat16", wrong), size=size)
    comparison = compare_traces(reference, tmp_path / "target")
    assert found == [(origin.site, origin.cause) for origin in comparison.origins]
    assert bool(wrong) == comparison.defect
    if wrong in ("embedding", "label"):
        assert "run no masked_fill, which the reference hands it to" in comparison.origins[0].statement
    if "allreduce-missing" in str(found):
        assert f"the {wrong} of all ranks' is the reference's" in comparison.origins[0].statement


def test_a_sum_that_one_of_two_layouts_lacks(processes: Processes, tmp_path: Path) -> None:
    processes.run(record_rank, tmp_path / "two", Case(), size=2)
    processes.run(record_rank, tmp_path / "four", Case("bfloat16", "sum"), size=4)
    comparison = compare_traces(tmp_path / "two", tmp_path / "four")
    assert [("loss/aten.sum.dim_IntList#0", "allreduce-missing")] == [(origin.site, origin.cause) for origin in comparison.origins]
