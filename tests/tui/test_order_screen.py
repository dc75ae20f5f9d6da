"""The order screen: opened from an operator and from its values, turned, left while it runs, and what it looks like."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from textual.pilot import Pilot

from layerdiff.arithmetic.orders.analysis import OrderReport
from layerdiff.compare import compare_traces
from layerdiff.errors import TraceError
from layerdiff.progress import tell
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.actions import ORDER_ACTIONS
from layerdiff.tui.app import LayerdiffApp
from layerdiff.tui.screens.operators import OperatorsScreen
from layerdiff.tui.screens.order import OrderScreen
from layerdiff.tui.screens.page import Page
from layerdiff.tui.screens.tensor import TensorScreen
from layerdiff.tui.widgets.scrolled import ScrolledLines
from tests.rows.order_reports import SITE, all_reports, defect_against_right, not_valid, other_order, single, split_k
from tests.summing_runs import MM, PART, record
from tests.tui.apps import faulty

Snap = Callable[..., bool]
SIZE = (120, 40)
SMALL = (80, 24)


def painted(app: LayerdiffApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def here(app: LayerdiffApp) -> OrderScreen:
    assert isinstance(app.screen, OrderScreen)
    return app.screen


async def opened(pilot: Pilot[None], report: OrderReport, *keys: str) -> None:
    """The screen over a report, then keys."""
    pilot.app.push_screen(OrderScreen(report.analyses[-1].site, lambda: report))
    await settled(pilot)
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def settled(pilot: Pilot[None]) -> None:
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    screen = pilot.app.screen
    for _ in range(400):  # the work begins after the screen's first paint
        if not isinstance(screen, OrderScreen) or screen.report is not None or screen.why is not None:
            break
        await pilot.pause(0.05)
    await pilot.pause()


async def test_one_trace() -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, single(split_k()))
        text = painted(app)
        assert SITE in text and "≡ order-exact" in text
        assert "≡ order-exact  split-K 4 makes every one of 2735 results" in text
        assert "▸   5 orders at the declared accumulator, bit by bit" in text
        assert "both together" not in text
        await pilot.press("tab")
        await pilot.pause()
        assert text == painted(app), "one trace has one side"


async def test_it_scrolls() -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SMALL) as pilot:
        await opened(pilot, single(split_k()), "G")
        await pilot.pause(0.5)
        assert "Nothing needs doing" in painted(app)
        await pilot.press("g")
        await pilot.pause(0.5)
        assert "what was added" in painted(app) and "Nothing needs doing" not in painted(app)


async def test_sides_by_key_and_by_click() -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, other_order())
        assert "▐both together▌ reference  target" in painted(app)
        found = []
        for key in ("tab", "p", "tab", "shift+tab"):
            await pilot.press(key)
            await pilot.pause()
            found.append(here(app).side)
        assert ["reference", "target", "both", "target"] == found
        assert "≡ order-exact  split-K 4 makes every one" in painted(app)
        await pilot.click(offset=(18, 1))
        await pilot.pause()
        assert "reference" == here(app).side
        assert "≡ order-exact  sequential makes every one" in painted(app)


async def test_from_part_to_part() -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SMALL) as pilot:
        await opened(pilot, single(split_k()))
        found = []
        for key in ("n", "n", "n", "N", "N", "N", "N"):
            await pilot.press(key)
            await pilot.pause()
            found.append(painted(app).splitlines()[2].strip(" ─").partition(" ──")[0])
        top = "≡ order-exact  split-K 4 makes every one of 2735 results that tell orders apart;"
        assert ["what was added", "the tests", "candidate orders", "the tests", "what was added", top, top] == [
            text if not text.startswith("≡") else top for text in found
        ]


async def test_another_side_begins_at_its_top() -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SMALL) as pilot:
        await opened(pilot, other_order(), "G")
        await pilot.press("tab")
        await pilot.pause()
        assert 0 == here(app).query_one(ScrolledLines).scroll_offset.y


async def test_what_cannot_be_added_up_is_said() -> None:
    def refuse() -> OrderReport:
        raise TraceError("fc/aten.mm.default#0: no bytes of in[0] were kept: record with --keep full")

    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        app.push_screen(OrderScreen("fc/aten.mm.default#0", refuse))
        await settled(pilot)
        assert "∅ fc/aten.mm.default#0: no bytes of in[0] were kept: record with --keep full" in painted(app)


async def test_a_fault_of_ours_is_said_as_a_sentence() -> None:
    def fail() -> OrderReport:
        raise RuntimeError("out of\x1b[2J order")

    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        app.push_screen(OrderScreen("fc", fail))
        await settled(pilot)
        assert "∅ the analysis stopped: RuntimeError: out of\\x1b[2J order" in painted(app)


async def test_how_long_it_takes_is_said_and_escape_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerdiff.tui.screens.order._SOON_S", 0.0)
    go_on, after = Event(), list[str]()

    def slow() -> OrderReport:
        tell(0, 8000)
        time.sleep(0.3)
        tell(80, 8000)
        go_on.wait(20)
        tell(400, 8000)
        after.append("it went on")
        return single(split_k())

    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        before = app.screen
        app.push_screen(OrderScreen("fc", slow))
        try:
            await pilot.pause(0.6)
            assert "adding it up again, in every order that is known" in painted(app)
            assert re.search(r"╸─+ +1%  80 of 8000  \d+/s  \d+ s left  esc stops", painted(app))
            bar = painted(app).splitlines()[-1]
            assert "esc back" in bar and "side" not in bar and "next part" not in bar, "neither does anything yet"
            await pilot.press("escape")
            await pilot.pause()
            assert before is app.screen
        finally:
            go_on.set()
        await settled(pilot)
        assert before is app.screen
        await pilot.pause(0.1)
        assert after == []  # leaving stopped it


async def test_light_help_and_palette() -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, single(split_k()))
        before = painted(app)
        await pilot.press("d")
        await pilot.pause()
        assert ("layerdiff-light", before) == (app.theme, painted(app))
        commands = {command.title for command in app.get_system_commands(app.screen)}
        assert {action.long for action in ORDER_ACTIONS} <= commands
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, Page)
        assert "tell orders apart" in painted(app)


@pytest.mark.parametrize("size", [(1, 1), (300, 90)])
@pytest.mark.parametrize("report", [defect_against_right(), single(not_valid())], ids=["pair", "single"])
async def test_any_size_can_be_drawn(report: OrderReport, size: tuple[int, int]) -> None:
    app = LayerdiffApp(faulty())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, report)
        await pilot.resize_terminal(*size)
        for key in ("down", "G", "tab", "tab", "g"):
            await pilot.press(key)
            await pilot.pause()
        assert [size[0]] == [len(line) for line in painted(app).splitlines()][:1]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder: Path = tmp_path_factory.mktemp("summed")
    return compare_traces(record(folder / "reference.h5"), record(folder / "target.h5", lost=True))


async def operator(pilot: Pilot[None]) -> None:
    """The operators screen on the faulty product, which is the first origin."""
    await pilot.press("n", "c")
    await settled(pilot)
    assert isinstance(pilot.app, LayerdiffApp)
    assert MM.rpartition("/")[2] in painted(pilot.app)


async def test_from_an_operator_and_from_its_values(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await operator(pilot)
        assert isinstance(app.screen, OperatorsScreen)
        await pilot.press("o")
        await settled(pilot)
        report = here(app).report
        assert report is not None
        assert ["reference", "target"] == [one.side for one in report.analyses]
        assert ("defect", "k-range-missing") == (report.verdict, report.analyses[1].cause)
        await pilot.press("p", "p", "G")
        await pilot.pause(0.5)
        assert f"[{PART}, {2 * PART})" in painted(app)
        await pilot.press("escape", "v")
        await settled(pilot)
        assert isinstance(app.screen, TensorScreen)
        await pilot.press("o")
        await settled(pilot)
        again = here(app).report
        assert again is not None and again.statement == report.statement


async def test_from_the_first_screen(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("n", "O")
        await settled(pilot)
        report = here(app).report
        assert report is not None and MM == report.analyses[1].site


async def test_a_module_adds_nothing_up_itself(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=SIZE) as pilot:
        await operator(pilot)
        await pilot.press("u")
        await pilot.pause()
        await pilot.press("o")
        await pilot.pause()
        assert isinstance(app.screen, OperatorsScreen)
        assert any("only an operator call adds up" in n.message for n in app._notifications)


async def test_a_trace_that_is_gone(tmp_path: Path) -> None:
    made = compare_traces(record(tmp_path / "reference.h5"), record(tmp_path / "target.h5", lost=True))
    (tmp_path / "target.h5").unlink()
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await operator(pilot)
        await pilot.press("o")
        await settled(pilot)
        assert "is not there: put it back" in " ".join(painted(app).split())  # where a line ends depends on the folder's name


def shown(report: OrderReport, *keys: str) -> Callable[[Pilot[None]], object]:
    async def before(pilot: Pilot[None]) -> None:
        await opened(pilot, report, *keys)
        await pilot.pause(0.5)

    return before


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
@pytest.mark.parametrize("size", [SIZE, SMALL], ids=["120x40", "80x24"])
@pytest.mark.parametrize("name", ["split_k", "defect_against_right"])
def test_top(snap_compare: Snap, name: str, size: tuple[int, int], dark: bool) -> None:
    assert snap_compare(LayerdiffApp(faulty(), dark=dark), terminal_size=size, run_before=shown(all_reports()[name]))


@pytest.mark.parametrize("size", [SIZE, SMALL], ids=["120x40", "80x24"])
@pytest.mark.parametrize("name", ["own_mm"])
def test_end(snap_compare: Snap, name: str, size: tuple[int, int]) -> None:
    assert snap_compare(LayerdiffApp(faulty()), terminal_size=size, run_before=shown(all_reports()[name], "G"))


@pytest.mark.parametrize("name", ["bf16_partials", "not_valid", "too_few", "broken", "attention"])
def test_other_verdicts(snap_compare: Snap, name: str) -> None:
    assert snap_compare(LayerdiffApp(faulty()), terminal_size=SIZE, run_before=shown(all_reports()[name]))


def test_sixteen_colours(snap_compare: Snap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.app.constants.COLOR_SYSTEM", "standard")
    assert snap_compare(LayerdiffApp(faulty()), terminal_size=SMALL, run_before=shown(defect_against_right(), "tab", "tab"))
