from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator

import pytest

from layerdiff.cli import comparing
from layerdiff.judge.tables import Verdict
from tests.comparisons import Progress, comparison, filling_in


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slowly(seconds: float) -> Iterator[Progress]:
    for step in filling_in(comparison(layers=3, faults={"model.layers.1": Verdict.BROKEN}), steps=4):
        time.sleep(seconds / 5)
        yield step


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, False), (1.5, True)])
def test_the_bar_comes_after_half_a_second_and_goes(monkeypatch: pytest.MonkeyPatch, seconds: float, shown: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    made = comparing._with_bar(slowly(seconds))
    assert made.defect
    assert ("comparing both runs" in terminal.getvalue()) == shown
    if shown:
        assert terminal.getvalue().endswith(("\x1b[2K", "\x1b[?25h"))  # the line is wiped and the cursor is back


def test_an_error_takes_the_bar_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def failing() -> Iterator[Progress]:
        yield from slowly(1.2)
        raise OSError(5, "Input/output error", "x.h5")

    with pytest.raises(OSError, match=r"x\.h5"):
        comparing._with_bar(failing())
    assert "\x1b[?25h" in terminal.getvalue()
