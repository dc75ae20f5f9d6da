"""The race of one sum as lines: which orders make the recorded results bit for bit, how close the next comes, what was never tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from layerdiff.arithmetic.orders.analysis import Analysis, Hypothesis
from layerdiff.arithmetic.orders.race import ENOUGH
from layerdiff.rows.cells import cell_width, fit, shorten, visible, wrap
from layerdiff.rows.figures import count
from layerdiff.rows.section import LABEL, bar, heading, labelled
from layerdiff.rows.tones import Line, Tone, line

_WINNERS: Final = 6
_OTHERS: Final = 7
_ALSO: Final = 12
_LEAST_BAR, _LONGEST_BAR, _LEAST_NAME = 8, 32, 28
"""Cells."""
_UNTRIED: Final = "any other order, orders that change from result to result, and atomics, which have none"
_UNTRIED_WAYS: Final = "any other way to compute it, another library's exponential or root to its last bit among them"


def candidate_lines(analysis: Analysis, width: int) -> Iterator[Line]:
    """A bar a candidate, the winners first; then the gap, and what was tried and what not."""
    if not analysis.hypotheses:
        return
    ways = all(one.kind == "variant" for one in analysis.hypotheses)
    winners, others = analysis.winners, [one for one in analysis.hypotheses if not one.won]
    useful = [one for one in others[:_OTHERS] if one.made] or others[:1]
    shown = [*winners[:_WINNERS], *useful]
    yield heading("how it was computed" if ways else "candidate orders", width, "results made bit for bit, of those tried")
    yield from (line("    ", piece) for piece in wrap(visible(analysis.computed), width - 4, lines=6))
    made = [f"{count(one.made)} of {count(one.tried)}" for one in shown]
    numbers = max(map(len, made))
    alike = len(shown) > 1 and len({_how(one) for one in shown}) == 1
    names = [visible(one.name) for one in shown]
    hows = ["" if alike else _how(one) for one in shown]
    name, how = (max(map(cell_width, texts)) for texts in (names, hows))
    cells = width - name - how - numbers - (10 if how else 8)
    if cells < _LEAST_BAR:  # one text for both; that of a winner is written below where it is cut
        names = [", ".join(text for text in texts if text) for texts in zip(names, hows, strict=True)]
        hows = [""] * len(shown)
        beaten = max((cell_width(text) for text, one in zip(names, shown, strict=True) if not one.won), default=0)
        name = min(max(beaten, _LEAST_NAME), max(map(cell_width, names)), width - _LEAST_BAR - numbers - 8)
        cells = width - name - numbers - 8
    for one, text, said, number in zip(shown, names, hows, made, strict=True):
        yield _candidate(one, fit(shorten(text, name), name), said, fit(number, numbers, align="right"), min(cells, _LONGEST_BAR))
        yield from _names(one, text if cell_width(text) > name else "", width)
    more = len(winners) - _WINNERS, len(others) - len(useful)
    if more[0] > 0:
        what = "hold" if ways else "make them all"
        yield line((f"    and {count(more[0])} more that {what}: these results do not tell them apart", Tone.DIM))
    if more[1] > 0:
        rest = others[len(useful) :]
        best = max(rest, key=lambda one: one.share)
        words = f"{count(more[1])} more are in the JSON, the best of them {count(best.made)} of {count(best.tried)}"
        yield line((f"    {words}", Tone.DIM))
    if alike and _how(shown[0]):
        yield from labelled("all in", _how(shown[0]), width)
    if not ways:
        yield from _gap(analysis, width)
    if analysis.tried:
        yield from labelled("tried", " · ".join(visible(text) for text in analysis.tried), width)
    yield from labelled("never tried", _UNTRIED_WAYS if ways else _UNTRIED, width, tone=Tone.DIM)


def fit_lines(analysis: Analysis, width: int) -> Iterator[Line]:
    """Parameters that were fitted to the results, each with its uncertainty and what the call was given."""
    if not analysis.fits:
        return
    yield heading("fitted", width, "what the results say that a parameter was")
    name = max(LABEL, *(cell_width(visible(one.name)) + 4 for one in analysis.fits))
    values = [f"{one.value:.6g} ± {one.error:.2g}" for one in analysis.fits]
    for one, value in zip(analysis.fits, values, strict=True):
        tone = Tone.WITHIN if one.inside else Tone.FAULT
        yield line(
            ("  " + fit(visible(one.name), name - 2), Tone.DIM), (fit(value, max(map(len, values))), Tone.STRONG),
            f"   declared {one.declared:.6g}   ", ("✓ inside" if one.inside else "▲ outside", tone),
        )  # fmt: skip


def _how(one: Hypothesis) -> str:
    """The arithmetic of a candidate."""
    return visible(one.arithmetic)


def _candidate(one: Hypothesis, name: str, how: str, made: str, cells: int) -> Line:
    tone = Tone.DIM if not one.won else Tone.NOTICE if one.kind == "lower" else Tone.WITHIN
    glyph = " " if not one.won else {"lower": "◆", "variant": "✓"}.get(one.kind, "≡")
    filled, empty = bar(one.share, cells)
    return line(
        (f"  {glyph} ", tone), (f"{name}  ", Tone.STRONG if one.won else Tone.PLAIN), (filled, tone), (empty, Tone.FAINT),
        (f"  {made}", tone if one.won else Tone.PLAIN), (f"  {how}" if how else "", Tone.DIM),
    )  # fmt: skip


def _names(one: Hypothesis, cut: str, width: int) -> Iterator[Line]:
    """The whole name of a winner where it was `cut`, and its other names."""
    if one.won and cut:
        yield from (line("    ", piece) for piece in wrap(cut, width - 4, lines=3))
    if one.won and one.also:
        left = len(one.also) - _ALSO
        text = ", ".join(visible(other) for other in one.also[:_ALSO]) + (f", and {left} more names" if left > 0 else "")
        yield from (line("    ", (piece, Tone.DIM)) for piece in wrap(f"the same as {text}", width - 4, lines=3))


def _gap(analysis: Analysis, width: int) -> Iterator[Line]:
    """How sure a name is."""
    next_one = analysis.runner_up
    if not analysis.winners:
        if 0 < analysis.informative < ENOUGH:
            few = f"too few results: {count(analysis.informative)} tell orders apart, {ENOUGH} are needed for a name"
            yield from labelled("gap", few, width, tone=Tone.NOTICE)
        return
    if next_one is not None:
        missed = next_one.tried - next_one.made
        text = f"the next, {visible(next_one.name)}, misses {count(missed)} of {count(next_one.tried)}"
        sure = missed >= ENOUGH
        yield from labelled(
            "gap", text if sure else f"{text}: under {ENOUGH}, so the name is not sure", width, tone=Tone.PLAIN if sure else Tone.NOTICE
        )
