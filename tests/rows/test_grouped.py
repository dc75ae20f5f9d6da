"""Repeats of one fault as one group: what is counted, named, and never swallowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import BY_THRESHOLDS, Verdict
from layerdiff.report.markdown import as_markdown
from layerdiff.rows.sites.grouped import explained, grouped
from layerdiff.rows.sites.header import answer, judged_by
from layerdiff.saved.comparison import Comparison
from layerdiff.text.summary import summary
from tests.comparisons import comparison
from tests.operator_comparisons import Call, with_operators

STATIC = "add(1e-05), reference add(1e-06)"


def origin(site: str, measured: float = 1e-4, *, repeats: int = 0, **evidence: Any) -> Origin:
    shown = {"static": STATIC, **evidence} | ({"repeats": repeats, "also_at": ["x"]} if repeats else {})
    return Origin(
        0, site, Verdict.DEFECT, "out", STATIC, measured, 1e-9, "meaning", True, "aten.add.Tensor", cause="rmsnorm-eps", evidence=shown
    )


def test_repeats_are_one_group_and_others_are_not() -> None:
    norms = [origin(f"layers.{i}.norm/aten.add.Tensor#0", i * 1e-4, repeats=4) for i in (1, 2, 3)]
    last = origin("norm/aten.add.Tensor#0", repeats=4)
    other, single = origin("a/aten.add.Tensor#0", static="add(3), reference add(2)", repeats=2), origin("b/aten.add.Tensor#0")
    found = grouped([norms[0], other, *norms[1:], single, last])
    assert [(norms[0], 3), (other, 0), (single, 0)] == [(group.origin, len(group.others)) for group in found]
    assert "the same at 3 more sites: layers.*.norm (2), norm; measured up to 0.0003" == found[0].repeats()
    assert None is found[1].repeats() is found[2].repeats()
    assert {"static": STATIC} == found[0].evidence


@pytest.mark.parametrize("change", [{"verdict": Verdict.UNEXPLAINED}, {"cause": None}, {"operator": "aten.mul.Tensor"}, {"defect": False}])
def test_another_verdict_cause_or_operator_is_another_group(change: dict[str, Any]) -> None:
    one = origin("a/aten.add.Tensor#0", repeats=2)
    assert 2 == len(grouped([one, replace(one, site="b/aten.add.Tensor#0", **change)]))


def test_many_names_are_cut_and_hostile_ones_shown() -> None:
    (group,) = grouped([origin(f"m{i}\x1b[1m/aten.add.Tensor#0", repeats=20) for i in range(20)])
    said = group.repeats() or ""
    assert said.isprintable()
    assert "m6\\x1b[1m and 13 other names; measured" in said


def test_a_cause_leads_where_the_statement_is_a_bare_difference() -> None:
    assert f"rmsnorm-eps: {STATIC}" == explained(origin("a"))
    assert "said" == explained(replace(origin("a"), statement="said"))


def norms(layers: int) -> Comparison:
    """The same epsilon at the first norm of every layer."""
    call = Call("aten.add.Tensor", Verdict.DEFECT, 2.2, 8.9e-6, 6e-8, statement=STATIC, cause="rmsnorm-eps", evidence={"static": STATIC})
    made = with_operators(comparison(layers=layers), {f"model.layers.{i}.input_layernorm": [call] for i in range(layers)})
    repeated = [replace(one, evidence={**one.evidence, "repeats": layers, "also_at": []}) for one in made.origins]
    return replace(made, origins=tuple(repeated))


def test_the_summary_has_one_entry_for_a_group() -> None:
    lines = [line.plain for line in summary(norms(23))]
    start = lines.index(" 1  model.layers.0.input_layernorm/aten.add.Tensor#0  out  ✗ defect")
    assert [
        f"    rmsnorm-eps: {STATIC}",
        "    measured 8.8e-6 of 4e-6 allowed (2.20×)  by meaning: R64 against T64, per row",
        "    the same at 22 more sites: model.layers.*.input_layernorm (22); measured up to 8.8e-6",
        "",
        "look     layerdiff show reference.h5 target.h5",
        "report   layerdiff report reference.h5 target.h5 -f markdown -o issue.md",
        "bundle   layerdiff report reference.h5 target.h5 -f bundle -o bundle",
    ] == lines[start + 1 :]
    assert "✗ defect  23 origins of 1 kind: the runs differ beyond what the profile allows" in lines


def test_the_answer_counts_sites_of_the_first_kind_and_other_kinds() -> None:
    made = norms(23)
    assert "✗ defect at model.layers.0.input_layernorm/aten.add.Tensor#0 and 22 more sites" == answer(made).plain
    single = replace(made, origins=(*made.origins, origin("zz")))
    assert "and 22 more sites  ·  1 more origin" in answer(single).plain


def test_markdown_has_one_row_for_a_group_and_lists_its_sites() -> None:
    written = as_markdown(norms(23))
    assert 1 == sum(line.startswith("| `model.layers.") for line in written.splitlines())
    assert "\nThe same at 22 more sites: model.layers.&#42;.input_layernorm (22); measured up to 8.8e-6.\n" in written
    assert "- the same at `model.layers.1.input_layernorm/aten.add.Tensor#0`, " in written
    assert "`model.layers.22.input_layernorm/aten.add.Tensor#0`\n" in written


def test_thresholds_say_that_operators_would_decide() -> None:
    by = "judged by thresholds; record with --operators to decide"
    made = comparison(layers=2)
    assert by == judged_by(made)
    assert f"profile    strict, {by}" in [line.plain for line in summary(made)]
    assert f"\n- {by}\n" in as_markdown(made)
    assert "layerdiff record --operators -o target.h5" in as_markdown(made)
    exact = made.sites["exact"].copy()
    assert {BY_THRESHOLDS} == set(exact.tolist())
    exact[:] = Verdict.INHERITED
    decided = replace(made, sites={**made.sites, "exact": exact})
    assert None is judged_by(decided)
    assert "profile    strict" in [line.plain for line in summary(decided)]
    differ = [row for row, verdict in enumerate(made.sites["verdict"].tolist()) if verdict != Verdict.IDENTICAL]
    exact = exact.copy()
    exact[differ[0]] = BY_THRESHOLDS
    mixed = replace(made, sites={**made.sites, "exact": exact})
    assert f"1 of {len(differ)} calls that differ {by}" == judged_by(mixed)
