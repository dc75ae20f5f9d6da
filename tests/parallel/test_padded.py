"""A batch that is padded, over ranks: what hides padded rows excuses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel import padded


@pytest.mark.parametrize(("scores", "found"), [("in bf16", [("", "lower-precision")]), ("by einsum", [])])
def test_rounding_of_what_hides_a_padded_query_excuses_nothing(
    scores: str, found: list[tuple[str, str]], processes: Processes, tmp_path: Path
) -> None:
    processes.run(padded.record_rank, tmp_path / "two", "", size=2)
    processes.run(padded.record_rank, tmp_path / "four", scores, size=4)
    comparison = compare_traces(tmp_path / "two", tmp_path / "four")
    assert found == [(origin.site, origin.cause) for origin in comparison.origins]
