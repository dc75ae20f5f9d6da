"""A vocabulary that one side filled up is no fault: of ranks and of one process, whatever the filling holds and wherever it is left. A
filling that is taken for what counts is one, and no other fault hides behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from tests.parallel.vocabulary import Vocabulary, record, record_copy, record_rank

PLAIN = Vocabulary()
FILLED = Vocabulary(padded=128, filled=0.3, logits="left")


@dataclass(frozen=True)
class Runs:
    """Compares runs of two vocabularies, on so many processes each."""

    processes: Processes
    folder: Path
    operators: bool

    def compared(self, reference: Vocabulary, target: Vocabulary, size: int, reference_size: int = 1) -> Comparison:
        return compare_traces(self._run("reference", reference, reference_size), self._run("target", target, size))

    def _run(self, name: str, case: Vocabulary, size: int) -> Path:
        path = self.folder / (f"{name}.h5" if size == 1 else name)
        if size == 1:
            return record(0, 1, path, case, self.operators)
        self.processes.run(record_rank, path, case, self.operators, size=size)
        return path


@pytest.fixture(params=[False, True], ids=["modules", "operators"])
def runs(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path) -> Runs:
    return Runs(processes, tmp_path, request.param)


def assert_harmless(comparison: Comparison) -> None:
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert "results-not-compared" not in [notice.kind for notice in comparison.notices]
    assert not comparison.defect


HARMLESS = {
    "cut": (PLAIN, Vocabulary(padded=128, filled=0.3)),
    "left, bias": (replace(PLAIN, bias=True), replace(FILLED, bias=True)),
    "hidden, zeros": (PLAIN, Vocabulary(padded=128, logits="hidden")),
    "tied, other way round": (replace(FILLED, tied=True, bias=True), replace(PLAIN, tied=True, bias=True, dtype="bfloat16")),
    "hidden, other way round, chosen": (replace(FILLED, logits="hidden", chooses=True), replace(PLAIN, chooses=True)),
    "in bfloat16": (replace(PLAIN, dtype="bfloat16"), replace(FILLED, dtype="bfloat16")),
}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", HARMLESS)
def test_a_vocabulary_that_is_filled_up_is_no_fault(name: str, many: bool, runs: Runs) -> None:
    comparison = runs.compared(*HARMLESS[name], (2 if runs.operators else 4) if many else 1)
    assert_harmless(comparison)
    side = "reference" if HARMLESS[name][0].padded else "target"
    said = f"the {side} fills 97 places up to 128; the 31 at the end are compared with nothing"
    assert [said] == [notice.statement.split(": ")[1] for notice in comparison.notices if notice.kind == "layout-padded"]


@pytest.mark.parametrize("size", [4])
def test_nor_where_ranks_hold_nothing_but_filling(size: int, runs: Runs) -> None:
    assert_harmless(runs.compared(replace(PLAIN, ids=50), replace(FILLED, ids=50), size))


@pytest.mark.parametrize(("reference", "target"), [(PLAIN, FILLED), (FILLED, PLAIN)], ids=["target", "reference"])
def test_nor_between_two_layouts(reference: Vocabulary, target: Vocabulary, runs: Runs) -> None:
    assert_harmless(runs.compared(reference, target, 4, reference_size=2))


@pytest.mark.parametrize(("reference", "target"), [(PLAIN, replace(FILLED, padded=100)), (FILLED, PLAIN)], ids=["target", "reference"])
@pytest.mark.parametrize("wrong", ["", "row"])
def test_copies_of_a_model_fill_it_up_once(reference: Vocabulary, target: Vocabulary, wrong: str, runs: Runs) -> None:
    """Places of several ranks that hold the same are counted once."""
    paths = runs.folder / "r", runs.folder / "t"
    for path, case in zip(paths, (reference, replace(target, wrong=wrong)), strict=True):
        runs.processes.run(record_copy, path, case, runs.operators, size=2)
    comparison = compare_traces(*paths)
    if not wrong:
        assert_harmless(comparison)
    else:
        assert ["embed"] == [origin.site.partition("/")[0] for origin in comparison.origins] or ["embed"] == [
            notice.site for notice in comparison.notices if notice.defect
        ]
    said = "the target fills 97 places up to 100; the 3" if target.padded else "the reference fills 97 places up to 128; the 31"
    assert any(said in notice.statement for notice in comparison.notices if notice.kind == "layout-padded")


@pytest.mark.parametrize("reference_size", [1, 2])
@pytest.mark.parametrize(("reference", "target"), [(PLAIN, FILLED), (FILLED, PLAIN)], ids=["target", "reference"])
def test_every_value_opens_as_it_was_compared(reference: Vocabulary, target: Vocabulary, reference_size: int, runs: Runs) -> None:
    comparison, traces = runs.compared(reference, target, 2, reference_size), Traces()
    for pair in range(len(comparison.pairs["site"])):
        sides = open_tensor(traces, comparison, pair).sides
        figure = full(sides.reference.whole, sides.target.whole).rel_l2
        assert float(comparison.pairs["rel_l2"][pair]) == pytest.approx(figure, rel=1e-6, nan_ok=True)
    traces.close()


FAULTS = {
    "row": ({"embed"}, {"embed"}, {"embed/aten.embedding.default#0"}),
    "epsilon": ({"norm"}, {"norm/aten.add_.Scalar#0"}, {"norm/aten.add_.Scalar#0"}),
}
"""Sites by modules, by operators of ranks, and by those of one process."""


@pytest.mark.parametrize("other_way", [False, True])
@pytest.mark.parametrize("size", [4])
@pytest.mark.parametrize("fault", FAULTS)
def test_other_faults_are_found_beside_it(fault: str, size: int, other_way: bool, runs: Runs) -> None:
    reference, target = (FILLED, PLAIN) if other_way else (PLAIN, FILLED)
    comparison = runs.compared(reference, replace(target, wrong=fault), size)
    sites = {origin.site for origin in comparison.origins}
    if fault == "row" and size == 1 and not runs.operators:  # a weight that is another is said by a notice
        assert ["embed"] == [notice.site for notice in comparison.notices if notice.defect]
        assert set() == sites
    else:
        assert FAULTS[fault][0 if not runs.operators else 2 if size == 1 else 1] == sites


@pytest.mark.parametrize("size", [4])
def test_parts_that_are_filled_up_each_shift_what_follows(size: int, runs: Runs) -> None:
    head = runs.compared(PLAIN, Vocabulary(padded=128, logits="left", wrong="head_shifted"), size)
    assert [("", "parts-shifted")] == [(origin.site, origin.cause) for origin in head.origins]


@pytest.mark.parametrize("size", [2])
def test_ids_that_are_looked_up_in_the_filling_are_found(size: int, runs: Runs) -> None:
    embedding = runs.compared(PLAIN, replace(FILLED, wrong="embedding_shifted"), size)
    site = "embed/aten.embedding.default#0" if runs.operators else "embed"
    assert [site] == [origin.site for origin in embedding.origins]


@pytest.mark.parametrize("size", [1, 2])
def test_a_token_that_is_chosen_in_the_filling_is_found(size: int, runs: Runs) -> None:
    comparison = runs.compared(replace(PLAIN, chooses=True), replace(FILLED, chooses=True, filled=5.0), size)
    found = ("/aten.argmax.default#0", None) if runs.operators else ("", "vocab-padding")
    assert [found] == [(origin.site, origin.cause) for origin in comparison.origins]


# both runs fill up, with other numbers

OTHER_FILLING = {
    "cut": Vocabulary(padded=128, filled=0.3),
    "cut, tied, bias": Vocabulary(padded=128, filled=0.3, tied=True, bias=True),
    "hidden, chosen": Vocabulary(padded=128, filled=0.3, logits="hidden", chooses=True),
    "hidden, in bfloat16": Vocabulary(padded=128, filled=0.3, logits="hidden", dtype="bfloat16"),
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", OTHER_FILLING)
def test_other_numbers_that_nothing_depends_on_are_no_fault(name: str, size: int, runs: Runs) -> None:
    case = OTHER_FILLING[name]
    comparison = runs.compared(replace(case, dtype="float32"), replace(case, filled=0.2), size)
    assert_harmless(comparison)
    said = [notice.statement for notice in comparison.notices if notice.kind == "unused-rows"]
    assert 1 == len(said)
    assert "rows 97 to 127 of 128 have other numbers, and nothing depends on them" in said[0]


@pytest.mark.parametrize("filled", [0.0, 0.2])
def test_nor_where_ranks_hold_nothing_but_other_filling(filled: float, runs: Runs) -> None:
    case = Vocabulary(ids=50, padded=128, filled=0.3)
    assert_harmless(runs.compared(case, replace(case, filled=filled, dtype="bfloat16"), 4))


@pytest.mark.parametrize("fault", ["embedding_shifted", "head_shifted"])
def test_parts_that_are_filled_up_each_are_told_from_other_filling(fault: str, runs: Runs) -> None:
    case = OTHER_FILLING["cut"]
    comparison = runs.compared(case, replace(case, filled=0.2, wrong=fault), 4)
    module = fault.partition("_")[0].replace("embedding", "embed")
    assert [module] == [notice.site for notice in comparison.notices if notice.defect]
    assert {module} >= {origin.site.partition("/")[0] for origin in comparison.origins}


@pytest.mark.parametrize("size", [4])
@pytest.mark.parametrize("fault", FAULTS)
def test_other_faults_are_found_beside_other_filling(fault: str, size: int, runs: Runs) -> None:
    comparison = runs.compared(OTHER_FILLING["cut"], replace(OTHER_FILLING["cut"], filled=0.2, wrong=fault), size)
    sites = {origin.site for origin in comparison.origins}
    if fault == "row" and size == 1 and not runs.operators:
        assert ["embed"] == [notice.site for notice in comparison.notices if notice.defect]
    else:
        assert FAULTS[fault][0 if not runs.operators else 2 if size == 1 else 1] == sites


COUNT = {
    "rows that count differ too": (OTHER_FILLING["cut"], replace(OTHER_FILLING["cut"], filled=0.2, wrong="tails")),
    "they are handed on": (FILLED, replace(FILLED, filled=0.2)),
    "they are handed on, tied": (replace(FILLED, tied=True), replace(FILLED, tied=True, filled=0.2)),
    "ids name them": (PLAIN, replace(PLAIN, wrong="tails")),
    "of the head alone": (replace(PLAIN, logits="left"), replace(PLAIN, logits="left", wrong="tail")),
    "tokens are chosen there": (replace(FILLED, chooses=True, filled=5.0), replace(FILLED, chooses=True, filled=4.0)),
    "some of them are cut off": (replace(PLAIN, ids=100, padded=128), replace(PLAIN, ids=100, padded=128, wrong="tail")),
}


@pytest.mark.parametrize("size", [4])
@pytest.mark.parametrize("name", COUNT)
def test_rows_that_something_depends_on_are_weights(name: str, size: int, runs: Runs) -> None:
    comparison = runs.compared(*COUNT[name], size)
    assert ["weight-differs"] == [notice.kind for notice in comparison.notices if notice.defect]
    assert "unused-rows" not in [notice.kind for notice in comparison.notices]
