"""Every key, and the mouse, on a running app."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from textual.pilot import Pilot

from layerdiff.errors import TraceError
from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.listing import Sort
from layerdiff.tui.actions import LAYERS_ACTIONS
from layerdiff.tui.app import LayerdiffApp
from layerdiff.tui.screens.layers import LayersScreen
from layerdiff.tui.screens.page import Page
from layerdiff.tui.widgets.curve import CurveView
from layerdiff.tui.widgets.rule import Rule
from layerdiff.tui.widgets.search import SearchBox
from layerdiff.tui.widgets.table import SiteTable
from tests.comparisons import Progress, comparison, filling_in
from tests.tui.apps import ACT, NORM, faulty, faulty_app

SIZE = (120, 40)


def screen_of(app: LayerdiffApp) -> LayersScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, LayersScreen)
    return screen


def selected(app: LayerdiffApp) -> str:
    """The site under the cursor; of a fold, its name."""
    screen = screen_of(app)
    assert screen.rows is not None
    index = screen.table.cursor
    if screen.rows.is_fold(index):
        return screen.rows.line(index).plain.split()[1]
    return screen.rows.names.site(int(screen.rows.tree.place_of[screen.rows.row(index)]))


def painted(app: LayerdiffApp) -> list[str]:
    """Every line of the screen."""
    size = app.size
    return ["".join(segment.text for segment in line) for line in app.screen._compositor.render_strips(size)]


async def after(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def test_starts_on_the_first_origin() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE):
        assert selected(app) == NORM


async def test_n_p_and_f_go_to_origins() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        found = []
        for key in ("n", "n", "p", "N", "n", "f"):
            await after(pilot, key)
            found.append(selected(app))
        assert found == [ACT, NORM, ACT, NORM, ACT, NORM]


async def test_n_finds_an_origin_in_a_closed_call() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "g", "left", "n")
        assert selected(app) == NORM


async def test_moving() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        table, last = screen_of(app).table, len(rows) - 1
        found = []
        for key in ("g", "j", "down", "k", "up", "G", "g", "end", "home", "pagedown", "pageup"):
            await after(pilot, key)
            found.append(table.cursor)
        page = table.size.height - 1
        assert found == [0, 1, 2, 1, 0, last, 0, last, 0, min(page, last), 0]


async def test_fold_and_unfold() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        lines = len(rows)
        await after(pilot, "down", "down", "down", "down")
        assert selected(app) == "layers.4..19"
        await after(pilot, "enter")
        assert (selected(app), len(rows)) == ("model.layers.4", lines + 15)
        await after(pilot, "right")
        assert (selected(app), len(rows)) == ("model.layers.4", lines + 19)
        await after(pilot, "right")
        assert selected(app) == "model.layers.4.input_layernorm"
        await after(pilot, "left", "h")
        assert (selected(app), len(rows)) == ("model.layers.4", lines + 15)
        await after(pilot, "space")
        assert len(rows) == lines + 19
        await after(pilot, "space", "left")
        assert (selected(app), len(rows)) == ("layers.4..19", lines)
        await after(pilot, "l", "l", "l")
        assert selected(app) == "model.layers.4.input_layernorm"


async def test_x_opens_everything_and_back() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        lines = len(rows)
        await after(pilot, "x")
        assert (len(rows), selected(app)) == (422, NORM)
        await after(pilot, "x")
        assert (len(rows), selected(app)) == (lines, NORM)


async def test_search_keeps_its_list_on_enter_and_drops_it_on_escape() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        await after(pilot, "slash", *"q_proj")
        assert len(rows) == 32
        await after(pilot, "enter")
        assert (len(rows), len(app.screen.query(SearchBox)), type(app.focused)) == (32, 0, SiteTable)
        await after(pilot, "down", "enter")
        assert (selected(app), rows.flat) == ("model.layers.1.self_attn.q_proj", False)
        await after(pilot, "slash", *"norm", "escape")
        assert (rows.query, len(app.screen.query(SearchBox))) == ("", 0)
        await after(pilot, "slash", *"nowhere", "enter")
        assert len(rows) == 0
        assert any("no site matches" in line for line in painted(app))
        await after(pilot, "n", "enter", "space", "left", "v", "escape")
        assert rows.query == "", "escape leaves the search"


async def test_a_search_among_origins_says_what_they_hide() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "o", "slash", *"q_proj", "enter")
        assert any("no origin matches: 32 other sites do, o shows them" in line for line in painted(app))
        await after(pilot, "o")
        rows = screen_of(app).rows
        assert rows is not None
        assert (len(rows), rows.query) == (32, "q_proj")


async def test_profile_is_judged_again_off_the_screen() -> None:
    threads: list[bool] = []

    def rejudge(_: object, profile: str) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return faulty(profile)

    app = LayerdiffApp(faulty(), rejudge=rejudge)  # type: ignore[arg-type]  # the builder does not look at what it is given
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "n", "t")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.comparison is not None
        assert (app.comparison.profile["name"], len(app.comparison.origins), selected(app)) == ("relaxed", 1, ACT)
        await after(pilot, "t")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.comparison.profile["name"] == "strict"
        assert threads == [False, False]


async def test_a_profile_that_cannot_be_judged_is_said() -> None:
    def rejudge(*_: object) -> object:
        raise TraceError("no numbers for [bold]this")

    app = LayerdiffApp(faulty(), rejudge=rejudge)  # type: ignore[arg-type]  # never returns
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await after(pilot, "t")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert [n.message for n in app._notifications] == ["cannot judge by relaxed: no numbers for [bold]this"]
        assert selected(app) == NORM


async def test_sort_goes_round() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        found = []
        for _ in range(3):
            await after(pilot, "s")
            found.append(rows.sort)
        assert found == [Sort.DIFFERENCE, Sort.RATIO, Sort.EXECUTION]


async def test_only_origins_and_enter_shows_one_in_the_tree() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        await after(pilot, "o")
        assert (len(rows), selected(app)) == (2, NORM)
        await after(pilot, "n")
        assert (len(rows), selected(app)) == (2, ACT)
        await after(pilot, "enter")
        assert (rows.flat, selected(app)) == (False, ACT)
        await after(pilot, "o", "o")
        assert rows.flat is False


async def test_the_same_site_in_other_steps() -> None:
    app = LayerdiffApp(comparison(layers=2, steps=3, faults={"lm_head": Verdict.UNEXPLAINED}))
    async with app.run_test(size=SIZE) as pilot:
        found = []
        for key in ("right_square_bracket", "right_square_bracket", "right_square_bracket", "left_square_bracket"):
            await after(pilot, key)
            screen = screen_of(app)
            assert screen.rows is not None
            found.append(int(screen.rows.comparison.sites["step"][screen.rows.row(screen.table.cursor)]))
        assert found == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("key", "title", "content"),
    [
        ("a", "Site", "epsilon 1e-6, reference 1e-5 (fit within 1%)"),
        ("i", "Notices and alignment", "reference float32, target bfloat16 at 422 of 422 sites"),
        ("e", "Report (markdown)", "layerdiff: defect at"),
        ("question_mark", "Help", "Go to the next origin"),
    ],
)
async def test_pages_open_scroll_and_close(key: str, title: str, content: str) -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, key)
        assert isinstance(app.screen, Page)
        lines = painted(app)
        assert any(title in line for line in lines)
        assert any(content in line for line in lines)
        await after(pilot, "j", "k", "G", "g", "space")
        await pilot.resize_terminal(60, 16)
        await after(pilot, "escape")
        assert app.screen is screen_of(app)
        assert selected(app) == NORM


async def test_d_changes_the_colours_and_nothing_else() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        dark = painted(app)
        await after(pilot, "d")
        assert (app.theme, painted(app)) == ("layerdiff-light", dark)
        await after(pilot, "d")
        assert app.theme == "layerdiff-dark"


async def test_the_palette_lists_every_action() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        listed = {command.title for command in app.get_system_commands(app.screen)}
        assert {action.long for action in LAYERS_ACTIONS} < listed
        await after(pilot, "ctrl+p", *"only", "enter")
        await pilot.pause()
        screen = screen_of(app)
        assert screen.rows is not None
        assert screen.rows.only_origins is True


async def test_q_leaves() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "q")
    assert (app.return_code, app.comparison is not None and app.comparison.defect) == (0, True)


async def test_what_is_said_for_a_moment_hides_only_the_keys_and_stays_on_its_screen() -> None:
    app = faulty_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.pause(0.2)
        before = painted(app)
        await after(pilot, "right_square_bracket")
        await pilot.pause(0.2)
        assert "no later call of this site" in painted(app)[-1]
        assert before[:-1] == painted(app)[:-1]
        await after(pilot, "i")
        await pilot.pause(0.2)
        assert not any("no later call" in line for line in painted(app))


async def test_all_of_a_site_fits_a_small_screen() -> None:
    app = faulty_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await after(pilot, "a")
        at = next(i for i, text in enumerate(painted(app)) if text.strip().startswith("value "))
        assert "worst at" in painted(app)[at] and painted(app)[at + 1].strip().startswith("out ")


async def test_ctrl_c_leaves_too() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "slash", "ctrl+c")
    assert (0, True) == (app.return_code, app.complete)


async def test_leaving_waits_for_nobody_and_half_a_comparison_is_no_answer() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def states() -> Iterator[Progress]:
        yield next(filling_in(faulty(), steps=4))
        go_on.wait(20)
        ended.set()

    app = LayerdiffApp(states())
    try:
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: screen_of(app).rows is not None)
            await after(pilot, "q")
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 5)
        assert not ended.is_set(), "it computes still"
        assert (0, False) == (app.return_code, app.complete)
    finally:
        go_on.set()


async def test_the_mouse_selects_folds_opens_and_scrolls() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        rows = screen_of(app).rows
        assert rows is not None
        await after(pilot, "g")
        await pilot.click(SiteTable, offset=(30, 2))
        assert selected(app) == "model.embed_tokens"
        lines = len(rows)
        await pilot.click(SiteTable, offset=(4, 1))
        await pilot.pause()
        assert (selected(app), len(rows)) == ("model", 3), "the arrow of model folds it"
        await pilot.click(SiteTable, offset=(4, 1))
        await pilot.pause()
        assert len(rows) == lines
        await pilot.click(SiteTable, offset=(30, 4), times=2)
        await pilot.pause()
        assert (selected(app), len(rows)) == ("model.layers.0", lines + 2)


async def test_a_click_on_the_curve_jumps() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        curve = app.screen.query_one(CurveView)
        drawn = curve._current()
        assert drawn is not None
        await after(pilot, "g")
        at = int(drawn.origin.nonzero()[0][1])
        await pilot.click(CurveView, offset=(at + 7, 5))
        await pilot.pause()
        assert selected(app) == ACT


async def test_a_click_on_a_key_does_it() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.click("KeyBar", offset=(2, 0))
        await pilot.pause()
        assert selected(app) == ACT


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (40, 12), (300, 90)])
async def test_any_size_can_be_drawn(size: tuple[int, int]) -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.resize_terminal(*size)
        await after(pilot, "n", "j", "x", "G")
        assert [len(line) for line in painted(app)][:1] == [size[0]]
        await pilot.resize_terminal(*SIZE)
        await after(pilot, "x", "f")
        assert selected(app) == NORM


# a comparison on its way


async def until(pilot: Pilot[None], condition: object) -> None:
    for _ in range(200):
        if condition():  # type: ignore[operator]  # a function
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not come to be in 4 s")


async def test_verdicts_fill_in_and_the_cursor_finds_the_first_origin() -> None:
    go = threading.Event()

    def states() -> Iterator[Progress]:
        first, *others = filling_in(faulty(), steps=4)
        yield first
        go.wait(5)
        yield from others

    app = LayerdiffApp(states())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: screen_of(app).rows is not None)
        await pilot.pause()
        lines = painted(app)
        assert any("pending" in line for line in lines)
        assert any("0%  0 B of 2.0 GB" in line and "esc stops" in line for line in lines)
        go.set()
        await until(pilot, lambda: screen_of(app).comparing is None)
        await pilot.pause()
        assert selected(app) == NORM
        assert not any("esc stops" in line for line in painted(app))


async def test_escape_stops_and_keeps_what_is_there() -> None:
    closed = threading.Event()

    def states() -> Iterator[Progress]:
        first, second, *_ = filling_in(faulty(), steps=4)
        try:
            yield first
            while True:
                yield second
        finally:
            closed.set()

    app = LayerdiffApp(states())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: screen_of(app).rows is not None)
        await after(pilot, "escape")
        await until(pilot, lambda: screen_of(app).comparing is None)
        assert closed.is_set(), "the generator was closed"
        assert not app.complete
        assert app.comparison is not None
        assert screen_of(app).rows is not None


async def test_a_user_who_moved_is_not_pulled_away() -> None:
    go = threading.Event()

    def states() -> Iterator[Progress]:
        first, *others = filling_in(faulty(), steps=4)
        yield first
        go.wait(5)
        yield from others

    app = LayerdiffApp(states())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: screen_of(app).rows is not None)
        await after(pilot, "G")
        go.set()
        await until(pilot, lambda: screen_of(app).comparing is None)
        await pilot.pause()
        assert selected(app) == "lm_head"


async def test_traces_that_cannot_be_read_are_said_on_the_screen() -> None:
    def states() -> Iterator[Progress]:
        raise TraceError("reference.h5 is not a trace: \x1b[31m it starts with 'PK'; record it again")
        yield

    app = LayerdiffApp(states())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: screen_of(app).comparing is None)
        await pilot.pause()
        assert any("reference.h5 is not a trace: \\x1b[31m it starts with 'PK'" in line for line in painted(app))
        await after(pilot, "n", "enter", "space", "s", "o", "x", "t", "e", "v", "i", "d", "slash", "G", "q")
    assert (app.return_code, app.comparison) == (2, None)


async def test_a_fault_of_our_own_does_not_leave_a_dead_screen() -> None:
    def states() -> Iterator[Progress]:
        yield next(filling_in(faulty()))
        raise RuntimeError("oh")

    app = LayerdiffApp(states())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, lambda: screen_of(app).comparing is None)
        await pilot.pause()
        assert [n.message for n in app._notifications] == ["comparing stopped: RuntimeError: oh"]
        assert screen_of(app).rows is not None
        await after(pilot, "q")
    assert app.return_code == 2


async def test_the_table_words_only_what_is_on_view(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerdiff.rows.sites.table import Rows
    from tests.comparisons import of_size

    worded: list[int] = []
    line = Rows.line
    monkeypatch.setattr(Rows, "line", lambda self, index: (worded.append(index), line(self, index))[1])
    app = LayerdiffApp(of_size(100_000))
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "x", "G")
        assert len(set(worded)) < 150
        assert len(worded) < 300


def test_no_torch_and_no_heavy_widget_is_imported() -> None:
    import subprocess
    import sys

    heavy = ("torch", "textual.widgets._data_table", "textual.widgets._markdown", "layerdiff.compare", "layerdiff.report")
    code = f"import sys, layerdiff.tui.app; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_rule_draws_before_it_has_a_size() -> None:
    async def run() -> None:
        app = faulty_app()
        async with app.run_test(size=(5, 2)):
            app.screen.query_one(Rule).progress(0, 0)

    asyncio.run(run())


async def test_a_page_hides_all_behind_it_at_any_size() -> None:
    for size in ((80, 24), (120, 40), (200, 50)):
        app = faulty_app()
        async with app.run_test(size=size) as pilot:
            await after(pilot, "question_mark")
            text = "\n".join(painted(app))
            assert "n next origin" not in text and "difference by depth  rel" not in text
            assert not any(line.strip() == "[" for line in painted(app))


async def test_the_curve_tells_over_from_within_without_colour() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        shown = painted(app)
        assert any("within" in line and "▄× over" in line and "▒ NaN" in line for line in shown)
        (axis,) = [line for line in shown if "└" in line]
        assert "▲" in axis and "×" in axis
        assert "×" not in axis[: axis.index("▲")], "layers before the first origin have the same bits"


async def test_leaving_a_sort_or_a_search_keeps_the_cursor_on_its_site() -> None:
    app = faulty_app()
    async with app.run_test(size=SIZE) as pilot:
        await after(pilot, "x", "s", "s", "down", "down", "down")
        site = selected(app)
        await after(pilot, "s")
        rows = screen_of(app).rows
        assert rows is not None
        assert (site, Sort.EXECUTION) == (selected(app), rows.sort)
        await after(pilot, "slash", *"q_proj")
        assert "q_proj" in (site := selected(app))
        await after(pilot, "escape")
        assert site == selected(app)
