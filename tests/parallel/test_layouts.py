"""Layouts without a fault, against one process: nothing is found, and every value is placed as it lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captures.layouts import Case, Fault
from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff.compare import compare_traces
from tests.parallel.expected import GRIDS, LAYOUTS, PARTIAL, along, expected, placements, rules


@pytest.mark.parametrize(("size", "dtype"), [(2, "bfloat16"), (4, "float32")])
@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_is_found_and_every_value_is_placed(name: str, size: int, dtype: str, processes: Processes, tmp_path: Path) -> None:
    comparison = compare_traces(*record_ranks(tmp_path, replace(LAYOUTS[name], dtype=dtype), size, processes))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert not comparison.defect
    found, made = placements(comparison), rules(name, size)
    assert len(found) > 80
    assert {key: expected(made, *key) for key in found} == found


@pytest.mark.parametrize("name", ["sequence", "experts"])
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


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", ["tensor", "sequence", "experts"])
def test_a_rank_without_a_file_is_said_and_no_fault(name: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    reference, target = record_ranks(tmp_path, LAYOUTS[name], 4, processes, operators=operators)
    (target / "rank00003.h5").unlink()
    comparison = compare_traces(reference, target)
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert "ranks-missing" in [notice.kind for notice in comparison.notices]


@pytest.mark.parametrize("seed", range(2))
def test_experts_whose_sum_is_handed_on_are_no_fault(seed: int, processes: Processes, tmp_path: Path) -> None:
    """Every rank then holds something for every token, whichever experts it has."""
    case = replace(LAYOUTS["experts"], reduced_inside=True, seed=seed)
    comparison = compare_traces(*record_ranks(tmp_path, case, 2, processes))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]


PAIRS = [("tensor", "sequence"), ("context", "context"), ("exchanged", "exchanged"), ("pipeline", "pipeline")]
"""`make evaluate` holds all against each other."""


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_nothing_is_found_between_two_layouts(first: str, second: str, processes: Processes, tmp_path: Path) -> None:
    _, reference = record_ranks(tmp_path / "two", LAYOUTS[first], 2, processes, operators=True)
    _, target = record_ranks(tmp_path / "four", replace(LAYOUTS[second], dtype="bfloat16"), 4, processes, operators=True)
    comparison = compare_traces(reference, target)
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]


@pytest.mark.parametrize("name", ["tensor", "exchanged"])
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


# ranks that form a grid

GROUPS = "(groups 0, 1 | 2, 3)"
OF_GRID = {
    ("replicas", "layers.0.mlp.act_fn", "out"): f"groups sharded along 0, contiguous; inside, sharded along 2, contiguous {GROUPS}",
    ("replicas", "layers.0.self_attn.o_proj", "out"): "groups sharded along 0, contiguous; inside, the ranks of each group add up to it "
    + GROUPS,
    ("replicas", "layers.0.mlp.gate_up_proj", "weight"): "each group the whole; inside, sharded along 0, 2 blocks, each contiguous "
    + GROUPS,
    ("replicas", "layers.0", "out"): "sharded along 0, contiguous, each part on 2 ranks in a row",
    ("stages", "layers.3.self_attn.o_proj", "out"): PARTIAL,
    ("stages", "layers.1.mlp.act_fn", "out"): along(2),
}


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", GRIDS)
def test_ranks_in_a_grid(name: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    case = replace(GRIDS[name], dtype="bfloat16" if operators else "float32")
    comparison = compare_traces(*record_ranks(tmp_path, case, 4, processes, operators=operators))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    found = placements(comparison)
    assert {key: where for key, where in OF_GRID.items() if key[0] == name} == {key: found[key[1:]] for key in OF_GRID if key[0] == name}


@pytest.mark.parametrize("fault", ["epsilon", "sum_missing"])
@pytest.mark.parametrize("name", GRIDS)
def test_a_fault_of_ranks_in_a_grid(name: str, fault: str, processes: Processes, tmp_path: Path) -> None:
    case = replace(GRIDS[name], dtype="bfloat16", faults=(Fault(fault, layer=1),))
    comparison = compare_traces(*record_ranks(tmp_path, case, 4, processes, operators=True))
    found = {
        "epsilon": ("layers.1.post_attention_layernorm/aten.add.Tensor#0", "rmsnorm-eps"),
        "sum_missing": ("layers.1.self_attn.o_proj", "allreduce-missing"),
    }
    assert [found[fault]] == [(origin.site, origin.cause) for origin in comparison.origins]


def test_a_rank_of_a_grid_does_not_hide_behind_one_that_holds_the_same(processes: Processes, tmp_path: Path) -> None:
    case = replace(GRIDS["replicas"], faults=(Fault("weight_off", layer=1, rank=3),))
    comparison = compare_traces(*record_ranks(tmp_path, case, 4, processes))
    assert [("layers.1.self_attn.o_proj", 3)] == [(origin.site, origin.rank) for origin in comparison.origins]


@pytest.mark.parametrize(("operators", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_replicas_of_a_pipeline(operators: bool, dtype: str, processes: Processes, tmp_path: Path) -> None:
    """What a stage hands on lies on its ranks alone, and how it lies there says nothing of all ranks."""
    case = Case(replicas=2, stages=2, layers=4, dtype=dtype)
    comparison = compare_traces(*record_ranks(tmp_path / "right", case, 4, processes, operators=operators))
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert not comparison.defect
    assert along(0) == placements(comparison)["layers.3", "out"]
    wrong = replace(case, faults=(Fault("weight_off", layer=1, rank=3),))
    found = compare_traces(*record_ranks(tmp_path / "wrong", wrong, 4, processes, operators=operators))
    assert [("layers.3.self_attn.o_proj", 3)] == [(origin.site, origin.rank) for origin in found.origins]
