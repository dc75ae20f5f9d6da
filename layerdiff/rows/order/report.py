"""`OrderReport` as lines: the verdict and what leads to it, in the order in which a reader would doubt it.

Verdict, what was added, the tests, the orders that were tried, how far off the results are, which terms are missing, where the error
sits, the tree, and what would make two runs agree. A part that has nothing to say is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from layerdiff.arithmetic.orders.analysis import Analysis, OrderReport
from layerdiff.rows.cells import cell_width, fit, shorten, visible
from layerdiff.rows.figures import count
from layerdiff.rows.order.candidates import candidate_lines, fit_lines
from layerdiff.rows.order.error import error_lines, profile_lines, term_lines
from layerdiff.rows.order.ladder import ladder_lines
from layerdiff.rows.order.summation_tree import tree_lines
from layerdiff.rows.section import LABEL, heading, labelled, said
from layerdiff.rows.tones import MARKS, Line, Mark, Segment, Tone, line

Side = Literal["both", "reference", "target"]
LEAST: Final = 40
"""Cells that lines are made for at least; narrower screens cut them."""
_MARKS: Final = {shown.word: shown for shown in MARKS.values()}
_HARMLESS: Final = ("identical", "order-exact", "order-consistent")
"""Beside advice for both, these need none of their own."""
_SIDES: Final = {"reference": Tone.REFERENCE, "target": Tone.TARGET}


def mark_of(word: str) -> Mark:
    """The glyph, word and tone of a verdict."""
    return _MARKS.get(word, Mark("∅", visible(word), Tone.UNKNOWN))


def sides_of(report: OrderReport) -> tuple[Side, ...]:
    """What can be looked at: both together and each side, or the one there is."""
    return ("both", "reference", "target") if len(report.analyses) > 1 else ("both",)


def title_line(report: OrderReport, width: int) -> Line:
    """The site, its operator and the verdict."""
    first, shown = report.analyses[-1], mark_of(report.verdict)
    right = f"{shown.glyph} {shown.word} "
    name = shorten(visible(first.site), max(8, width - cell_width(right) - 3), at="middle")
    operator = visible(first.operator)
    room = width - cell_width(name) - cell_width(right) - 4
    operator = f"  {operator}" if operator not in name and cell_width(operator) + 2 < room else ""
    gap = " " * max(1, width - 1 - cell_width(name) - cell_width(operator) - cell_width(right))
    return line((f" {name}", Tone.TITLE), (operator, Tone.DIM), gap, (right, shown.tone)).clipped(width)


def order_lines(report: OrderReport, width: int, *, side: Side = "both") -> list[Line]:
    """All that is to be said of a report, at most `width` cells wide: of both traces together, then of each, or of one of them."""
    width = max(LEAST, width)
    lines: list[Line] = []
    if len(report.analyses) == 1 or side == "both":
        lines += _together(report, width)
    for analysis in report.analyses:
        if len(report.analyses) > 1 and side == "both":
            lines += [line(), _banner(analysis, width)]
        if len(report.analyses) == 1 or side in ("both", analysis.side):
            lines += _one(report, analysis, width, alone=side == analysis.side)
    return [made.clipped(width) for made in lines]


def _together(report: OrderReport, width: int) -> Iterator[Line]:
    shown = mark_of(report.verdict)
    yield from said(f"{shown.glyph} {shown.word}", shown.tone, visible(report.statement), width, tone=Tone.STRONG)
    for i, text in enumerate(report.composed):
        yield from labelled("composed" if i == 0 else "", visible(text), width)
    if len(report.analyses) == 1:
        side = report.analyses[0].side
        if side:
            yield from labelled("side", f"the {side}; the other side did not run this call", width, tone=_SIDES.get(side, Tone.PLAIN))
        return
    for analysis in report.analyses:
        own = mark_of(analysis.verdict)
        first, *rest = said(f"{own.glyph} {own.word}", own.tone, visible(analysis.statement), width - LABEL, lines=3)
        yield line(Segment(f"  {fit(analysis.side, LABEL - 2)}", _SIDES.get(analysis.side, Tone.DIM)), *first.segments)
        yield from (line(" " * LABEL, *more.segments) for more in rest)
    yield from _advice(report.advice, width)


def _banner(analysis: Analysis, width: int) -> Line:
    """Where one side begins."""
    tone, own = _SIDES.get(analysis.side, Tone.TITLE), mark_of(analysis.verdict)
    name, verdict = f"▐ {analysis.side} ▌", f" {own.glyph} {own.word} "
    return line((name, tone), (verdict, own.tone), ("━" * max(0, width - cell_width(name) - cell_width(verdict)), tone))


def _one(report: OrderReport, analysis: Analysis, width: int, *, alone: bool) -> Iterator[Line]:
    """One side; `alone` where nothing was said of both before it."""
    if alone:
        own = mark_of(analysis.verdict)
        yield from said(f"{own.glyph} {own.word}", own.tone, visible(analysis.statement), width, tone=Tone.STRONG)
    if analysis.cause:
        yield from labelled("cause", visible(analysis.cause), width, tone=Tone.STRONG)
    for part in (
        _added(analysis, width),
        ladder_lines(analysis, mark_of(analysis.verdict).tone, width),
        candidate_lines(analysis, width),
        fit_lines(analysis, width),
        error_lines(analysis, width),
        term_lines(analysis, width),
        profile_lines(analysis, width),
        _tree(analysis, width),
    ):
        lines = list(part)
        if lines:
            yield line()
            yield from lines
    beside = len(report.analyses) > 1 and not alone
    if beside and report.advice and analysis.verdict in _HARMLESS:
        return
    advice = (*analysis.advice, *(() if beside else report.advice))
    yield from _advice(tuple(dict.fromkeys(text for text in advice if not beside or text not in report.advice)), width)


def _added(analysis: Analysis, width: int) -> Iterator[Line]:
    yield heading("what was added", width)
    yield from labelled("operands", visible(analysis.operands.replace("->", "→")), width)
    if analysis.terms:
        yield from labelled("terms", f"{count(analysis.terms)} a result", width)
    source = visible(analysis.source)
    yield from labelled("accumulator", f"{visible(analysis.accumulator)}, {'as said by ' if source != 'assumed' else ''}{source}", width)
    whole = analysis.compared == analysis.results
    looked = "all compared" if whole else f"{count(analysis.compared)} compared ({visible(analysis.sampled)})"
    telling = f"; {count(analysis.informative)} tell orders apart" if analysis.informative else ""
    yield from labelled("results", f"{count(analysis.results)}, {looked}{telling}", width)


def _tree(analysis: Analysis, width: int) -> Iterator[Line]:
    if analysis.tree is None:
        return
    yield heading("the tree", width, visible(analysis.winners[0].name) if analysis.winners else "")
    yield from (line("  ", *drawn.segments) for drawn in tree_lines(analysis.tree, width - 2))


def _advice(advice: tuple[str, ...], width: int) -> Iterator[Line]:
    if not advice:
        return
    yield line()
    yield heading("what to do", width)
    for text in advice:
        yield from said("  →", Tone.ACCENT, visible(text), width)
