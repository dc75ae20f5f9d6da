"""What goes wrong over ranks: found at its site, named where its cause has a name, and nothing is found elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captures.layouts import Case, Fault
from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.parallel.faults import ALONE, ATTENTION, FAULTS, IN_ROOT, OF_PROGRAMS, Found, at_layer


def origins(comparison: Comparison) -> set[Found]:
    return {(origin.site, origin.cause) for origin in comparison.origins}


@pytest.mark.parametrize(("size", "dtype", "operators"), [(4, "float32", False), (2, "bfloat16", True)])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_all_ranks_is_found(name: str, size: int, dtype: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    case, found = FAULTS[name]
    case = replace(case, dtype=dtype, faults=(Fault(name),))
    comparison = compare_traces(*record_ranks(tmp_path, case, size, processes, operators=operators))
    others = {(at_layer(site, 1), cause) for site, cause in found} if name in IN_ROOT else set()  # each layer is given it
    assert found <= origins(comparison) <= found | others
    assert comparison.defect


@pytest.mark.parametrize(("size", "dtype"), [(4, "bfloat16")])
@pytest.mark.parametrize("name", OF_PROGRAMS)
def test_what_only_programs_show_is_found(name: str, size: int, dtype: str, processes: Processes, tmp_path: Path) -> None:
    case, found, ranked = OF_PROGRAMS[name]
    comparison = compare_traces(*record_ranks(tmp_path, replace(case, dtype=dtype), size, processes, operators=True))
    assert [(*found, 1 if ranked else None)] == [(origin.site, origin.cause, origin.rank) for origin in comparison.origins]


ALIKE = {name: (replace(case, faults=(Fault(name),)), found) for name, (case, found) in FAULTS.items()}
OF_EACH_KIND = ("sum_missing", "expert_offset", "epsilon of one rank")
"""`make evaluate` holds two layouts against each other with every fault."""


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_two_layouts_tell_a_fault_of_one(name: str, processes: Processes, tmp_path: Path) -> None:
    case, found = ALIKE[name] if name in ALIKE else (OF_PROGRAMS[name][0], {OF_PROGRAMS[name][1]})
    _, reference = record_ranks(tmp_path / "two", replace(case, faults=()), 2, processes, operators=True)
    _, target = record_ranks(tmp_path / "four", replace(case, dtype="bfloat16"), 4, processes, operators=True)
    assert found == origins(compare_traces(reference, target))


@pytest.mark.parametrize(("size", "first"), [(2, 2), (4, 1)])
def test_a_stage_that_loads_the_layers_of_another_is_found(size: int, first: int, processes: Processes, tmp_path: Path) -> None:
    case = Case("pipeline", layers=4, faults=(Fault("stage_offset"),))
    comparison = compare_traces(*record_ranks(tmp_path, case, size, processes))
    assert {(f"layers.{first}", "pp-layer-offset")} == origins(comparison)


@pytest.mark.parametrize(("size", "rank"), [(2, 1), (4, 0)])
@pytest.mark.parametrize("name", ALONE)
def test_a_rank_that_is_off_alone_is_named(name: str, size: int, rank: int, processes: Processes, tmp_path: Path) -> None:
    fault, case, site = ALONE[name]
    case = replace(case, faults=(Fault(fault, rank=rank),))
    comparison = compare_traces(*record_ranks(tmp_path, case, size, processes))
    assert [(site, rank)] == [(origin.site, origin.rank) for origin in comparison.origins]


@pytest.mark.parametrize("size", [4])
def test_a_second_fault_on_one_rank_is_found_beside_one_of_all(size: int, processes: Processes, tmp_path: Path) -> None:
    faults = (Fault("sum_missing", layer=0), Fault("kernel_off", layer=1, rank=size - 1))
    comparison = compare_traces(*record_ranks(tmp_path, Case(faults=faults), size, processes, operators=True))
    assert [
        (f"{ATTENTION}.o_proj", "allreduce-missing", None),
        ("layers.1.mlp.gate_up_proj/aten.mm.default#0", "k-range-missing", size - 1),
    ] == [(origin.site, origin.cause, origin.rank) for origin in comparison.origins]
