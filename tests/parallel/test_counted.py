"""Layers and experts that ranks count for themselves, of cut weights: they get their numbers in the whole model by their weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind
from tests.parallel.counted import Counted, record, record_rank
from tests.parallel.expected import placements

GRIDS = {
    "stages": Counted(stages=2, cuts=2, experts=0, norms="ones"),
    "experts": Counted(shares=2, cuts=2),
    "experts dealt": Counted(shares=2, cuts=2, dealt=True, norms="ones"),
    "stages of experts": Counted(stages=2, shares=2, norms="ones"),
    "stages of experts dealt": Counted(stages=2, shares=2, dealt=True),
    "cut experts on stages": Counted(stages=2, cuts=2, norms="ones", seed=3),
}


def compared(processes: Processes, folder: Path, case: Counted, *, operators: bool, reference: Counted | None = None) -> Comparison:
    first = case.alone if reference is None else reference
    if first.ranks == 1:
        record(0, folder / "reference", replace(first, dtype="float32"), operators)
    else:
        processes.run(record_rank, folder / "reference", replace(first, dtype="float32"), operators, size=first.ranks)
    processes.run(record_rank, folder / "target", case, operators, size=case.ranks)
    return compare_traces(folder / "reference", folder / "target")


def assert_harmless(comparison: Comparison) -> None:
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    sites = comparison.sites
    modules = (sites["kind"] == CallKind.MODULE) & (sites["target_call"] >= 0)
    assert (sites["reference_call"][modules] >= 0).all()


@pytest.mark.parametrize(("operators", "dtype"), [(False, "float32"), (True, "bfloat16")])
@pytest.mark.parametrize("name", GRIDS)
def test_every_layer_and_expert_pairs(name: str, operators: bool, dtype: str, processes: Processes, tmp_path: Path) -> None:
    assert_harmless(compared(processes, tmp_path, replace(GRIDS[name], dtype=dtype), operators=operators))


@pytest.mark.parametrize("numbers", ["local", "global"])
def test_an_expert_that_is_cut_is_placed_on_the_ranks_that_hold_it(numbers: str, processes: Processes, tmp_path: Path) -> None:
    case = Counted(shares=2, cuts=2, layers=2, numbers=numbers, dealt=True)
    found = placements(compared(processes, tmp_path, case, operators=False))
    for expert in range(case.experts):
        at = f"layers.1.body.experts.{expert}"
        assert ["sharded along 0, contiguous", "sharded along 1, contiguous"] == [found[at, "up"], found[at, "down"]]


LAYOUTS = {
    "on stages, cut": (Counted(stages=2, cuts=2), Counted(cuts=4)),
    "cut, shared out": (Counted(cuts=2, norms="ones"), Counted(shares=2, cuts=2, norms="ones")),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_nor_is_anything_found_between_two_layouts(name: str, processes: Processes, tmp_path: Path) -> None:
    first, second = LAYOUTS[name]
    assert_harmless(compared(processes, tmp_path, replace(second, dtype="bfloat16"), operators=True, reference=first))


def test_rows_that_only_the_target_routes_there_are_no_filling(processes: Processes, tmp_path: Path) -> None:
    """Rounding gives an expert that two ranks hold seven tokens in place of five."""
    comparison = compared(processes, tmp_path, Counted(stages=2, cuts=2, dtype="bfloat16"), operators=False)
    assert [] == [origin.site for origin in comparison.origins]
    given = placements(comparison)["layers.2.body.experts.1", "in[0]"]
    assert "other rows" in given


FAULTS: dict[str, tuple[Counted, set[tuple[str, str | None, int | None]]]] = {
    "stage": (Counted(stages=2, cuts=2, experts=0, norms="ones", wrong="stage"), {("layers.2", "pp-layer-offset", None)}),
    "row": (Counted(stages=2, cuts=2, wrong="row"), {("layers.3.body.experts.7", None, 3)}),
    "row, experts": (Counted(shares=2, cuts=2, norms="ones", wrong="row", layer=1), {("layers.1.body.experts.7", None, 3)}),
    "experts": (Counted(shares=2, cuts=2, wrong="experts", layer=1), {("layers.1.body", None, None)}),
    "epsilon": (Counted(shares=2, cuts=2, wrong="epsilon", layer=1), {("layers.1.norm", None, None)}),
    "scale, dealt": (Counted(stages=2, shares=2, dealt=True, wrong="scale", layer=2), {("layers.2.body.experts.7", None, None)}),
}


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_number_in_the_whole_model(name: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    case, found = FAULTS[name]
    comparison = compared(processes, tmp_path, case, operators=operators)
    if operators:
        assert {site for site, _, _ in found} == {origin.site.split("/")[0] for origin in comparison.origins}
    else:
        assert found == {(origin.site, origin.cause, origin.rank) for origin in comparison.origins}
