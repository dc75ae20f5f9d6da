"""Choices that rounding decides otherwise: what is run depends on them, and the tokens for which all chose alike still tell a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel import routing


@pytest.mark.parametrize(
    ("wrong", "found"),
    [("", []), ("weights", [("mixture", None)]), ("shared", [("mixture.every", "allreduce-duplicated")])],
)
def test_experts_that_are_given_other_tokens(wrong: str, found: list[tuple[str, str | None]], processes: Processes, tmp_path: Path) -> None:
    reference = routing.record(0, 1, tmp_path / "reference.h5", torch.float32)
    processes.run(routing.record_rank, tmp_path / "target", wrong, size=2)
    comparison = compare_traces(reference, tmp_path / "target")
    assert found == [(origin.site, origin.cause) for origin in comparison.origins]
    assert any(notice.kind in ("flip", "tie-order") for notice in comparison.notices)
