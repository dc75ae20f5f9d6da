"""The calls inside a module as lines, and the evidence for one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layerdiff.judge.tables import Verdict
from layerdiff.rows.calls.detail import call_detail
from layerdiff.rows.calls.listing import call_columns, call_heading, call_line, enclosing, has_calls, has_modules, inside, list_title
from layerdiff.rows.calls.record import CallRecord, picture_text
from layerdiff.rows.sites.table import Rows
from layerdiff.sides import Both
from tests.comparisons import comparison
from tests.operator_comparisons import NORM_CALLS, Call, with_operators

LAYER = "model.layers.3"
NORM = f"{LAYER}.input_layernorm"


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows(with_operators(comparison(layers=4), {NORM: NORM_CALLS, LAYER: [Call("aten.add.Tensor")]}))


def row_of(rows: Rows, site: str) -> int:
    return next(int(row) for row in rows.tree.row if rows.names.site(int(rows.tree.place_of[row])) == site)


def test_calls_stand_in_the_order_in_which_they_ran(rows: Rows) -> None:
    norm = row_of(rows, NORM)
    names = [rows.names.short(int(rows.tree.place_of[call])) for call in inside(rows, norm)]
    expected = ["pow.Tensor_Scalar#0", "mean.dim#0", "add.Tensor#0", "rsqrt.default#0"]
    assert [f"aten.{name}" for name in expected] == names[:4]
    assert ["npu.rms_norm.default#0", "aten.mul.Tensor#0", "aten.mul.Tensor#1"] == names[4:]
    assert {norm} == {enclosing(rows, call) for call in inside(rows, norm)}
    assert (True, False) == (has_calls(rows, norm), has_modules(rows, norm))
    assert (True, True) == (has_calls(rows, row_of(rows, LAYER)), has_modules(rows, row_of(rows, LAYER)))


@pytest.mark.parametrize("width", [20, 50, 64, 72, 80, 100, 120, 200])
def test_every_line_is_as_wide_as_the_heading(rows: Rows, width: int) -> None:
    for module in (NORM, LAYER):
        calls = inside(rows, row_of(rows, module))
        widths = call_columns(rows, calls, width)
        cells = {call_line(rows, call, widths).width for call in calls} | {call_heading(widths).width}
        assert 1 == len(cells)
        assert cells.pop() <= max(width, 48)


def test_a_wide_screen_has_the_finding_too(rows: Rows) -> None:
    calls = inside(rows, row_of(rows, NORM))
    text = call_line(rows, calls[2], call_columns(rows, calls, 200)).plain
    assert "add 1e-05 against add 1e-06: another epsilon" in text
    assert "f32→bf16 [1,128,512]" in text


def test_title_counts_sides_and_verdicts(rows: Rows) -> None:
    norm = row_of(rows, NORM)
    first, second = (line.plain for line in list_title(rows, norm, inside(rows, norm), 140))
    assert NORM in first and first.endswith("✗ defect ")
    assert " 7 operator calls, 1 in the target only  ·  ∅ 1 not-comparable  ·  ✗ 1 defect  ·  " in second


def record(stack: str, scalars: tuple[str, ...]) -> CallRecord:
    return CallRecord(stack, scalars, {"in[0]": f"{NORM}/aten.mean.dim#0"})


def test_both_sides_where_they_differ_and_one_where_not(rows: Rows) -> None:
    add = row_of(rows, f"{NORM}/aten.add.Tensor#0")
    both = Both(record("model.py:23 forward", ("[1] 1e-06",)), record("model.py:23 forward", ("[1] 1e-05",)))
    lines = [line.plain for line in call_detail(rows, add, both, 110)]
    assert "source    model.py:23 forward" in lines
    assert "scalars   reference [1] 1e-06" in lines
    assert "          target    [1] 1e-05" in lines
    assert any(line.startswith("in[0]") and line.rstrip().endswith(f"{NORM}/aten.mean.dim#0") for line in lines)
    assert not any("not there" in line for line in lines)
    assert all(line.width <= 60 for line in call_detail(rows, add, both, 60))


@pytest.mark.parametrize("width", [120, 80])
def test_an_operand_that_other_calls_made_names_both_makers_whole(rows: Rows, width: int) -> None:
    add = row_of(rows, f"{NORM}/aten.add.Tensor#0")
    makers = [f"model.layers.3.mlp.{name}_proj/aten._unsafe_view.default#0" for name in ("up", "gate")]
    both = Both(*(CallRecord("", (), {"in[0]": maker}) for maker in makers))
    lines = [line.plain.strip() for line in call_detail(rows, add, both, width)]
    assert any(line.endswith(f"reference {makers[0]}") for line in lines)
    assert f"target    {makers[1]}" in lines
    assert all(line.width <= width for line in call_detail(rows, add, both, width))


def test_a_call_of_one_side_lists_what_its_own_trace_says(rows: Rows) -> None:
    lone = row_of(rows, f"{NORM}/npu.rms_norm.default#0")
    mine = CallRecord("npu.py:3 forward", (), {"in[0]": "a.b"}, {"out": "bfloat16 [2,3]", "in[0]": "float32 [2,3]"})
    lines = [line.plain.rstrip() for line in call_detail(rows, lone, Both("the reference did not run this call", mine), 110)]
    assert "source    target    npu.py:3 forward" in lines
    assert "out     bfloat16 [2,3]   target only" in lines
    assert "in[0]   float32 [2,3]    target only  a.b" in lines


def test_evidence_of_any_shape_is_shown() -> None:
    odd = {"\x1b[2J": {"deep": [1, 2]}, "ladder": ["a sentence", {"rung": "r", "measured": "n/a", "why": {"x": 1}}], "zrms": "text"}
    calls = [replace(call, evidence=odd) if call.verdict is Verdict.DEFECT else call for call in NORM_CALLS]
    rows = Rows(with_operators(comparison(layers=4), {NORM: calls}))
    text = "\n".join(line.plain for line in call_detail(rows, row_of(rows, f"{NORM}/aten.add.Tensor#0"), None, 120))
    assert "ladder    a sentence" in text
    assert "r  why x 1 · measured n/a" in text
    assert "\\x1b[2J deep [1, 2] · error in sigmas, rms text" in text
    assert "reading the traces" in text


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (1e-06, "1e-06"),
        ({"dtype": "torch.bfloat16"}, "torch.bfloat16"),
        ([1, {"tensor": "in[0]"}, None], "[1, in[0], None]"),
        ({"tuple": [1, 2]}, "[1, 2]"),
        ({"float": "inf"}, "inf"),
        ("\x1b[2J", "\\x1b[2J"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, …]"),
    ],
)
def test_an_argument_as_a_person_writes_it(picture: object, expected: str) -> None:
    assert expected == picture_text(picture)
