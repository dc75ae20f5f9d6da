"""Origins and notices made of what exact arithmetic found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layerdiff.diagnose.programs import explained_weights, notices_of_programs, origins_of_programs
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import Verdict
from tests.judge.judging import Tables

RULE = "meaning: both programs on the target's values"
LOCAL = Local((0, 0), "out", Verdict.UNEXPLAINED, "computes something else", 0.5, 1e-9, RULE, evidence={"meaning": 0.5})
STRICT = Profile("strict")


def table(type: str = "LlamaRMSNorm", sites: int = 2, steps: int = 1) -> Tables:
    """`sites` modules m0, m1, ... with an `add` each, in every step. Rows: module, operator, module, operator, ..."""
    tables = Tables()
    for step in range(steps):
        for i in range(sites):
            parent = tables.site(f"m{i}", type, step=step)
            tables.site(f"m{i}/aten.add.Tensor#0", "", parent, operator=tables.texts.intern("aten.add.Tensor"), step=step)
    return tables


def origins(tables: Tables, *found: Found) -> Any:
    sites, _ = tables.columns()
    return origins_of_programs(found, sites, tables.texts, STRICT)


def static(text: str, **more: Any) -> Local:
    return replace(LOCAL, statement=text, evidence={"static": text, **more})


@pytest.mark.parametrize(
    ("type", "local", "cause", "verdict"),
    [
        ("LlamaRMSNorm", static("add(1e-05), reference add(1e-06)"), "rmsnorm-eps", Verdict.DEFECT),
        ("LayerNorm", static("add(1e-05), reference add(1e-06)"), "norm-eps", Verdict.DEFECT),
        ("LlamaRMSNorm", static("add(1.0), reference add(0.5)"), "scalar-differs", Verdict.DEFECT),
        ("Attention", static("mul(1.0), reference mul(0.125)"), "scalar-differs", Verdict.DEFECT),
        ("Attention", static("add(1e-05), reference add(1e-06)"), "scalar-differs", Verdict.DEFECT),
        ("LlamaRMSNorm", static("add_(1e-05), reference add(1e-06)"), "rmsnorm-eps", Verdict.DEFECT),
        ("LlamaRMSNorm", static("mul(1e-05), reference mul(1e-06)"), "scalar-differs", Verdict.DEFECT),
        (
            "LayerNorm",
            static("native_layer_norm([8], 1e-05), reference add(1e-06)", number={"reference": 1e-6, "target": 1e-5}),
            "norm-eps",
            Verdict.DEFECT,
        ),
        (
            "MLP",
            static("add(2), reference 1.0 in silu", number={"reference": 1.0, "target": 2.0}),
            "scalar-differs",
            Verdict.DEFECT,
        ),
        ("MLP", static("sigmoid, reference silu"), "operator-differs", Verdict.DEFECT),
        ("Attention", static("the target lacks mul(0.125)"), "operator-missing", Verdict.DEFECT),
        ("Attention", static("the target adds mul(0.125)"), "operator-added", Verdict.DEFECT),
        ("Attention", static("the target never runs norm (RMSNorm)", missing="module"), "module-missing", Verdict.DEFECT),
        ("Attention", static("the target never makes what mul makes"), None, Verdict.UNEXPLAINED),
        ("Attention", static("the reference never makes what mul(0.5) makes"), None, Verdict.UNEXPLAINED),
        ("Attention", replace(LOCAL, evidence={"constant": "w"}), "weight-differs", Verdict.DEFECT),
        ("Attention", LOCAL, None, Verdict.UNEXPLAINED),
        ("Attention", replace(static("add(1), reference add(2)"), verdict=Verdict.RECONVERGES), None, Verdict.RECONVERGES),
        ("Attention", replace(LOCAL, verdict=Verdict.PRECISION, cause="tf32"), "tf32", Verdict.PRECISION),
    ],
)
def test_the_cause_is_the_static_difference(type: str, local: Local, cause: str | None, verdict: Verdict) -> None:
    (origin,) = origins(table(type, 1), Found(1, local))
    assert (cause, verdict, "m0/aten.add.Tensor#0", "aten.add.Tensor") == (origin.cause, origin.verdict, origin.site, origin.operator)


def test_a_fault_in_every_step_is_one_origin() -> None:
    found = [Found(1, LOCAL), Found(3, replace(LOCAL, measured=0.75)), Found(5, LOCAL)]
    (origin,) = origins(table(sites=1, steps=3), *found)
    assert (0.75, 3, [0, 1, 2]) == (origin.measured, origin.evidence["calls"], origin.evidence["steps"])


def test_the_same_fault_elsewhere_is_said_with_each_of_its_sites() -> None:
    text = "add(1e-05), reference add(1e-06)"
    first, second = origins(table(), Found(1, static(text)), Found(3, static(text)))
    assert (2, ["m1/aten.add.Tensor#0"]) == (first.evidence["repeats"], first.evidence["also_at"])
    assert ["m0/aten.add.Tensor#0"] == second.evidence["also_at"]
    first, second = origins(table(), Found(1, static(text)), Found(3, static("add(1e-04), reference add(1e-06)")))
    assert "repeats" not in first.evidence | second.evidence


def test_two_kinds_of_findings_at_one_site_are_two_origins() -> None:
    own = replace(LOCAL, rule="own replay, 8: deterministic bound", measured=3.0)
    source = replace(LOCAL, value="source.in[1]", rule="sources")
    assert {RULE, own.rule, "sources"} == {origin.rule for origin in origins(table(), Found(1, LOCAL), Found(1, own), Found(1, source))}


def test_origins_stand_in_the_order_of_the_run() -> None:
    assert ["m0/aten.add.Tensor#0", "m1/aten.add.Tensor#0"] == [o.site for o in origins(table(), Found(3, LOCAL), Found(1, LOCAL))]


def test_a_notice_is_no_origin_and_is_said_once_a_site() -> None:
    flip = replace(LOCAL, kind="flip", statement="topk decides otherwise", notice=True)
    tables = table(sites=1, steps=2)
    found = [Found(1, flip), Found(3, flip), Found(1, replace(flip, kind="tie-order"))]
    sites, _ = tables.columns()
    assert () == origins(tables, *found)
    said = notices_of_programs(found, sites, tables.texts)
    assert ["flip", "tie-order"] == [notice.kind for notice in said]
    assert (False, "m0/aten.add.Tensor#0") == (said[0].defect, said[0].site)


def test_weights_in_less_precision_are_explained() -> None:
    rounded = replace(LOCAL, rule="constants", verdict=Verdict.PRECISION, evidence={"constant": "w"})
    assert {"w"} == explained_weights([Found(1, rounded), Found(1, replace(LOCAL, evidence={"constant": "v"}))])
