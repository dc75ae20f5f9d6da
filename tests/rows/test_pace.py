"""The bar: as long as what is done, never wider than asked, and without numbers while nobody knows any."""

from __future__ import annotations

import pytest

from layerdiff.rows.figures import size
from layerdiff.rows.pace import Pace


def test_share_amounts_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("layerdiff.rows.pace.monotonic", lambda: now)
    pace = Pace(size)
    assert pace.line(60).plain.split() == ["╸" + "─" * 41, "esc", "stops"]
    pace.to(0, 4_000_000)
    assert "   0%  0 B of 4.0 MB  esc stops" in pace.line(80).plain
    now = 102.0
    pace.to(1_000_000, 4_000_000)
    text = pace.line(80).plain
    assert "  25%  1.0 MB of 4.0 MB  500 kB/s  6 s left  esc stops" in text
    pace.to(0, 10)  # the next of several
    now = 110.0
    pace.to(5, 10)
    assert "50%  5 B of 10 B  1 B/s  8 s left" in pace.line(80).plain


def test_without_a_total_there_is_neither_share_nor_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("layerdiff.rows.pace.monotonic", lambda: now)
    pace = Pace()
    pace.to(0, None)
    now = 104.0
    pace.to(28_160, None)
    text = pace.line(80).plain
    assert "28,160 so far  7040/s  for 4 s  esc stops" in text
    assert not any(word in text for word in ("%", " of ", "left"))
    now = 104.5
    assert text != pace.line(80).plain, "the bar moves"


def test_what_takes_longer_than_it_was_to_names_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("layerdiff.rows.pace.monotonic", lambda: now)
    pace = Pace()
    pace.to(0, 100)
    now = 102.0
    pace.to(50, 100)
    assert "2 s left" in pace.line(80).plain
    now = 103.0
    assert "1 s left" in pace.line(80).plain
    now = 110.0
    assert "left" not in pace.line(80).plain and "50%" in pace.line(80).plain
    pace.to(100, 100)
    assert "left" not in pace.line(80).plain


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_it_is_as_wide_as_the_screen(width: int) -> None:
    pace = Pace()
    pace.to(3, 10)
    assert len(pace.line(width).plain) <= width
    filled, rest = pace.line(width).plain.count("━"), pace.line(width).plain.count("─")
    assert filled / (filled + rest + 1) == pytest.approx(0.3, abs=0.05)
