"""A reduction-order analysis as markdown, for an issue tracker: the verdict, the tests with their figures, the orders that were tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from layerdiff.arithmetic.orders.analysis import Analysis, Hypothesis, OrderReport
from layerdiff.report.escape import code, fenced, text
from layerdiff.rows.figures import count
from layerdiff.rows.order.error import error_lines, profile_lines, term_lines
from layerdiff.rows.order.ladder import is_skipped, number
from layerdiff.rows.order.report import mark_of

_CANDIDATES: Final = 12
_ALSO: Final = 8
_WIDTH: Final = 100


def order_markdown(report: OrderReport, *, level: int = 2) -> str:
    """The report as GitHub-flavoured markdown, its headings from `level` on; made to stand alone or as a section of another report."""
    return "\n".join(_report(report, "#" * level)).rstrip("\n") + "\n"


def _report(report: OrderReport, marks: str) -> Iterator[str]:
    yield f"{marks} Reduction order: {report.verdict} at {code(report.analyses[-1].site)}\n"
    yield f"**{text(report.statement)}**\n"
    several = len(report.analyses) > 1
    for line in report.composed:
        yield f"- {text(line)}"
    if several:
        for analysis in report.analyses:
            yield f"- {analysis.side}: {_verdict(analysis)}: {text(analysis.statement)}"
        yield ""
    for analysis in report.analyses:
        if several:
            yield f"{marks}# {analysis.side.capitalize()}\n"
        yield from _added(analysis)
        yield from _tests(analysis)
        yield from _candidates(analysis)
        yield from _drawn(analysis)
    advice = dict.fromkeys((*report.advice, *(one for analysis in report.analyses for one in analysis.advice)))
    if advice:
        yield f"{marks}# What to do\n"
        yield from (f"- {text(one)}" for one in advice)


def _verdict(analysis: Analysis) -> str:
    return f"{mark_of(analysis.verdict).glyph} {analysis.verdict}" + (f" ({text(analysis.cause)})" if analysis.cause else "")


def _added(analysis: Analysis) -> Iterator[str]:
    yield f"- {code(analysis.operator)}: {text(analysis.operands.replace('->', '→'))}"
    terms = f"{count(analysis.terms)} terms a result; " if analysis.terms else ""
    yield f"- {terms}accumulator {text(analysis.accumulator)} ({text(analysis.source)})"
    whole = analysis.compared == analysis.results
    looked = "all compared" if whole else f"{count(analysis.compared)} compared ({text(analysis.sampled)})"
    yield f"- {count(analysis.results)} results, {looked}; {count(analysis.informative)} tell orders apart\n"


def _tests(analysis: Analysis) -> Iterator[str]:
    if not analysis.tests:
        return
    yield "| | test | outcome | measured | allowed | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for test in analysis.tests:
        if is_skipped(test):
            continue
        name = f"**{text(test.name)}**" if test.decided else text(test.name)
        decided = "▸ " if test.decided else ""
        cells = (decided + text(test.rung), name, test.outcome, number(test.measured), number(test.allowed), text(test.statement))
        yield f"| {' | '.join(cells)} |"
    skipped = [f"{test.rung} {test.name}" for test in analysis.tests if is_skipped(test)]
    if skipped:
        yield f"\nNot asked: {text(', '.join(skipped))}."
    yield ""


def _candidates(analysis: Analysis) -> Iterator[str]:
    if analysis.computed:
        yield f"{text(analysis.computed)}\n"
    yield from (f"- {text(one.text)}" for one in analysis.fits)
    if analysis.fits:
        yield ""
    shown = analysis.hypotheses[:_CANDIDATES]
    if not shown:
        return
    yield "| candidate | arithmetic | bit for bit | |"
    yield "| --- | --- | --- | --- |"
    for one in shown:
        also = f" (the same as {', '.join(map(text, one.also[:_ALSO]))})" if one.also else ""
        name = f"**{text(one.name)}**{also}" if one.won else text(one.name)
        yield f"| {name} | {text(one.arithmetic)} | {count(one.made)} of {count(one.tried)} | {_won(one)} |"
    left = len(analysis.hypotheses) - len(shown)
    if left > 0:
        yield f"\n{count(left)} more are in the JSON (`--json FILE`)."
    if analysis.tried:
        yield f"\nTried: {'; '.join(text(one) for one in analysis.tried)}."
    yield ""


def _won(one: Hypothesis) -> str:
    return "" if not one.won else "holds" if one.kind == "variant" else "makes them all"


def _drawn(analysis: Analysis) -> Iterator[str]:
    """What is best seen: the histogram, the terms, the profiles, as the terminal draws them."""
    parts = [list(part(analysis, _WIDTH)) for part in (error_lines, term_lines, profile_lines)]
    drawn = "\n\n".join("\n".join(line.plain.rstrip() for line in part) for part in parts if part)
    if drawn:
        yield fenced(drawn)
        yield ""
