"""What the screen looks like. `pytest --snapshot-update` after looking at the report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from layerdiff.judge.tables import Verdict
from layerdiff.tui.app import LayerdiffApp
from tests.comparisons import comparison
from tests.tui.apps import ACT, NORM, faulty_app

Snap = Callable[..., bool]
SIZES = [(120, 40), (80, 24)]


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


def test_faults(snap_compare: Snap, size: tuple[int, int]) -> None:
    assert snap_compare(faulty_app(), terminal_size=size)


def test_light(snap_compare: Snap) -> None:
    assert snap_compare(faulty_app(dark=False), terminal_size=(120, 40), press=["down", "down"])


def test_broken_and_a_fold_selected(snap_compare: Snap, size: tuple[int, int]) -> None:
    app = LayerdiffApp(comparison(faults={NORM: Verdict.DEFECT, ACT: Verdict.BROKEN}))
    assert snap_compare(app, terminal_size=size, press=["down"] * 4)


def test_clean(snap_compare: Snap, size: tuple[int, int]) -> None:
    assert snap_compare(LayerdiffApp(comparison()), terminal_size=size)


def test_pending(snap_compare: Snap, size: tuple[int, int]) -> None:
    assert snap_compare(LayerdiffApp(comparison(pending=True)), terminal_size=size)


def test_unpaired(snap_compare: Snap, size: tuple[int, int]) -> None:
    app = LayerdiffApp(comparison(layers=6, reference_only=["model.layers.4.mlp.act_fn"], target_only=["lm_head"]))
    assert snap_compare(app, terminal_size=size, press=["G"])


def test_search(snap_compare: Snap) -> None:
    assert snap_compare(faulty_app(), terminal_size=(120, 40), press=["slash", *"q_proj"])


def test_help(snap_compare: Snap, size: tuple[int, int]) -> None:
    assert snap_compare(faulty_app(), terminal_size=size, press=["question_mark"])


def test_names_from_a_strangers_file(snap_compare: Snap) -> None:
    evil = {NORM: "model.layers.3.\x1b[2J[bold]\u202e编码器\n<b>|", ACT: "x" * 10_000}
    app = LayerdiffApp(comparison(faults={NORM: Verdict.DEFECT, ACT: Verdict.UNEXPLAINED}, rename=evil))
    assert snap_compare(app, terminal_size=(120, 40))


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
def test_sixteen_colours(snap_compare: Snap, monkeypatch: pytest.MonkeyPatch, dark: bool) -> None:
    monkeypatch.setattr("textual.app.constants.COLOR_SYSTEM", "standard")
    assert snap_compare(faulty_app(dark=dark), terminal_size=(80, 24), press=["down"])
