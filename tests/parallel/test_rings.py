"""Keys that go round in a ring: ranks that send to each other do not wait for each other, so their programs are run and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.rings import Ring, record, record_rank


@pytest.mark.parametrize(
    ("wrong", "receive_first", "size", "found"),
    [
        ("", False, 2, []),
        ("", True, 4, []),
        ("scale", True, 2, [("attention/aten.mul.Tensor#0", "scalar-differs")]),  # less than bfloat16 rounds
        ("merge", False, 2, [("attention/aten.logsumexp.default#0", None)]),
    ],
)
def test_ring_attention(
    wrong: str, receive_first: bool, size: int, found: list[tuple[str, str | None]], processes: Processes, tmp_path: Path
) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Ring())
    processes.run(record_rank, tmp_path / "target", Ring(receive_first, "bfloat16", wrong), size=size)
    comparison = compare_traces(reference, tmp_path / "target")
    assert found == [(origin.site, origin.cause) for origin in comparison.origins]
    rules = {comparison.texts[int(rule)] or "" for rule in comparison.sites["exact_rule"]}
    assert any(rule.startswith("meaning: the ranks' programs together") for rule in rules)
