"""Names from strangers' files: what a terminal gets to see of them, and how wide it is."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from layerdiff.rows.cells import cell_width, fit, shorten, visible, wrap


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.3", "model.layers.3"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("safe\u202egpj.exe", "safe\\u202egpj.exe"),
        ("zero\u200bwidth\u200djoin\ufeff", "zero\\u200bwidth\\u200djoin\\ufeff"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
        ("编码器.层", "编码器.层"),
        ("e\u0301", "e\\u0301"),
        ("\U000e0041", "\\U000e0041"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_invisible_characters_become_escapes(name: str, expected: str) -> None:
    assert visible(name) == expected


def test_every_character_is_shown_as_what_the_terminal_library_counts() -> None:
    wrong = [c for c in map(chr, range(0x20000)) if cell_width(visible(c)) != cell_len(visible(c))]
    assert wrong == []


def test_no_character_can_steer_a_terminal() -> None:
    steering = [c for c in map(chr, range(0x20000)) if not visible(c).isprintable()]
    assert steering == []


def test_a_name_of_ten_thousand_characters_is_cut() -> None:
    shown = visible("a" * 5000 + "b" * 5000)
    assert shown == "a" * 1000 + "…" + "b" * 1000


@pytest.mark.parametrize(
    ("text", "cells", "expected"),
    [
        ("model.layers.3.self_attn", 24, "model.layers.3.self_attn"),
        ("model.layers.3.self_attn", 11, "mode…f_attn"),
        ("编码器编码器", 7, "编…码器"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_names_are_shortened_in_the_middle(text: str, cells: int, expected: str) -> None:
    assert shorten(text, cells, at="middle") == expected


@pytest.mark.parametrize("text", ["plain", "编码器", "a编b", "", "x" * 50])
@pytest.mark.parametrize("cells", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("at", ["middle", "end"])
def test_fit_takes_exactly_its_cells(text: str, cells: int, at: str) -> None:
    assert cell_width(fit(text, cells, at=at)) == cells  # type: ignore[arg-type]


def test_wrap_breaks_at_spaces_and_says_when_it_cuts() -> None:
    assert wrap("inputs agree and outputs do not", 12, lines=5) == ["inputs agree", "and outputs", "do not"]
    assert wrap("inputs agree and outputs do not", 12, lines=2) == ["inputs agree", "and outputs…"]
    assert wrap("x" * 25, 10, lines=5) == ["x" * 10, "x" * 10, "x" * 5]
