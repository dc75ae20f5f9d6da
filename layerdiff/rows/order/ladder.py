"""The ladder of one sum as lines: what was asked, in order, with what was measured and allowed; the test that decided is marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from layerdiff.arithmetic.orders.analysis import Analysis, Test
from layerdiff.rows.cells import cell_width, fit, shorten, visible, wrap
from layerdiff.rows.evidence import facts
from layerdiff.rows.figures import count, exact
from layerdiff.rows.section import heading, labelled
from layerdiff.rows.tones import Line, Tone, line

_OUTCOMES: Final = {"holds": "✓ holds", "fails": "– fails", "not asked": "· not asked"}
_INDENT: Final = 6
"""Mark and rung."""
_ELSEWHERE: Final = ("terms", "accumulator", "informative", "ranges", "terms_bad", "part", "parts")
"""Evidence that other parts say."""
_BESIDE: Final = 44
"""Cells from which on a sentence stands beside its test, and not below."""


def number(value: float | None) -> str:
    """A figure of the ladder: counts whole, the rest with four digits."""
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e7:
        return count(int(value))
    if 1e6 <= abs(value) < math.inf:
        mantissa, exponent = f"{value:.3g}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < math.inf else exact(float(f"{value:.4g}"))


def ladder_lines(analysis: Analysis, tone: Tone, width: int) -> Iterator[Line]:
    """Every test that was asked on a line, with its sentence; `tone` is that of the verdict."""
    if not analysis.tests:
        return
    yield heading("the tests", width, "in the order asked · ▸ decided")
    asked = [test for test in analysis.tests if not is_skipped(test)]
    columns = _columns(asked, width)
    for skipped, group in groupby(analysis.tests, key=is_skipped):
        if skipped:
            yield from _skipped(list(group), width)
        else:
            for test in group:
                text = "" if test.decided and test.statement == analysis.statement else visible(test.statement)
                yield from _asked(test, text, tone, columns, width)
    evidence = " · ".join(facts({key: value for key, value in analysis.evidence.items() if key not in _ELSEWHERE}))
    if evidence:
        yield from labelled("evidence", evidence, width, lines=6)


def is_skipped(test: Test) -> bool:
    """Whether there is nothing to say of a test that was not asked."""
    return test.outcome == "not asked" and not test.decided and not test.statement


def _figures(test: Test) -> str:
    if test.measured is None:
        return ""
    return number(test.measured) if test.allowed is None else f"{number(test.measured)} of {number(test.allowed)}"


class _Columns(NamedTuple):
    """Widths in cells; 0 where there is no room, and what would stand there goes below."""

    name: int
    outcome: int
    figures: int
    sentence: int


def _columns(asked: Sequence[Test], width: int) -> _Columns:
    name = max((cell_width(visible(test.name)) for test in asked), default=0)
    outcome = max((cell_width(_OUTCOMES[test.outcome]) for test in asked), default=0)
    figures = max((cell_width(_figures(test)) for test in asked), default=0)
    rest = width - _INDENT - outcome - 2
    if name + figures + 2 > rest:
        return _Columns(min(name, rest), outcome, 0, 0)
    sentence = rest - name - figures - 6
    return _Columns(name, outcome, figures, sentence if sentence >= _BESIDE else 0)


def _asked(test: Test, text: str, tone: Tone, columns: _Columns, width: int) -> Iterator[Line]:
    """A test on a line, and its sentence, which is left out where it stands at the head of everything."""
    strong, quiet = (Tone.STRONG, Tone.PLAIN) if test.decided else (Tone.PLAIN, Tone.DIM)
    figures = _figures(test)
    if not columns.figures and figures:
        text = f"{figures} · {text}" if text else figures
    pieces = wrap(text, max(10, columns.sentence or width - _INDENT), lines=6)
    first = pieces.pop(0) if pieces and columns.sentence else ""
    indent = width - columns.sentence if columns.sentence else _INDENT
    yield line(
        ("▸ " if test.decided else "  ", tone), (fit(visible(test.rung), 3, align="right") + " ", Tone.DIM),
        (fit(shorten(visible(test.name), columns.name), columns.name + 2), strong),
        (fit(_OUTCOMES[test.outcome], columns.outcome), tone if test.decided else Tone.PLAIN),
        (fit(figures, columns.figures + 2, align="right") if columns.figures else "", strong), (f"    {first}" if first else "", quiet),
    )  # fmt: skip
    yield from (line(" " * indent, (piece, quiet)) for piece in pieces)


def _skipped(tests: list[Test], width: int) -> Iterator[Line]:
    """Tests that were not asked share a line."""
    names = ", ".join(f"{visible(test.rung)} {visible(test.name)}" for test in tests)
    for i, piece in enumerate(wrap(f"not asked: {names}", max(10, width - _INDENT), lines=4)):
        yield line(("    · " if i == 0 else " " * _INDENT, Tone.FAINT), (piece, Tone.DIM))
