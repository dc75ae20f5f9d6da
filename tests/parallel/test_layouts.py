"""Layouts without a fault, against one process: nothing is found, and every value is placed as it lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.expected import LAYOUTS, expected, placements, rules


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_is_found_and_every_value_is_placed(name: str, size: int, dtype: str, processes: Processes, tmp_path: Path) -> None:
    comparison = compare_traces(*record_ranks(tmp_path, replace(LAYOUTS[name], dtype=dtype), size, processes))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert not comparison.defect
    found, made = placements(comparison), rules(name, size)
    assert len(found) > 80
    assert {key: expected(made, *key) for key in found} == found


@pytest.mark.parametrize("name", ["tensor", "sequence", "context", "experts", "pipeline"])
def test_a_coarser_target_is_placed_too(name: str, processes: Processes, tmp_path: Path) -> None:
    case = replace(LAYOUTS[name], dtype="bfloat16")
    comparison = compare_traces(*record_ranks(tmp_path, case, 2, processes, reference=LAYOUTS[name].alone))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    found, made = placements(comparison), rules(name, 2)
    assert {key: expected(made, *key) for key in found} == found


@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_is_found_by_operators_either(name: str, processes: Processes, tmp_path: Path) -> None:
    comparison = compare_traces(*record_ranks(tmp_path, replace(LAYOUTS[name], dtype="bfloat16"), 2, processes, operators=True))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert not comparison.defect


PAIRS = [(name, name) for name in LAYOUTS] + [("tensor", "sequence"), ("sequence", "tensor")]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_nothing_is_found_between_two_layouts(first: str, second: str, processes: Processes, tmp_path: Path) -> None:
    _, reference = record_ranks(tmp_path / "two", LAYOUTS[first], 2, processes, operators=True)
    _, target = record_ranks(tmp_path / "four", replace(LAYOUTS[second], dtype="bfloat16"), 4, processes, operators=True)
    comparison = compare_traces(reference, target)
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]


@pytest.mark.parametrize("name", ["tensor", "context", "exchanged"])
def test_nothing_is_found_between_two_runs_of_one_layout(name: str, processes: Processes, tmp_path: Path) -> None:
    _, reference = record_ranks(tmp_path / "one", LAYOUTS[name], 2, processes, operators=True)
    _, target = record_ranks(tmp_path / "other", replace(LAYOUTS[name], dtype="bfloat16"), 2, processes, operators=True)
    assert [] == [(origin.site, origin.cause) for origin in compare_traces(reference, target).origins]


@pytest.mark.parametrize("name", ["tensor", "context"])
def test_programs_that_part_and_meet_again_are_no_fault(name: str, processes: Processes, tmp_path: Path) -> None:
    """Queries are scaled before the module that scales the scores in the reference: what it is handed and makes means something else."""
    case = replace(LAYOUTS[name], scaled_query=True, dtype="bfloat16")
    comparison = compare_traces(*record_ranks(tmp_path, case, 2, processes, reference=LAYOUTS[name].alone, operators=True))
    assert [] == [(origin.site, origin.statement) for origin in comparison.origins]
