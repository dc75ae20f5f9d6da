"""The lines around the table, and what is known of one site."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layerdiff.diagnose.findings import Notice
from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.detail import detail
from layerdiff.rows.sites.header import about, answer, title
from layerdiff.rows.sites.table import Rows
from tests.comparisons import comparison, layer

NORM = "model.layers.3.input_layernorm"
ACT = "model.layers.20.mlp.act_fn"


@pytest.mark.parametrize("width", [24, 59, 60, 80, 99, 100, 120, 200])
def test_the_title_is_as_wide_as_the_screen(width: int) -> None:
    assert title(comparison(), width).width in ({width} if width >= 60 else range(width, 60))


def test_both_runs_are_named_whole_before_the_program_is() -> None:
    made = comparison()

    def shown(reference: str, target: str, width: int) -> str:
        assert made.reference is not None
        named = replace(made, reference=replace(made.reference, label=reference), target=replace(made.target, label=target))
        return title(named, width).plain

    assert shown("llama fp32", "llama bf16", 120).startswith(" layerdiff   reference llama fp32 ⇄ target llama bf16")
    assert shown("llama fp32", "llama bf16", 80).startswith(" layerdiff  llama fp32 ⇄ llama bf16 ")
    assert shown("SmallLlama float32 cpu", "SmallLlama float32 npu", 80).startswith(" SmallLlama float32 cpu ⇄ SmallLlama float32 npu ")


def test_the_answer_names_the_first_origin_and_the_worst() -> None:
    one = comparison(faults={NORM: Verdict.DEFECT})
    two = comparison(faults={NORM: Verdict.DEFECT, ACT: Verdict.BROKEN}, notices=[Notice("dtype-mismatch", "bf16 against fp32")])
    assert answer(one).plain == f"✗ defect at {NORM}"
    assert answer(two).plain == f"✗ defect at {NORM}  ·  1 more origin, the worst broken  ·  1 notice"


def test_the_answer_without_an_origin() -> None:
    """Embedding, rotary table and three layers of 13 calls have the same bits: 41 of 422."""
    assert answer(comparison()).plain == "≈ No defect: all 381 differences are within bfloat16 rounding"
    assert answer(comparison(pending=True)).plain == "· no origin so far: not all is compared"


def test_a_site_that_is_a_number_says_its_class() -> None:
    made = comparison(faults={ACT: Verdict.DEFECT}, rename={ACT: "net.1"})
    assert answer(made).plain == "✗ defect at net.1 (SiLU)"


def test_environments_are_readable() -> None:
    made = comparison()
    flags = {"cudnn_benchmark": False, "seed": None, "devices": [{"type": "cuda", "name": "x"}], "ranks": [0, 1], "variables": {}}
    lines = [line.plain for line in about(replace(made, target=replace(made.target, environment=flags)))]
    at = lines.index("  cudnn_benchmark  no")
    assert lines[at:] == [
        "  cudnn_benchmark  no",
        "  seed  none",
        "  devices  ",
        "    type  cuda",
        "    name  x",
        "  ranks  0, 1",
        "  variables  none",
    ]


def test_a_notice_that_is_a_defect_comes_before_any_layer() -> None:
    told = comparison(faults={NORM: Verdict.DEFECT}, notices=[Notice("input-differs", "token 3 differs", None, True)])
    assert answer(told).plain == f"✗ input-differs  token 3 differs  ·  ✗ defect at {NORM}"


def test_mostly_unpaired_leads_with_that() -> None:
    remark = "rename target encoder.(.*) to model.\\1"
    told = answer(comparison(layers=2, reference_only=layer(0), target_only=layer(1), remarks=[remark])).plain
    assert told.startswith("! only 6 of 19 module calls pair")
    assert told.endswith("rename target encoder.(.*) to model.\\1")


def test_all_that_is_known_of_an_origin() -> None:
    rows = Rows(comparison(faults={NORM: Verdict.DEFECT}))
    assert [line.plain for line in detail(rows, 6, 120)] == [
        "model.layers.3.input_layernorm  LlamaRMSNorm",
        "✗ defect  epsilon 1e-6, reference 1e-5 (fit within 1%)",
        "measured  0.0492 of 0.012 allowed  4.10×  output rel L2, bfloat16",
        "evidence  input rel L2 0.00031 · gain 158.7",
        "value  reference            target                 rel L2  max |Δ|  max |ref|  worst element",
        "out    float32 [1,128,512]  bfloat16 [1,128,512]  4.92e-2  1.82e-1     4.31e0  [0, 40, 276]",
    ]


def test_all_that_is_known_of_a_fold() -> None:
    rows = Rows(comparison(faults={NORM: Verdict.DEFECT}))
    found = [line.plain for line in detail(rows, 4, 120)]
    assert found == [
        "layers.0..2  3 alike, folded: enter shows each",
        "= identical  the worst of them",
        "rel L2  0 to 0  largest at model.layers.0",
        "inside  39 calls: 39 identical",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_details_never_pass_the_width(width: int) -> None:
    rows = Rows(comparison(faults={NORM: Verdict.BROKEN}, rename={NORM: "x" * 300}))
    for index in range(len(rows)):
        assert max(line.width for line in detail(rows, index, width)) <= width


def test_the_page_about_a_comparison_lists_who_has_no_partner() -> None:
    notice = Notice("seed-differs", "0 against 1", None, True)
    shown = [line.plain for line in about(comparison(reference_only=["lm_head"], notices=[notice]))]
    assert shown[:2] == ["✗ seed-differs", "  0 against 1"]
    assert "  lm_head  no call of the target has this site" in shown
