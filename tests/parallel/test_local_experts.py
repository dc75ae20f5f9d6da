"""Experts that are given ids as their rank counts its own: judged as one with the model's ids, and a map that is off is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.judge.pairs.expert_ids import LOCAL
from layerdiff.saved.comparison import Comparison
from tests.parallel.expected import placements
from tests.parallel.local_experts import Local, record, record_rank

MIXTURE, IDS = "0.mixture", "0.mixture.experts"


def compared(
    processes: Processes, folder: Path, case: Local, *, operators: bool, size: int = 2, reference: int = 1, cuts: int = 1
) -> Comparison:
    """`reference`: how many processes it is, which cut weights in `cuts`."""
    right = replace(case, wrong="", dtype="float32", cuts=cuts)
    if reference == 1:
        record(0, 1, folder / "reference", right, operators)
    else:
        processes.run(record_rank, folder / "reference", right, operators, size=reference)
    processes.run(record_rank, folder / "target", case, operators, size=size)
    return compare_traces(folder / "reference", folder / "target")


HARMLESS = {
    "below zero": Local(),
    "as many as there are": Local(absent=8, reduced=True),
    "mapped inside": Local(inside=True),
    "routed otherwise here and there": Local(dtype="bfloat16", hanging=True),
}


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", HARMLESS)
def test_ids_that_each_rank_counts_for_itself_are_no_fault(name: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    comparison = compared(processes, tmp_path, HARMLESS[name], operators=operators, size=2 if operators else 4)
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert not comparison.defect
    if not HARMLESS[name].inside:
        assert LOCAL == placements(comparison)[IDS, "in[1]"]
    if name == "routed otherwise here and there":
        assert "flip" in [notice.kind for notice in comparison.notices] or operators


FAULTS = {
    "from_zero": (Local(wrong="from_zero"), (MIXTURE, "ep-expert-index")),
    "next": (Local(wrong="next"), (MIXTURE, "ep-expert-index")),
    "next, sums inside, routed otherwise": (
        Local(wrong="next", reduced=True, dtype="bfloat16", hanging=True),
        (MIXTURE, "ep-expert-index"),
    ),
    "next, mapped inside": (Local(wrong="next", inside=True), (IDS, "ep-expert-index")),
    "masked": (Local(wrong="masked"), (MIXTURE, "ep-masked-id")),
    "scale": (Local(wrong="scale"), (IDS, None)),
}


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_map_that_is_off_is_named(name: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    case, found = FAULTS[name]
    comparison = compared(processes, tmp_path, case, operators=operators)
    assert [found] == [(origin.site, origin.cause) for origin in comparison.origins]


def test_a_fault_of_one_expert_shows_where_all_chose_alike(processes: Processes, tmp_path: Path) -> None:
    case = Local(wrong="scale", dtype="bfloat16", hanging=True)
    comparison = compared(processes, tmp_path, case, operators=True)
    assert [IDS] == [origin.site for origin in comparison.origins]


@dataclass(frozen=True)
class Layouts:
    """Processes of each side, and the ranks of each that cut the weights of an expert."""

    reference: int
    target: int
    reference_cuts: int = 1
    cuts: int = 1

    def compared(self, processes: Processes, folder: Path, case: Local, *, operators: bool) -> Comparison:
        target = replace(case, cuts=self.cuts)
        return compared(
            processes, folder, target, operators=operators, size=self.target, reference=self.reference, cuts=self.reference_cuts
        )


LAYOUTS = {
    "2 against 4": Layouts(2, 4),
    "4 against 2": Layouts(4, 2),
    "cut": Layouts(1, 4, cuts=2),
    "2 against 2, cut": Layouts(2, 4, cuts=2),
    "2, cut, against 2": Layouts(4, 2, reference_cuts=2),
}


@pytest.mark.parametrize(("operators", "absent", "dtype"), [(False, -1, "float32"), (False, 8, "bfloat16"), (True, 8, "bfloat16")])
@pytest.mark.parametrize("name", LAYOUTS)
def test_nor_are_ids_of_two_layouts(name: str, operators: bool, absent: int, dtype: str, processes: Processes, tmp_path: Path) -> None:
    case = Local(absent=absent, reduced=absent == 8, dtype=dtype)
    comparison = LAYOUTS[name].compared(processes, tmp_path, case, operators=operators)
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert not comparison.defect
    assert LOCAL == placements(comparison)[IDS, "in[1]"]


@pytest.mark.parametrize(
    ("wrong", "cause", "operators", "dtype"),
    [
        ("from_zero", "ep-expert-index", False, "bfloat16"),
        ("next", "ep-expert-index", True, "float32"),
        ("masked", "ep-masked-id", False, "bfloat16"),
    ],
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_map_that_is_off_is_named_between_two_layouts(
    name: str, wrong: str, cause: str, operators: bool, dtype: str, processes: Processes, tmp_path: Path
) -> None:
    comparison = LAYOUTS[name].compared(processes, tmp_path, Local(wrong=wrong, dtype=dtype), operators=operators)
    assert [(MIXTURE, cause)] == [(origin.site, origin.cause) for origin in comparison.origins]


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_fault_of_one_expert_shows_between_two_layouts(name: str, operators: bool, processes: Processes, tmp_path: Path) -> None:
    comparison = LAYOUTS[name].compared(processes, tmp_path, Local(wrong="scale"), operators=operators)
    assert [IDS] == [origin.site for origin in comparison.origins]
