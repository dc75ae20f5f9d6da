"""A pipeline that runs a batch in pieces, against one process that runs it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.microbatches import record, record_rank

RIGHT = 1e-6


@pytest.mark.parametrize(
    ("epsilon", "pieces", "operators", "found"),
    [
        (RIGHT, 2, True, []),
        (1e-2, 4, False, [("layers.2.input_layernorm", None)]),
        (1e-5, 2, True, [("layers.2.input_layernorm", "rmsnorm-eps")]),
    ],
)
def test_pieces_of_a_batch_are_held_against_it(
    epsilon: float, pieces: int, operators: bool, found: list[tuple[str, str | None]], processes: Processes, tmp_path: Path
) -> None:
    processes.run(record_rank, tmp_path / "target", pieces, operators, epsilon, size=2)
    comparison = compare_traces(record(tmp_path / "reference.h5", operators), tmp_path / "target")
    assert found == [(origin.site.split("/")[0], origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert "steps-joined" in {notice.kind for notice in comparison.notices}
