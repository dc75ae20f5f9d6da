"""The ladder of one sum as lines: what was asked, in order, with what was measured and allowed; the test that decided is marked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from layerdiff.arithmetic.orders.analysis import Analysis, Test
from layerdiff.rows.cells import cell_width, fit, visible, wrap
from layerdiff.rows.evidence import facts
from layerdiff.rows.figures import count, exact
from layerdiff.rows.section import heading, labelled
from layerdiff.rows.tones import Line, Tone, line

_OUTCOMES: Final = {"holds": "✓ holds", "fails": "– fails", "not asked": "· not asked"}
_OUTCOME: Final = 11
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
    figures = [_figures(test) for test in asked]
    wide = max((cell_width(text) for text in figures), default=0)
    longest = max((cell_width(visible(test.name)) for test in asked), default=0)
    name = max(12, min(longest, width - _INDENT - _OUTCOME - wide - 4))
    beside = width - _INDENT - name - _OUTCOME - wide - 8
    for skipped, group in groupby(analysis.tests, key=is_skipped):
        if skipped:
            yield from _skipped(list(group), width)
        else:
            for test in group:
                yield from _asked(test, tone, name, wide, beside, width)
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


def _asked(test: Test, tone: Tone, name: int, wide: int, beside: int, width: int) -> Iterator[Line]:
    text = visible(test.statement)
    strong, quiet = (Tone.STRONG, Tone.PLAIN) if test.decided else (Tone.PLAIN, Tone.DIM)
    room = beside if beside >= _BESIDE else width - _INDENT - 2
    pieces = wrap(text, max(10, room), lines=6)
    first = pieces.pop(0) if pieces and beside >= _BESIDE else ""
    indent = width - room if beside >= _BESIDE else _INDENT
    yield line(
        ("▸ " if test.decided else "  ", tone), (fit(visible(test.rung), 3, align="right") + " ", Tone.DIM),
        (fit(visible(test.name), name + 2), strong), (fit(_OUTCOMES[test.outcome], _OUTCOME), tone if test.decided else Tone.PLAIN),
        (fit(_figures(test), wide + 2, align="right"), strong), (f"    {first}" if first else "", quiet),
    )  # fmt: skip
    yield from (line(" " * indent, (piece, quiet)) for piece in pieces)


def _skipped(tests: list[Test], width: int) -> Iterator[Line]:
    """Tests that were not asked share a line."""
    names = ", ".join(f"{visible(test.rung)} {visible(test.name)}" for test in tests)
    for i, piece in enumerate(wrap(f"not asked: {names}", max(10, width - _INDENT), lines=4)):
        yield line(("    · " if i == 0 else " " * _INDENT, Tone.FAINT), (piece, Tone.DIM))
