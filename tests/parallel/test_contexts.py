"""A flag that says in one run what a mask says in the other is no scalar to blame: neither for what ranks do wrong, nor for one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.contexts import Context, record, record_rank

ATTENDS = "attention/aten._scaled_dot_product_flash_attention_for_cpu.default#0"


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("", []),
        ("mask", [(ATTENDS, None)]),
        ("keys", [(ATTENDS, None)]),
        ("heads", [(ATTENDS, None)]),
        ("values", [(ATTENDS, None)]),
        ("scale", [(ATTENDS, "scalar-differs")]),
    ],
)
def test_what_ranks_do_wrong_beside_a_flag(wrong: str, found: list[tuple[str, str | None]], processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Context(), True)
    processes.run(record_rank, tmp_path / "target", Context(wrong=wrong, dtype="bfloat16"), size=2)
    comparison = compare_traces(reference, tmp_path / "target")
    assert found == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [origin.site for origin in comparison.origins if origin.cause is None and "true" in origin.statement.lower()]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("wrong", ["", "scale"])
def test_a_scale_is_to_blame_beside_a_flag_that_is_not(wrong: str, flag: bool, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Context(flag), True)
    target = record(0, 1, tmp_path / "target.h5", Context(not flag, wrong=wrong), True)
    found = [(origin.site, origin.cause) for origin in compare_traces(reference, target).origins]
    assert ([(ATTENDS, "scalar-differs")] if wrong else []) == found


def test_a_rank_whose_weight_is_a_hundredth_off_is_named(processes: Processes, tmp_path: Path) -> None:
    reference = record(0, 1, tmp_path / "reference.h5", Context(), False)
    processes.run(record_rank, tmp_path / "target", Context(wrong="stale"), size=2)
    found = [(origin.site, origin.value, origin.rank) for origin in compare_traces(reference, tmp_path / "target").origins]
    assert [("attention.out", "weight", 1)] == found
