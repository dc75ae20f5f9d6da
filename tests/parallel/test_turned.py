"""Ranks that have the tokens before the requests, all of them or a part each, against one process that has the requests first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.turned import record, record_rank
from tests.sequence_first import opens_as_compared


@pytest.mark.parametrize(
    ("fault", "in_parts", "operators", "dtype", "found"),
    [
        ("", True, True, torch.bfloat16, []),
        ("", True, False, torch.float32, []),
        ("epsilon", True, True, torch.bfloat16, [("layers.1.input_layernorm", "rmsnorm-eps")]),
        ("scale", False, True, torch.bfloat16, [("layers.1.self_attn", None)]),
        ("missing", False, True, torch.float32, [("layers.1.self_attn.o_proj", "allreduce-missing")]),
    ],
)
def test_each_token_is_held_against_its_own(
    fault: str,
    in_parts: bool,
    operators: bool,
    dtype: torch.dtype,
    found: list[tuple[str, str | None]],
    processes: Processes,
    tmp_path: Path,
) -> None:
    processes.run(record_rank, tmp_path / "target", operators, fault, dtype, in_parts, size=2)
    comparison = compare_traces(record(tmp_path / "reference.h5", operators), tmp_path / "target")
    assert found == [(origin.site.split("/")[0].removesuffix(".core_attention"), origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    kinds = {notice.kind for notice in comparison.notices}
    assert "results-not-compared" not in kinds and "layout-turned" in kinds
    opens_as_compared(comparison)
