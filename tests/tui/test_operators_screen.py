"""The operators screen over synthetic comparisons, and the tree that operators are folded in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.table import Rows
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.actions import OPERATOR_ACTIONS
from layerdiff.tui.app import LayerdiffApp
from layerdiff.tui.screens.layers import LayersScreen
from layerdiff.tui.screens.operators import OperatorsScreen
from layerdiff.tui.screens.page import Page
from layerdiff.tui.screens.tensor import TensorScreen
from tests.comparisons import comparison
from tests.operator_comparisons import NORM_CALLS, Call, with_operators

Snap = Callable[..., bool]
SIZE = (120, 40)
LAYER = "model.layers.3"
NORM = f"{LAYER}.input_layernorm"
ADD = f"{NORM}/aten.add.Tensor#0"
ATTENTION = [Call(f"aten.{name}") for name in ("view.default", "transpose.int", "cat.default", "mul.Tensor")]


def compared() -> Comparison:
    """A faulty norm, four harmless calls of an attention's glue, one residual addition, and a second fault further down."""
    base = comparison(layers=6, identical_layers=2)
    second = [Call("aten.mm.default", Verdict.UNEXPLAINED, 7.0, statement="arithmetic: 7 times what any order makes")]
    return with_operators(
        base, {NORM: NORM_CALLS, f"{LAYER}.self_attn": ATTENTION, LAYER: [Call("aten.add.Tensor")], "model.layers.5.mlp.up_proj": second}
    )


def here(app: LayerdiffApp) -> OperatorsScreen:
    assert isinstance(app.screen, OperatorsScreen)
    return app.screen


def site(app: LayerdiffApp) -> str:
    """The site of the chosen call."""
    row = here(app).row
    assert row is not None
    rows = here(app)._rows
    return rows.names.site(int(rows.tree.place_of[row]))


def painted(app: LayerdiffApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def press(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def test_operators_are_folded_under_their_module() -> None:
    rows = Rows(compared(), width=140)
    text = "\n".join(rows.line(i).plain for i in range(len(rows)))
    assert "aten.add.Tensor#0" in text, "the origin is on view"
    assert "aten.view.default" not in text, "its module is closed"
    place = int(rows.tree.place_of[[rows.names.site(p) for p in range(len(rows.tree))].index(f"{LAYER}.self_attn")])
    index = rows.find(int(rows.tree.row[place]))
    assert index is not None
    rows.open(index)
    assert "▸ 4 operator calls" in rows.line(index + 1).plain
    assert "view, transpose, cat, mul" in rows.line(index + 1).plain
    assert "q_proj" in rows.line(index + 2).plain
    rows.open(index + 1)
    assert "aten.view.default#0" in rows.line(index + 1).plain


def test_a_module_of_nothing_but_harmless_operators_shows_them_when_opened() -> None:
    rows = Rows(with_operators(comparison(layers=4), {"model.layers.1.mlp.act_fn": ATTENTION}), width=140)
    place = [rows.names.site(p) for p in range(len(rows.tree))].index("model.layers.1.mlp.act_fn")
    index = rows.reveal(int(rows.tree.row[place]))
    assert "aten" not in "".join(rows.line(i).plain for i in range(len(rows)))
    rows.open(index)
    assert "aten.view.default#0" in rows.line(index + 1).plain


async def test_enter_on_an_origin_shows_its_evidence() -> None:
    app = LayerdiffApp(compared())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "enter")
        assert ADD == site(app)
        text = painted(app)
        assert "7 operator calls, 1 in the target only" in text
        assert "✗ defect  add 1e-05 against add 1e-06: another epsilon" in text
        assert "measured  8.8e-6 of 4e-6 allowed  2.20×  meaning: R64 against T64, per row" in text
        assert "cause     rmsnorm-eps" in text
        assert "ladder      own replay  0.8 of 1.5 allowed  not the exact result rounded 14" in text
        assert "▸ meaning  8.9e-6 of 9.536743e-7 allowed" in text
        assert "evidence  static difference add 1e-06 ⇄ add 1e-05 · fitted epsilon 1.0009e-5" in text
        assert "worst     out [0, 0, 7]  |Δ| 3.293e-5" in text
        assert "the reference trace reference.h5 is not there" in text
        assert "f32→bf16 [1,128,512]   6.00e-8   8.90e-6     2.20×  ✗ defect" in text


async def test_a_call_of_one_side_stays_visible_with_its_reason() -> None:
    app = LayerdiffApp(compared())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "enter", "down", "down")
        assert f"{NORM}/npu.rms_norm.default#0" == site(app)
        assert "+ npu.rms_norm.default#0" in painted(app)
        assert "∅ not-comparable  target only: no call of the reference corresponds" in painted(app)


async def test_in_and_out_of_modules_and_to_other_origins() -> None:
    app = LayerdiffApp(compared())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "enter", "u")
        assert NORM == site(app)
        assert "1 operator call, 4 modules" in painted(app)
        await press(pilot, "enter")
        assert ADD == site(app)
        await press(pilot, "n")
        assert "model.layers.5.mlp.up_proj/aten.mm.default#0" == site(app)
        await press(pilot, "p")
        assert ADD == site(app)
        await press(pilot, "escape")
        assert isinstance(app.screen, LayersScreen)


async def test_values_and_back_to_the_calls() -> None:
    app = LayerdiffApp(compared())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "enter", "v")
        assert isinstance(app.screen, TensorScreen)
        assert ADD in painted(app)
        await press(pilot, "escape")
        assert ADD == site(app)
        await press(pilot, "a")
        assert isinstance(app.screen, Page)


async def test_a_comparison_without_operators_says_so() -> None:
    app = LayerdiffApp(comparison(layers=4))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await press(pilot, "c")
        assert isinstance(app.screen, LayersScreen)
        assert any("record with --operators" in n.message for n in app._notifications)


async def test_palette_help_and_mouse() -> None:
    app = LayerdiffApp(compared())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "enter")
        assert {action.long for action in OPERATOR_ACTIONS} < {command.title for command in app.get_system_commands(app.screen)}
        await pilot.click("CallList", offset=(10, 0))
        await pilot.pause()
        assert f"{NORM}/aten.pow.Tensor_Scalar#0" == site(app)
        await pilot.click("CallList", offset=(10, 2), times=2)
        await pilot.pause()
        assert isinstance(app.screen, TensorScreen)
        await press(pilot, "escape", "d", "question_mark")
        assert "layerdiff-light" == app.theme
        assert "the tests that led to the verdict" in painted(app)


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (20, 5), (40, 12), (300, 90)])
async def test_any_size_can_be_drawn(size: tuple[int, int]) -> None:
    app = LayerdiffApp(compared())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "enter")
        await pilot.resize_terminal(*size)
        await press(pilot, "G", "g", "down", "u", "end")
        assert [size[0]] == [len(line) for line in painted(app).splitlines()][:1]


def opened(*keys: str) -> Callable[[Pilot[None]], object]:
    async def before(pilot: Pilot[None]) -> None:
        await press(pilot, *keys)

    return before


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
@pytest.mark.parametrize("size", [SIZE, (80, 24)], ids=["120x40", "80x24"])
def test_origin(snap_compare: Snap, size: tuple[int, int], dark: bool) -> None:
    assert snap_compare(LayerdiffApp(compared(), dark=dark), terminal_size=size, run_before=opened("enter"))


@pytest.mark.parametrize("size", [SIZE, (80, 24)], ids=["120x40", "80x24"])
def test_layer(snap_compare: Snap, size: tuple[int, int]) -> None:
    assert snap_compare(LayerdiffApp(compared()), terminal_size=size, run_before=opened("enter", "u"))


def test_folded_in_the_tree(snap_compare: Snap) -> None:
    assert snap_compare(LayerdiffApp(compared()), terminal_size=SIZE, run_before=opened("down", "down", "down", "down", "right"))
