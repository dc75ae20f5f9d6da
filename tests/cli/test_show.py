"""The exit code of the terminal: that of what it showed last, and of half a comparison none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from layerdiff.cli.show import browse
from layerdiff.compare import compare_traces
from layerdiff.tui.app import LayerdiffApp
from tests.test_unfinished import CAPTURES

CASE = CAPTURES / "epsilon"


@pytest.mark.parametrize(("complete", "failed", "expected"), [(True, None, 1), (False, None, 130), (False, 2, 2)])
def test_codes(monkeypatch: pytest.MonkeyPatch, complete: bool, failed: int | None, expected: int) -> None:
    found = compare_traces(CASE / "reference.h5", CASE / "target.h5")

    def run(app: LayerdiffApp, **_: Any) -> None:
        app._first.comparison, app._first.complete, app._return_code = found, complete, failed

    monkeypatch.setattr(LayerdiffApp, "run", run)
    assert expected == browse(str(CASE / "reference.h5"), str(CASE / "target.h5"), None)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """`browse` leaves it off for the first paint."""
    import gc

    yield
    gc.enable()


def test_the_process_ends_under_what_still_computes() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()\n"
    code += "from layerdiff.cli.streams import leave; print('said', end=''); leave(130)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (130, "said") == (ended.returncode, ended.stdout)
