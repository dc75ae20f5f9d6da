"""The error of one sum as lines: how it is spread in units of sigma, which terms it is made of, and where in the result it sits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from layerdiff.arithmetic.orders.analysis import Analysis, TermRange
from layerdiff.arithmetic.residual import ZMAX_LIMIT, ZRMS_LIMIT
from layerdiff.rows.cells import fit, visible, wrap
from layerdiff.rows.figures import amount, count
from layerdiff.rows.order.ladder import number
from layerdiff.rows.section import LABEL, heading, labelled
from layerdiff.rows.tones import Line, Segment, Tone, line

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_HEIGHT: Final = 5
_TICKS: Final = (-12, -6, 0, 6, 12)
_STRIP: Final = 96
_NEAR: Final = 0.1
"""How near to -1 or 1 terms are called missing or counted twice, where noise does not blur more."""
_RIGHT: Final = "─"
_TERM: Final = ("·", "")
_SIGMAS: Final = 6.0
"""How many times its noise c must be before a stretch is called anything but right."""
_HARMLESS: Final = ("identical", "order-exact", "order-consistent")
"""Rounding has a direction, too: what it does to c is no fault where the verdict is none."""


def error_lines(analysis: Analysis, width: int) -> Iterator[Line]:
    """The histogram of error over sigma, with the figures that the limits are for."""
    known = not math.isnan(analysis.zrms)
    if analysis.histogram is None and not known:
        return
    drawn = analysis.histogram is not None and any(number for _, number in analysis.histogram)
    yield heading("how far off", width, "error over sigma" + (" · log counts · beyond 12 at the ends" if drawn else ""))
    over = known and (analysis.zrms > ZRMS_LIMIT or analysis.zmax > ZMAX_LIMIT)
    bad = Tone.NOTICE if analysis.verdict == "precision" else Tone.FAULT
    tone = bad if over else Tone.WITHIN
    if analysis.histogram is not None and drawn:
        yield from _histogram(analysis.histogram, tone, width)
    if known:
        for label, value, limit in (("rms", analysis.zrms, ZRMS_LIMIT), ("largest", analysis.zmax, ZMAX_LIMIT)):
            within = value <= limit
            yield line(
                (f"  {fit(label, LABEL - 2)}", Tone.DIM), (number(value), Tone.STRONG), f" of {number(limit)} allowed  ",
                ("✓ within" if within else "▲ over", Tone.WITHIN if within else bad),
            )  # fmt: skip
    if analysis.chain is not None and analysis.terms:
        chain = amount(round(analysis.chain), "addition") if analysis.chain < 1e6 else f"{number(analysis.chain)} additions"
        chain = "less than one addition" if analysis.chain < 0.5 else chain
        short = visible(analysis.accumulator)
        yield from labelled("chain", f"as {chain} in {short} one after the other would make; this sum has {count(analysis.terms)}", width)
    if analysis.slope is not None:
        t = "" if analysis.slope_t is None else f", t {number(analysis.slope_t)}"
        yield from labelled("slope", f"{number(analysis.slope)} of the result itself{t}", width)


def _histogram(bins: Sequence[tuple[float, int]], tone: Tone, width: int) -> Iterator[Line]:
    """Bars of eighths on a log scale of counts, over an axis of z."""
    room = max(16, min(98, width - LABEL - 2))
    pooled = -(-len(bins) // room)
    counts = [sum(number for _, number in bins[i : i + pooled]) for i in range(0, len(bins), pooled)]
    wide = max(1, room // len(counts))
    most = max(counts)
    levels = [0 if not n else max(1, round(8 * _HEIGHT * math.log1p(n) / math.log1p(most))) for n in counts]
    for row in range(_HEIGHT):
        floor = 8 * (_HEIGHT - 1 - row)
        bars = "".join(_EIGHTHS[min(8, max(0, level - floor))] * wide for level in levels)
        label = count(most) if row == 0 else "1" if row == _HEIGHT - 1 and most > 1 else ""
        yield line((fit(label, LABEL - 2, align="right") + " │", Tone.DIM), (bars.rstrip(), tone))
    length = len(counts) * wide
    low, high = bins[0][0], bins[-1][0] + (bins[-1][0] - bins[0][0]) / max(1, len(bins) - 1)
    rule, marks = ["─"] * (length + 1), [" "] * (length + 6)
    for tick in _TICKS:
        at = round((tick - low) / (high - low) * length) if high > low else 0
        if 0 <= at <= length:
            rule[at] = "┴"
            text = f"{tick:+d}" if tick else "0"
            first = max(0, at - len(text) // 2)
            marks[first : first + len(text)] = text
    yield line((" " * (LABEL - 1) + "└" + "".join(rule)[1:], Tone.DIM))
    yield line((" " * (LABEL - 1) + "".join(marks).rstrip(), Tone.DIM), (" σ", Tone.DIM))


def term_lines(analysis: Analysis, width: int) -> Iterator[Line]:
    """A strip over the terms, and each stretch that is not right."""
    terms = analysis.terms
    if not analysis.ranges or terms < 1:
        return
    yield heading("terms", width, "c: -1 is missing, 0 right, +1 counted twice")
    ranges = _joined(analysis.ranges)
    wrong = [] if analysis.verdict in _HARMLESS else [stretch for stretch in ranges if _kind(stretch) is not None]
    if not wrong:
        largest = max(analysis.ranges, key=lambda stretch: abs(stretch.share))
        noise = f", where noise of this size makes {largest.noise:.2g}" if math.isfinite(largest.noise) and largest.noise > 0 else ""
        yield from labelled("", f"✓ every term is there, and once: |c| at most {abs(largest.share):.2g}{noise}", width)
        return
    cells = min(_STRIP, width - LABEL - len(count(terms)) - 1, terms)
    strip: list[Segment] = []
    for i in range(cells):
        glyph, tone = _kind_at(ranges, (2 * i + 1) * terms / (2 * cells))
        if strip and strip[-1].tone == tone:
            strip[-1] = Segment(strip[-1].text + glyph, tone)
        else:
            strip.append(Segment(glyph, tone))
    yield line((f"  {fit('0', LABEL - 3, align='right')} ", Tone.DIM), *strip, (f" {count(terms)}", Tone.DIM))
    for stretch in wrong:
        glyph, word = _kind(stretch) or _TERM
        where = f"[{stretch.first}, {stretch.last})"
        part = _part(stretch, terms)
        yield line(
            (f"  {glyph * 2} ", Tone.FAULT), (fit(where, 18), Tone.STRONG), (fit(word, 15), Tone.FAULT),
            f"c {stretch.share:+.4g}", (f" ± {stretch.noise:.2g}", Tone.DIM), (f"   {part}" if part else "", Tone.PLAIN),
        )  # fmt: skip


def _kind(stretch: TermRange) -> tuple[str, str] | None:
    """The glyph and word of a stretch that is not right; None for one that is."""
    if not abs(stretch.share) > _SIGMAS * stretch.noise:
        return None
    near = max(_NEAR, _SIGMAS * stretch.noise)
    if abs(stretch.share + 1) <= near:
        return "╳", "missing"
    if abs(stretch.share - 1) <= near:
        return "╪", "counted twice"
    return "≁", "too large" if stretch.share > 0 else "too small"


def _joined(ranges: Sequence[TermRange]) -> list[TermRange]:
    """Neighbours of one kind as one stretch: the mean of c, and the noise of that mean."""
    joined: list[TermRange] = []
    for kind, group in groupby(ranges, key=_kind):
        for run in _runs(list(group), kind is not None):
            lengths = [stretch.last - stretch.first for stretch in run]
            whole = sum(lengths) or 1
            share = sum(length * stretch.share for length, stretch in zip(lengths, run, strict=True)) / whole
            noise = math.sqrt(sum((length * stretch.noise) ** 2 for length, stretch in zip(lengths, run, strict=True))) / whole
            joined.append(TermRange(run[0].first, run[-1].last, share, noise))
    return joined


def _runs(group: list[TermRange], wrong: bool) -> list[list[TermRange]]:
    """Stretches that follow each other; right ones stay apart, since their c is not drawn."""
    if not wrong:
        return [[stretch] for stretch in group]
    runs: list[list[TermRange]] = []
    for stretch in group:
        if runs and runs[-1][-1].last == stretch.first:
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    return runs


def _kind_at(ranges: Sequence[TermRange], term: float) -> tuple[str, Tone]:
    for stretch in ranges:
        if stretch.first <= term < stretch.last:
            kind = _kind(stretch)
            return (_RIGHT, Tone.WITHIN) if kind is None else (kind[0], Tone.FAULT)
    return "·", Tone.FAINT


def _part(stretch: TermRange, terms: int) -> str:
    """`part 1 of 4, counted from 0` where a stretch is one of equal parts."""
    length = stretch.last - stretch.first
    if length < 1 or length == terms or terms % length or stretch.first % length:
        return ""
    return f"part {stretch.first // length} of {terms // length}, counted from 0"


def profile_lines(analysis: Analysis, width: int) -> Iterator[Line]:
    """Where along each axis the error sits, as a row of bars; even shares stand at half the height."""
    if not analysis.profiles:
        return
    yield heading("where it sits", width, "share of all squared error at each place")
    for profile in analysis.profiles:
        shares = [share if math.isfinite(share) else 0.0 for share in profile.shares][: max(8, width - LABEL)]
        top = max([*shares, 2 / max(1, len(shares))])
        bars = "".join(_EIGHTHS[max(1 if share > 0 else 0, round(8 * share / top))] for share in shares)
        marked = profile.concentrated and analysis.verdict not in _HARMLESS
        words, tone = visible(profile.statement), Tone.FAULT if marked else Tone.DIM
        words = f"▲ {words}" if profile.concentrated else words
        beside = width - LABEL - len(bars) - 3
        first, *rest = [words, ""] if len(words) <= beside else ["", *wrap(words, width - LABEL, lines=3)]
        yield line(
            (f"  {fit(visible(profile.axis), LABEL - 2)}", Tone.DIM),
            (bars, tone if marked else Tone.WITHIN),
            (f"  {first}", tone),
        )
        yield from (line(" " * LABEL, (more, tone)) for more in rest if more)
