"""The tensor screen over the traces of a capture: every key, what it says where values are missing, and what it looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.actions import TENSOR_ACTIONS
from layerdiff.tui.app import LayerdiffApp
from layerdiff.tui.screens.page import Page
from layerdiff.tui.screens.tensor import PANES, TensorScreen
from layerdiff.tui.widgets.axes import ProfilePane
from layerdiff.tui.widgets.grid import GridPane
from layerdiff.tui.widgets.picture import PicturePane
from layerdiff.tui.widgets.tabs import Tabs
from layerdiff.tui.widgets.worst import WorstPane
from tests.tui.apps import faulty

Snap = Callable[..., bool]
SIZE = (120, 40)
CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare_traces(CAPTURES / "epsilon" / "reference.h5", CAPTURES / "epsilon" / "target.h5")


def here(app: LayerdiffApp) -> TensorScreen:
    assert isinstance(app.screen, TensorScreen)
    return app.screen


def painted(app: LayerdiffApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def opened(pilot: Pilot[None], *keys: str) -> None:
    """`v` on the first origin, its values measured, then keys."""
    await pilot.press("v")
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def test_numbers_worst_elements_and_bits(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        text = painted(app)
        assert "layers.3.input_layernorm" in text
        assert "out  reference float32 [1,18,64]  ⇄  target float32 [1,18,64]  value 1 of 3" in text
        assert "relative L2        4.460447e-6" in text
        assert "1  [0, 17, 23]    2.830738    2.8307147   2.34e-5    98  40352ad0   40352a6e" in text
        assert "|Δ|  18 × 64 · a cell is one element" in text
        assert "reference 40352ad0 0 10000000 01101010010101011010000  target 40352a6e 0 10000000 01101010010101001101110" in text
        assert here(app).examined is not None and here(app).examined.done == here(app).examined.total


async def test_panes_by_number_and_tab(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        found = []
        for key in ("1", "2", "3", "4", "5", "tab", "tab", "shift+tab"):
            await pilot.press(key)
            await pilot.pause()
            found.append(here(app).active)
        assert [*PANES, "numbers", "picture", "numbers"] == found
        assert ["numbers"] == [pane for pane in PANES if here(app).query_one(f"#{pane}").display]


async def test_enter_shows_the_worst_element_among_the_values(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "down", "enter")
        grid = here(app).query_one(GridPane)
        assert ("grid", 17, 57) == (here(app).active, grid.row, grid.column)
        assert "[0, 17, 57]  reference 2.123776  target 2.1237583" in painted(app)
        assert "›" in painted(app)


async def test_the_picture_begins_at_the_largest_difference_and_opens_it(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "2")
        assert (17, 23) == here(app).query_one(PicturePane).cursor
        await pilot.press("up", "right", "right", "enter")
        await pilot.pause()
        grid = here(app).query_one(GridPane)
        assert (16, 25) == (grid.row, grid.column)


async def test_profile_moves_between_axes_and_along_them(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "4", "down", "right", "right", "right")
        profile = here(app).query_one(ProfilePane)
        assert (1, 3) == (profile.axis, profile.cursor)
        assert "axis 2 (64)  spread over all indices  at 3: relative" in painted(app)
        await pilot.press("end", "enter")
        await pilot.pause()
        assert (0, 63) == (here(app).query_one(GridPane).row, here(app).query_one(GridPane).column)


async def test_grid_goes_anywhere(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "5", "G", "right", "pageup", "k")
        grid = here(app).query_one(GridPane)
        assert (1, True) == (grid.column, grid.row < 16)
        await pilot.press("slash", *"0,7,40", "enter")
        await pilot.pause()
        assert (7, 40) == (grid.row, grid.column)
        await pilot.press("x", "x")
        await pilot.pause()
        assert "reference" == grid.shown.value
        await pilot.press("slash", *"9,9,9", "enter")
        await pilot.pause()
        assert (7, 40) == (grid.row, grid.column), "there is no such element"


async def test_next_value_and_back(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        found = []
        for key in ("right_square_bracket", "right_square_bracket", "right_square_bracket", "left_square_bracket"):
            await pilot.press(key)
            await app.workers.wait_for_complete()
            await pilot.pause()
            found.append(painted(app).splitlines()[1].split()[0])
        assert ["in[0]", "weight", "out", "weight"] == found
        assert "the reference kept no bytes of this value" in painted(app)
        assert "same bits          yes  by fingerprint" in painted(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.screen_stack[0]


async def test_the_mouse_chooses_in_every_pane(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.click(WorstPane, offset=(10, 4))
        await pilot.pause()
        assert 3 == here(app).query_one(WorstPane).cursor
        await pilot.click(PicturePane, offset=(2 + 5, 1 + 2))
        await pilot.pause()
        assert ("picture", (4, 5)) == (here(app).active, here(app).query_one(PicturePane).cursor)
        await pilot.click("Tabs", offset=(60, 0))
        await pilot.pause()
        assert "profile" == here(app).active
        await pilot.click(WorstPane if here(app).query_one(WorstPane).display else ProfilePane, offset=(12, 2))
        await pilot.pause()
        assert 0 < here(app).query_one(ProfilePane).cursor < 4


async def test_traces_that_are_gone_are_said_beside_what_is_known() -> None:
    for size in (SIZE, (80, 24)):
        app = LayerdiffApp(faulty())
        async with app.run_test(size=size) as pilot:
            await opened(pilot)
            text = painted(app)
            assert "the reference trace reference.h5 is not there" in text
            assert "relative L2        0.0492" in text
            await pilot.press("down", "enter", "x", "slash", "tab", "right_square_bracket", "escape")


async def test_another_run_under_the_same_name_is_not_shown(compared: Comparison) -> None:
    other = replace(compared, target=replace(compared.target, path=str(CAPTURES / "minilm" / "target.h5")))
    app = LayerdiffApp(other)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert "is not the target that was compared" in " ".join(painted(app).split())


async def test_help_palette_and_dark(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        listed = {command.title for command in app.get_system_commands(app.screen)}
        assert {action.long for action in TENSOR_ACTIONS} < listed
        before = painted(app)
        await pilot.press("d")
        await pilot.pause()
        assert ("layerdiff-light", before) == (app.theme, painted(app))
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, Page)
        assert "every k-th row is measured" in painted(app)


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (300, 90)])
async def test_any_size_can_be_drawn(compared: Comparison, size: tuple[int, int]) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.resize_terminal(*size)
        for key in ("1", "2", "down", "right", "3", "G", "4", "down", "5", "G", "right", "enter"):
            await pilot.press(key)
            await pilot.pause()
        assert [size[0]] == [len(line) for line in painted(app).splitlines()][:1]


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
@pytest.mark.parametrize("pane", ["worst", "profile", "grid"])
def test_large(snap_compare: Snap, compared: Comparison, pane: str, dark: bool) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await opened(pilot, str(1 + PANES.index(pane)))

    assert snap_compare(LayerdiffApp(compared, dark=dark), terminal_size=SIZE, run_before=before)


@pytest.mark.parametrize("pane", PANES)
def test_small(snap_compare: Snap, compared: Comparison, pane: str) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await opened(pilot, str(1 + PANES.index(pane)))

    assert snap_compare(LayerdiffApp(compared), terminal_size=(80, 24), run_before=before)


def test_sixteen_colours(snap_compare: Snap, compared: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.app.constants.COLOR_SYSTEM", "standard")

    async def before(pilot: Pilot[None]) -> None:
        await opened(pilot, "2")

    assert snap_compare(LayerdiffApp(compared), terminal_size=(80, 24), run_before=before)


def test_not_finite(snap_compare: Snap) -> None:
    masked = compare_traces(CAPTURES / "masked_row" / "reference.h5", CAPTURES / "masked_row" / "target.h5")

    async def before(pilot: Pilot[None]) -> None:
        await opened(pilot, "2")

    assert snap_compare(LayerdiffApp(masked), terminal_size=SIZE, run_before=before)


async def test_how_far_measuring_is(compared: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        tabs = here(app).query_one(Tabs)
        clock = iter([10.0, 13.0])
        monkeypatch.setattr("layerdiff.tui.widgets.tabs.monotonic", lambda: next(clock))
        tabs.measuring((0, 8))
        tabs._passes = (2, 8)
        assert tabs.lines_at(120)[0].plain.endswith(" ━━──────── pass 2 of 8, 9 s left, esc stops ")


@pytest.mark.parametrize("size", [SIZE, (80, 24)])
async def test_which_ranks_are_shown_is_said_above(size: tuple[int, int]) -> None:
    ranked = compare_traces(CAPTURES / "missing_all_reduce" / "reference.h5", CAPTURES / "missing_all_reduce" / "target")
    app = LayerdiffApp(ranked)
    async with app.run_test(size=size) as pilot:
        await pilot.press("n")
        await opened(pilot, "1")
        assert "the sum of 2 ranks" == painted(app).splitlines()[2].strip()
        assert "relative L2        2.996559e-7" in painted(app)
        found = []
        for _ in range(3):
            await pilot.press("R")
            await app.workers.wait_for_complete()
            await pilot.pause()
            found.append(painted(app).splitlines()[2].strip())
        each = [f"rank {rank} of 2: its part of the sum, against the whole" for rank in range(2)]
        assert [*each, "the sum of 2 ranks"] == found
