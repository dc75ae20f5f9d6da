from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.tables import Verdict
from layerdiff.report.formats import FORMATS
from layerdiff.report.junit import as_junit
from layerdiff.report.markdown import as_markdown
from layerdiff.saved.comparison import Comparison, Side, Unpaired
from tests.comparisons import comparison
from tests.ranked import ATTENTION, four_ranks

NORM = "model.layers.3.input_layernorm"
MLP = "model.layers.5.mlp"
HOSTILE = [
    "a|b",
    "a\\|b",
    "`x`` y```",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "@everyone",
    "see #123 and owner/repo#4",
    "https://evil.example/x",
    "www.evil.example",
    "[click](https://evil.example)",
    "![x](y)",
    "**bold** _em_ ~~no~~ __strong__ a_b_c _x",
    "$x^2$",
    "\x1b[31mred\x1b[0m",
    "line\nbreak\r\n# heading",
    "[bold]x[/bold]",
    "\u202eright to left",
    "\ud800 lone",
    "\x00\x0b\ufffe\uffff",
    "]]> <!-- comment -->",
    "naïve 層 é",
    "a" * 10_000,
    "&lt; &#64;",
    " padded ",
    "",
]


def hostile(name: str) -> Comparison:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT}, rename={NORM: name}, notices=[Notice(name or "x", name, name, True)])
    origin = replace(made.origins[0], statement=name, rule=name, value=name, cause=name, operator=name, evidence={name: name})
    return replace(
        made,
        origins=(origin,),
        reference=Side(name, {name or "k": name, "same": name}, label=name),
        target=Side(name + "2", {name or "k": name + "2", "same": name}, label=name, complete=False),
        profile={"name": name},
        alignment=replace(made.alignment, remarks=(name,), reference_only=(Unpaired(name, name),)),
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_of_a_hostile_name_shows_it_and_nothing_acts(name: str) -> None:
    written = as_markdown(hostile(name))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", written)
    html = MarkdownIt("gfm-like", {"linkify": True, "html": True}).render(written)
    tags = set(re.findall(r"<\s*([a-zA-Z0-9]+)", html))
    ours = {"h2", "h3", "p", "strong", "ul", "li", "code", "table", "thead", "tbody", "tr", "th", "td", "pre", "details", "summary"}
    assert tags <= ours
    outside_code = re.sub(r"<(code|pre)\b.*?</\1>", "", html, flags=re.DOTALL)
    plain = re.sub(r"<!--.*?-->", "\0", outside_code)
    assert not re.search(r"@\w", plain)
    assert not re.search(r"(?<!&)#\d", plain)
    assert not re.search(r"(https?://|www\.)\w", plain)
    rows = re.findall(r"<tr>.*?</tr>", html, flags=re.DOTALL)
    assert {len(re.findall(r"<t[hd][ >]", row)) for row in rows} <= {9, 3, 2}


def test_markdown_says_the_finding_first() -> None:
    written = as_markdown(comparison(layers=6, faults={NORM: Verdict.DEFECT, MLP: Verdict.BROKEN}))
    lines = [line for line in written.splitlines() if line]
    assert lines[0] == f"## layerdiff: defect at `{NORM}`"
    assert lines[1] == "**epsilon 1e-6, reference 1e-5 (fit within 1%)** (step 0, value `out`)"
    assert lines[2] == "measured 0.0492 of 0.012 allowed (output rel L2, bfloat16)"
    assert lines[3] == "1 more origin below."
    assert f"| `{MLP}` | step 0 | `out` | broken | yes | - | - |" in written
    assert "- not finite: 0 in the reference, 2048 in the target" in written
    assert "| `device` | cpu | cuda |" in written
    assert "layerdiff diff reference.h5 target.h5\n" in written


def test_markdown_worst_element_is_an_index() -> None:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT})
    row = made.origins[0].row
    flat = int(made.pairs["worst"][row])
    expected = f"at index [0, {flat // 512}, {flat % 512}]"
    assert expected in as_markdown(made)


def test_markdown_evidence_is_flat_and_exact() -> None:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT})
    evidence = {"fit": {"epsilon": 1.0009e-05, "rows": 18}, "mode": "thresholds", "shapes": [[1, 2], None], "none": {}}
    written = as_markdown(replace(made, origins=(replace(made.origins[0], evidence=evidence),)))
    for line in (
        "- `fit.epsilon`: 1.0009e-05",
        "- `fit.rows`: 18",
        "- `mode`: thresholds",
        "- `shapes`: &#91;&#91;1, 2&#93;, null&#93;",
        "- `none`: {}",
    ):
        assert f"{line}\n" in written


def test_markdown_without_a_defect() -> None:
    written = as_markdown(comparison(layers=4))
    assert written.startswith("## layerdiff: no defect, worst verdict order-consistent\n")
    assert "### Origins" not in written


def test_markdown_where_only_a_notice_is_a_defect() -> None:
    written = as_markdown(comparison(layers=4, notices=[Notice("input-differs", "3 of 128 ids differ", None, True)]))
    assert written.startswith("## layerdiff: the runs are not comparable as given: input-differs\n\n**3 of 128 ids differ**")


def test_markdown_says_what_it_left_out() -> None:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT})
    written = as_markdown(replace(made, origins=made.origins * 60, notices=(Notice("a", "b"),) * 30))
    assert "35 more origins: `layerdiff report ... -f json` lists all." in written
    assert "10 more notices" in written


def test_markdown_names_a_profile_file() -> None:
    made = replace(comparison(layers=2), profile={"name": "mine", "path": "my profile.toml"})
    assert "layerdiff diff reference.h5 target.h5 --profile 'my profile.toml'\n" in as_markdown(made)


@pytest.mark.parametrize("name", HOSTILE)
def test_junit_of_a_hostile_name_parses(name: str) -> None:
    parsed = ElementTree.fromstring(as_junit(hostile(name)))
    assert [case.tag for case in parsed.iter("testcase")] == ["testcase"] * 3
    assert parsed.get("failures") == "2"


def test_junit_has_a_case_a_site_and_a_summary() -> None:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT, MLP: Verdict.PRECISION})
    again = replace(made.origins[0], step=1)
    parsed = ElementTree.fromstring(as_junit(replace(made, origins=(*made.origins, again))))
    cases = {case.get("name"): case for case in parsed.iter("testcase")}
    assert list(cases) == ["summary", NORM, MLP]
    failure = cases[NORM].find("failure")
    assert failure is not None and failure.get("type") == "defect"
    assert "step 0" in (failure.text or "") and "step 1" in (failure.text or "")
    assert cases[MLP].find("failure") is None  # a precision that the profile allows
    assert cases["summary"].find("failure") is None
    assert (parsed.get("tests"), parsed.get("failures")) == ("3", "1")


@pytest.mark.parametrize(
    "made",
    [
        comparison(layers=3),
        comparison(layers=3, faults={"model.layers.1": Verdict.PRECISION}),
        comparison(layers=3, faults={"model.layers.1": Verdict.UNEXPLAINED}),
        comparison(layers=3, notices=[Notice("seed-differs", "1 against 2", None, True)]),
        comparison(layers=3, notices=[Notice("seed-differs", "1 against 2", None, False)]),
    ],
)
def test_junit_fails_exactly_where_defect_is_true(made: Comparison) -> None:
    failures = int(ElementTree.fromstring(as_junit(made)).get("failures", ""))
    assert (failures > 0) == made.defect


def test_json_is_one_line_and_the_same() -> None:
    made = comparison(layers=3, faults={"model.layers.1": Verdict.BROKEN}, rename={"model.norm": "\x1b]0;x\x07層"})
    written = FORMATS["json"](made)
    assert written.isascii() and written.isprintable() is False and written.count("\n") == 1
    assert json.loads(written) == made.to_json()


@pytest.mark.parametrize("name", FORMATS)
def test_an_origin_without_a_row_is_reported(name: str) -> None:
    origin = Origin(-1, "gone", Verdict.DEFECT, "source.mask", "differs", float("nan"), None, "rule", True, rank=2, occurrence=3)
    assert "gone" in FORMATS[name](replace(comparison(layers=2), origins=(origin,)))


def test_formats() -> None:
    assert list(FORMATS) == ["markdown", "json", "junit"]


def test_an_origin_of_many_ranks_says_its_placement_and_the_error_of_each() -> None:
    written = as_markdown(four_ranks())
    assert (
        "\n- sharded along 2, contiguous; relative L2 of each part: rank 0: 1.2e-7, rank 1: 1.1e-7, rank 2: 0.3, rank 3: 1.3e-7; "
        "**rank 2 alone is off: 3.00e-1, the others up to 1.30e-7**\n"
    ) in written
    partial = as_markdown(four_ranks(faults={f"{ATTENTION}.o_proj": Verdict.UNEXPLAINED}))
    assert "\n- partial: the ranks add up to it; relative L2 of each part: rank 0: -, rank 1: -, rank 2: -, rank 3: -\n" in partial
    assert "relative L2 of each part" not in as_markdown(comparison(layers=5, faults={NORM: Verdict.DEFECT}))
