"""The ranks screen: opened from every screen that has a site, gone through site by site, and what it looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from textual.pilot import Pilot

from layerdiff.compare import Progress, compare_in_steps, compare_traces
from layerdiff.errors import TraceError
from layerdiff.judge.tables import Source
from layerdiff.progress import tell
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.app import LayerdiffApp
from layerdiff.tui.screens.layers import LayersScreen
from layerdiff.tui.screens.page import Page
from layerdiff.tui.screens.ranks import RanksScreen
from layerdiff.tui.screens.tensor import TensorScreen
from tests.comparisons import comparison
from tests.ranked import ATTENTION, LAYER, four_ranks
from tests.ranks import Rank

Snap = Callable[..., bool]
SIZE = (120, 40)
SMALL = (80, 24)
CAPTURES = Path(__file__).parents[2] / "captures"
Q_PROJ = f"{ATTENTION}.q_proj"


def painted(app: LayerdiffApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def settled(pilot: Pilot[None]) -> None:
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def opened(pilot: Pilot[None], made: Comparison, site: str, *keys: str) -> None:
    """The screen of a site, then keys."""
    row = next(row for row, text in enumerate(made.sites["site"]) if made.texts[int(text)] == site)
    pilot.app.push_screen(RanksScreen(Rows(made), row, Traces()))
    await settled(pilot)
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


async def test_from_the_layers() -> None:
    app = LayerdiffApp(four_ranks())
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("n", "r")
        await settled(pilot)
        text = painted(app)
        assert Q_PROJ in text
        assert "✗ out: rank 2 alone is off: 3.00e-1, the others up to 1.30e-7" in text
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, LayersScreen)


async def test_from_the_values() -> None:
    app = LayerdiffApp(four_ranks())
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("n", "v")
        await settled(pilot)
        assert isinstance(app.screen, TensorScreen)
        await pilot.press("r")
        await settled(pilot)
        assert isinstance(app.screen, RanksScreen)
        assert "✗ rank 2" in painted(app)


async def test_the_first_screen_says_that_there_are_ranks() -> None:
    app = LayerdiffApp(four_ranks())
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        assert "r ranks" in painted(app).splitlines()[-1]
    app = LayerdiffApp(four_ranks())
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("n")
        await settled(pilot)
        said = "ranks     ✗ rank 2 alone is off: 3.00e-1, the others up to 1.30e-7  out sharded along 2, contiguous  r shows each"
        assert said in painted(app)
    app = LayerdiffApp(comparison(layers=4))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert "ranks" not in painted(app)


async def test_that_reading_takes_long_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go_on = Event()

    def slow(meetings: object, comparison: Comparison, traces: Traces) -> None:
        tell(1, 4)
        go_on.wait(20)
        raise TraceError("too late")

    monkeypatch.setattr("layerdiff.tui.screens.ranks._SOON_S", 0.05)
    monkeypatch.setattr("layerdiff.rows.ranks.meetings.Meetings.__init__", slow)
    made = four_ranks()
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        row = next(row for row, text in enumerate(made.sites["site"]) if made.texts[int(text)] == Q_PROJ)
        app.push_screen(RanksScreen(Rows(made), row, Traces()))
        await pilot.pause(0.4)
        assert "reading the collectives from the traces of all ranks" in painted(app)
        assert "25%  1 of 4  esc stops" in painted(app)
        assert "✗ rank 2" in painted(app)
        go_on.set()
        await settled(pilot)
        assert "too late" in painted(app)


async def test_one_process_has_no_ranks() -> None:
    app = LayerdiffApp(comparison(layers=4))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("r")
        await settled(pilot)
        assert isinstance(app.screen, LayersScreen)
        assert "the target is one process: ranks are those of a folder of traces" in [one.message for one in app._notifications]


async def test_from_site_to_site() -> None:
    made = four_ranks()
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, made, Q_PROJ)
        found = []
        for key in ("]", "]", "[", "[", "[", "[", "[", "["):
            await pilot.press("right_square_bracket" if key == "]" else "left_square_bracket")
            await settled(pilot)
            found.append(painted(app).splitlines()[0].split()[0])
        norm = f"{LAYER}.input_layernorm"
        k_proj, v_proj = f"{ATTENTION}.k_proj", f"{ATTENTION}.v_proj"
        assert [k_proj, v_proj, k_proj, Q_PROJ, ATTENTION, norm, "model.embed_tokens", "model.embed_tokens"] == found
        assert "this is the first site with values of ranks" in [one.message for one in app._notifications]


async def test_a_site_without_parts() -> None:
    made = four_ranks()
    app = LayerdiffApp(made)
    async with app.run_test(size=SMALL) as pilot:
        await opened(pilot, made, "model.layers.4.mlp")
        assert "∅  No value of this site is made up of the parts of several ranks." in painted(app)


async def test_help_explains_the_map() -> None:
    made = four_ranks()
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, made, Q_PROJ, "question_mark")
        assert isinstance(app.screen, Page)
        assert "partial" in painted(app) and "fits as well" in painted(app)


async def test_light_and_dark_and_another_width() -> None:
    made = four_ranks()
    app = LayerdiffApp(made)
    async with app.run_test(size=SMALL) as pilot:
        await opened(pilot, made, Q_PROJ, "d")
        before = painted(app)
        await pilot.resize_terminal(*SIZE)
        await settled(pilot)
        assert before != painted(app) and "✗ rank 2" in painted(app)


def communicating(folder: Path) -> Comparison:
    """Three ranks that add up and gather; rank 2 gets another sum, and does not gather."""
    ones = np.ones((4, 6), np.float32)
    alone = Rank(folder / "reference", 0, 1)
    alone.module("layers.0", "Linear", ones, ones)
    alone.close()
    for number in range(3):
        rank = Rank(folder / "target", number, 3)
        rank.module("layers.0", "Linear", ones[:, 2 * number : 2 * number + 2], ones)
        rank.issue("all_reduce", [(number + 1) * ones], [(7 if number == 2 else 6) * ones], op="sum", module="layers.0")
        if number < 2:
            rank.issue("all_gather", [number * ones], [0 * ones, ones, 2 * ones], module="layers.0")
        rank.close()
    return compare_traces(folder / "reference" / "rank00000.h5", folder / "target")


async def test_collectives_come_below_the_values(tmp_path: Path) -> None:
    made = communicating(tmp_path)
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, made, "")
        text = painted(app)
        assert "── collectives inside ── 2 in order" in text
        assert "1  all_reduce sum  ranks 0 to 2   float32 [4, 6]" in text
        assert "└  got other bits than the others" in text
        assert "✗ rank 2  did not issue it" in text
        await pilot.press("right_square_bracket")
        await settled(pilot)
        assert "layers.0" in painted(app) and "collectives" not in painted(app)


async def test_a_sum_that_nothing_inside_adds_up_is_said(tmp_path: Path) -> None:
    ones = np.arange(24, dtype=np.float32).reshape(4, 6)
    alone = Rank(tmp_path / "reference", 0, 1)
    alone.module("fc", "Linear", ones, ones)
    alone.close()
    for number in range(2):
        rank = Rank(tmp_path / "target", number, 2)
        rank.module("fc", "Linear", ones, ones * (0.75 if number else 0.25))
        rank.issue("all_reduce", [ones], [ones], op="sum", module="")
        rank.close()
    made = compare_traces(tmp_path / "reference" / "rank00000.h5", tmp_path / "target")
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, made, "fc")
        text = painted(app)
        assert "partial: the ranks add up to it" in text
        assert "◇  no collective was issued inside this call: the parts of the sum are added up elsewhere, or nowhere" in text


async def test_traces_that_are_gone_are_said_below_the_values(tmp_path: Path) -> None:
    made = communicating(tmp_path)
    (tmp_path / "target" / "rank00001.h5").unlink()
    app = LayerdiffApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, made, "layers.0")
        text = painted(app)
        assert "collectives are read from the traces: the target trace" in text and "is not there" in text
        assert "rank 1" in text


@pytest.mark.parametrize("size", [SIZE, SMALL], ids=lambda size: f"{size[0]}x{size[1]}")
def test_collectives(snap_compare: Snap, size: tuple[int, int], tmp_path: Path) -> None:
    made = communicating(tmp_path)

    async def ranks(pilot: Pilot[None]) -> None:
        await opened(pilot, made, "")

    assert snap_compare(LayerdiffApp(made), terminal_size=size, run_before=ranks)


@pytest.mark.parametrize("size", [SIZE, SMALL], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    "site",
    [Q_PROJ, ATTENTION, f"{ATTENTION}.k_proj", f"{ATTENTION}.v_proj", f"{ATTENTION}.o_proj", f"{LAYER}.mlp", f"{LAYER}.mlp.gate_proj"],
    ids=lambda site: site.rpartition(".")[2],
)
def test_placements(snap_compare: Snap, size: tuple[int, int], site: str) -> None:
    made = four_ranks()

    async def ranks(pilot: Pilot[None]) -> None:
        await opened(pilot, made, site)

    assert snap_compare(LayerdiffApp(made), terminal_size=size, run_before=ranks)


def test_light(snap_compare: Snap) -> None:
    made = four_ranks()

    async def ranks(pilot: Pilot[None]) -> None:
        await opened(pilot, made, Q_PROJ)

    assert snap_compare(LayerdiffApp(made, dark=False), terminal_size=SMALL, run_before=ranks)


async def test_while_it_compares_and_the_maps_when_they_come() -> None:
    reference, target = CAPTURES / "missing_all_reduce" / "reference.h5", CAPTURES / "missing_all_reduce" / "target"
    go_on = Event()

    def states() -> Iterator[Progress]:
        first, *others = compare_in_steps(reference, target, snapshot_seconds=1000.0)
        yield replaced(first)
        go_on.wait(20)
        yield others[-1]

    def replaced(progress: Progress) -> Progress:
        """As nothing was measured: the arrays of a comparison in the making go on being filled."""
        made = progress.comparison
        pairs = {**made.pairs, "source": np.full_like(made.pairs["source"], Source.PENDING)}
        blank = {name: column[:0] for name, column in made.placed.items()}
        return Progress(progress.done, progress.total, lambda: replace(made, pairs=pairs, placed=blank))

    app = LayerdiffApp(states())
    async with app.run_test(size=SIZE) as pilot:
        while not isinstance(app.screen, LayersScreen) or app.screen.rows is None:
            await pilot.pause(0.05)
        await pilot.press("enter", "v")
        await pilot.pause(0.3)
        assert "not compared yet" in painted(app)
        await pilot.press("r")
        await pilot.pause(0.3)
        assert isinstance(app.screen, RanksScreen)
        assert "Not compared yet: how the ranks make up the values" in painted(app)
        assert "one process" not in painted(app)
        go_on.set()
        await settled(pilot)
        assert "Not compared yet" not in painted(app)
        assert "── out" in painted(app)
        await pilot.press("escape")
        await settled(pilot)
        assert isinstance(app.screen, TensorScreen)
        assert "not compared yet" not in painted(app)
        assert app.screen.examined is not None and app.screen.examined.tensor.made_of
