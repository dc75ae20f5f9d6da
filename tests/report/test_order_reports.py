"""A reduction-order analysis as JSON, held against its schema, and as markdown that a tracker may show."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import jsonschema
import pytest
from markdown_it import MarkdownIt

from layerdiff.arithmetic.orders.analysis import OrderReport
from layerdiff.report.order_json import order_as_json_text
from layerdiff.report.order_markdown import order_markdown
from tests.rows.order_reports import all_reports, attention, dropped_split, no_order, not_valid, other_order, single, split_k

REPORTS = all_reports()
SCHEMA = json.loads(files("layerdiff.saved").joinpath("order.schema.json").read_text())


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_json_holds_to_its_schema(report: OrderReport) -> None:
    made = order_as_json_text(report)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(made))
    assert made.isascii() and 1 == made.count("\n")


def test_the_schema_refuses_what_it_does_not_know() -> None:
    value = json.loads(order_as_json_text(single(split_k())))
    value["analyses"][0]["verdict"] = "maybe"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(value)


def test_numbers_that_json_has_no_word_for() -> None:
    broken = json.loads(order_as_json_text(REPORTS["broken"]))["analyses"][0]
    assert ("inf", "inf") == (broken["zrms"], broken["zmax"])
    unknown = json.loads(order_as_json_text(single(not_valid())))["analyses"][0]
    assert (None, None, None) == (unknown["zrms"], unknown["zmax"], unknown["histogram"])


def test_the_json_says_all_that_is_known() -> None:
    value = json.loads(order_as_json_text(other_order()))
    assert ("layerdiff.order/1", "order-exact", ["reference", "target"]) == (
        value["schema"], value["verdict"], [one["side"] for one in value["analyses"]],
    )  # fmt: skip
    target = value["analyses"][1]
    first = target["hypotheses"][0]
    assert ("split-K 4", ["blocks of 1024"], 2735, 2735, True) == tuple(first[name] for name in ("name", "also", "made", "tried", "won"))
    assert (4096, 4095) == (target["tree"]["leaves"], len(target["tree"]["nodes"]))
    assert 13 == len(target["hypotheses"])


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_markdown_has_no_markup_of_a_strangers(report: OrderReport) -> None:
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(order_markdown(report))  # torch.mm would be read as a host
    ours = {"h2", "h3", "p", "strong", "ul", "li", "code", "table", "thead", "tbody", "tr", "th", "td", "pre"}
    assert set() == set(re.findall(r"<\s*([a-zA-Z0-9]+)", html)) - ours
    assert "\x1b" not in html and "\u202e" not in html
    assert 1 == html.count("<h2>")


def test_markdown_of_a_defect() -> None:
    made = order_markdown(single(dropped_split()))
    assert made.startswith("## Reduction order: defect at `model.layers.0.mlp.down_proj/aten.mm.default#0`\n")
    assert "**Terms &#91;1024, 2048) of 4096 are missing (part 1 of 4, counted from 0: a split, or a rank's shard).**" in made
    assert "| ▸ 7 | **structure tests and fits** | holds | -0.998 | 0.006 | c is -0.998 over &#91;1024, 2048)" in made
    assert "Not asked: 6 less precision, bit by bit, 7 structure tests and fits." in order_markdown(single(split_k()))
    assert "  ╳╳ [1024, 2048)      missing        c -0.998 ± 0.0014   part 1 of 4, counted from 0" in made
    assert "### What to do\n\n- Look at how the parts" in made


def test_markdown_of_candidates() -> None:
    made = order_markdown(single(split_k()))
    assert "| **split-K 4** (the same as blocks of 1024) | fp32 | 2735 of 2735 | makes them all |" in made
    assert "\n1 more are in the JSON (`--json FILE`)." in made
    assert "65,536 compared (64 of 512 rows, evenly spaced); 640 tell orders apart" in order_markdown(single(no_order()))


def test_markdown_of_two_traces_and_as_a_section() -> None:
    made = order_markdown(other_order(), level=3)
    assert made.startswith("### Reduction order: order-exact at")
    assert "\n#### Reference\n" in made and "\n#### Target\n" in made
    assert "- reference: ≡ order-exact: sequential makes every one" in made
    assert 1 == made.count("Nothing needs doing")


def test_markdown_of_a_fused_call() -> None:
    made = order_markdown(single(attention()))
    assert "- temperature fitted 1.02 ± 0.001, declared 1: outside" in made
    assert (
        "| **online softmax, tiles of 64** (the same as online softmax, tiles of 128) | probabilities in bf16 | 32,700 of 32,768 | holds |"
        in made
    )
