"""Experts of a serving engine, shared out over ranks, against a padded batch of one process: padding is routed there, and nowhere here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.judge.tables import BY_THRESHOLDS
from layerdiff.saved.comparison import Comparison
from tests.parallel.served_experts import record, record_rank

MIXTURE = "layers.1.mlp"


def compared(processes: Processes, folder: Path, wrong: str, *, operators: bool, dtype: torch.dtype = torch.float32) -> Comparison:
    processes.run(record_rank, folder / "target", operators, wrong, dtype, size=2)
    return compare_traces(record(folder / "reference.h5", operators), folder / "target")


@pytest.mark.parametrize(("operators", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_experts_on_ranks_are_no_fault(operators: bool, dtype: torch.dtype, processes: Processes, tmp_path: Path) -> None:
    comparison = compared(processes, tmp_path, "", operators=operators, dtype=dtype)
    assert [] == [(origin.site, origin.statement) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    sites, texts = comparison.sites, comparison.texts
    judged = {texts[int(site)] for site in sites["site"][sites["exact"] != BY_THRESHOLDS]}
    assert (MIXTURE in judged) == operators


@pytest.mark.parametrize(
    ("wrong", "operators", "cause"),
    [
        ("offset", True, None),
        ("slice", False, None),
        ("sum", False, "allreduce-missing"),
    ],
)
def test_a_fault_is_found_in_its_experts(wrong: str, operators: bool, cause: str | None, processes: Processes, tmp_path: Path) -> None:
    (origin,) = compared(processes, tmp_path, wrong, operators=operators).origins
    assert origin.site.startswith(MIXTURE) and cause == origin.cause, (origin.site, origin.statement)
