"""The calls inside one module call, as a list: its operators and the modules among them, in the order in which they ran.

Everything here is from the comparison alone; what only the traces know of a call (source line, scalars, producers) is
in rows.call_record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Source, Verdict
from layerdiff.rows.cells import cell_width, fit, shorten, visible
from layerdiff.rows.figures import RATIO_CELLS, UNKNOWN, amount, count, figure, ratio
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Segment, Tone, mark
from layerdiff.rows.values import pairs_of, value_name
from layerdiff.trace.schema import CallKind, Role

_WIDE: Final = 100
_FINDING: Final = 24
"""Cells of the finding; with less room it stands below the list only."""


def is_operator(rows: Rows, row: int) -> bool:
    """Whether a row is an operator call or a collective."""
    return int(rows.comparison.sites["kind"][row]) != CallKind.MODULE


def has_calls(rows: Rows, row: int) -> bool:
    """Whether operator calls were recorded right inside this call."""
    return bool(np.any(_kinds_inside(rows, row) != CallKind.MODULE))


def has_modules(rows: Rows, row: int) -> bool:
    """Whether module calls were recorded right inside this call."""
    return bool(np.any(_kinds_inside(rows, row) == CallKind.MODULE))


def _kinds_inside(rows: Rows, row: int) -> NDArray[Any]:
    tree = rows.tree
    kinds: NDArray[Any] = np.asarray(rows.comparison.sites["kind"])[tree.row[tree.children(int(tree.place_of[row]))]]
    return kinds


def inside(rows: Rows, row: int) -> list[int]:
    """Rows of the calls right inside a call, in execution order."""
    tree = rows.tree
    return [int(found) for found in tree.row[tree.children(int(tree.place_of[row]))]]


def enclosing(rows: Rows, row: int) -> int | None:
    """The row of the call around a call; None at the top."""
    above = int(rows.tree.parent[rows.tree.place_of[row]])
    return None if above < 0 else int(rows.tree.row[above])


class CallColumns(NamedTuple):
    """Widths in cells; 0 leaves a column out."""

    name: int
    output: int
    incoming: int
    outgoing: int
    ratio: int
    verdict: int
    finding: int


def call_columns(rows: Rows, calls: Sequence[int], width: int) -> CallColumns:
    """Share the width of a screen; the verdict column is as wide as the longest word that occurs."""
    wide = width >= _WIDE
    codes = np.unique(rows.seen.worst[rows.tree.place_of[list(calls)]]).tolist() if calls else []
    verdict = 2 + max((len(mark(code).word) for code in codes), default=9)
    outgoing = 8 if width >= 50 else 0
    over = RATIO_CELLS if width >= 64 else 0
    incoming = 8 if wide else 0
    output = 20 if wide else 16 if width >= 72 else 0
    fixed = sum(w + 2 for w in (outgoing, over, incoming, output, verdict) if w)
    rest = max(10, width - fixed)
    finding = rest - 34 - 2 if rest - 34 - 2 >= _FINDING else 0
    name = rest - finding - 2 if finding else min(rest, 60)
    return CallColumns(name, output, incoming, outgoing, over, verdict, finding)


def call_heading(widths: CallColumns) -> Line:
    """The line above the list."""
    cells = [fit("call", widths.name)]
    if widths.output:
        cells.append(fit("out", widths.output))
    if widths.incoming:
        cells.append(fit("Δ in", widths.incoming, align="right"))
    if widths.outgoing:
        cells.append(fit("Δ out", widths.outgoing, align="right"))
    if widths.ratio:
        cells.append(fit("×allowed", widths.ratio, align="right"))
    cells.append(fit("verdict", widths.verdict))
    if widths.finding:
        cells.append(fit("finding", widths.finding))
    return Line((Segment("  ".join(cells), Tone.DIM),))


def call_line(rows: Rows, row: int, widths: CallColumns) -> Line:
    """One call of the list."""
    sites, place = rows.comparison.sites, int(rows.tree.place_of[row])
    module = not is_operator(rows, row)
    own, worst = int(sites["verdict"][row]), int(rows.seen.worst[place])
    shown = mark(worst if module else own)
    origin = place in rows.seen.origin_at
    name = rows.names.short(place)
    only = one_sided(rows, row)
    name_tone = Tone.STRONG if origin else {"reference": Tone.REFERENCE, "target": Tone.TARGET}.get(only, Tone.PLAIN)
    sign = "▸ " if module else {"reference": "- ", "target": "+ "}.get(only, "  ")
    segments = [Segment(sign, Tone.DIM), Segment(fit(name, widths.name - 2, at="middle"), name_tone)]
    gap = Segment("  ")
    number = Tone.PLAIN if origin else Tone.DIM
    if widths.output:
        segments += [gap, Segment(fit(output_text(rows, row, widths.output), widths.output, at="middle"), Tone.DIM)]
    if widths.incoming:
        segments += [gap, Segment(fit(_difference(rows, row, output=False), widths.incoming, align="right"), number)]
    if widths.outgoing:
        segments += [gap, Segment(fit(_difference(rows, row, output=True), widths.outgoing, align="right"), number)]
    if widths.ratio:
        known = rows.seen.worst_ratio(place, int(rows.tree.end[place]))
        tone = shown.tone if known is not None and known > 1 and shown.tone in (Tone.FAULT, Tone.BROKEN, Tone.NOTICE) else number
        segments += [gap, Segment(fit(ratio(known), widths.ratio, align="right"), tone)]
    segments += [gap, Segment(fit(f"{shown.glyph} {shown.word}", widths.verdict), shown.tone)]
    if widths.finding:
        segments += [gap, Segment(fit(finding(rows, row), widths.finding), Tone.PLAIN if origin else Tone.DIM)]
    return Line(tuple(segments))


def one_sided(rows: Rows, row: int) -> str:
    """The side that alone ran a call; empty where both did."""
    sites = rows.comparison.sites
    return "reference" if sites["target_call"][row] < 0 else "target" if sites["reference_call"][row] < 0 else ""


def output_text(rows: Rows, row: int, cells: int) -> str:
    """`f32→bf16 [1,18,64]` of the first output, or the target's alone where both do not fit."""
    comparison = rows.comparison
    for pair in pairs_of(comparison, row):
        if comparison.pairs["role"][pair] == Role.OUTPUT:
            reference, target = (value_name(comparison, int(pair), side) for side in ("reference", "target"))
            if one_sided(rows, row) == "target" or reference.dtype in (UNKNOWN, target.dtype):
                return _brief(target.text)
            if target.dtype == UNKNOWN:
                return _brief(reference.text)
            both = f"{_brief(reference.dtype)}→{_brief(target.text)}"
            return both if cell_width(both) <= cells else _brief(target.text)
    return ""


def _brief(text: str) -> str:
    return text.replace("bfloat", "bf").replace("float8_", "f8").replace("float", "f").replace("int", "i")


def _difference(rows: Rows, row: int, *, output: bool) -> str:
    """The largest relative difference of what comes in, or goes out."""
    pairs = rows.comparison.pairs
    worst, known = 0.0, False
    for pair in pairs_of(rows.comparison, row):
        if bool(pairs["role"][pair] == Role.OUTPUT) is not output:
            continue
        source = int(pairs["source"][pair])
        if source in (Source.NOTHING, Source.PENDING):
            continue
        if pairs["nonfinite_differ"][pair] > 0:
            return "nan"
        number = 0.0 if pairs["equal"][pair] == 1 else float(pairs["statistic" if source == Source.STATISTICS else "rel_l2"][pair])
        if not np.isnan(number):
            worst, known = max(worst, number), True
    return figure(worst) if known else UNKNOWN


def finding(rows: Rows, row: int) -> str:
    """What is said of a call, on one line."""
    place = int(rows.tree.place_of[row])
    origin = rows.seen.origin_at.get(place)
    if origin is not None:
        return visible(origin.statement)
    hidden = rows.seen.origins_inside(place, int(rows.tree.end[place]))
    if hidden:
        return f"{amount(hidden, 'origin')} inside"
    return rows.statement(row)


def list_title(rows: Rows, row: int, calls: list[int], width: int) -> list[Line]:
    """Two lines: which module call, and what ran inside it."""
    place = int(rows.tree.place_of[row])
    shown = mark(int(rows.seen.worst[place]))
    right = f"{shown.glyph} {shown.word} "
    name = shorten(rows.names.full(place), max(8, width - cell_width(right) - 3), at="middle")
    kind = rows.names.type(place) or ""
    room = width - cell_width(name) - cell_width(right) - 4
    kind = f"  {kind}" if kind and kind != name and cell_width(kind) + 2 < room else ""
    gap = " " * max(1, width - 1 - cell_width(name) - cell_width(kind) - cell_width(right))
    first = Line((Segment(f" {name}", Tone.TITLE), Segment(kind, Tone.DIM), Segment(gap), Segment(right, shown.tone)))
    operators = sum(is_operator(rows, call) for call in calls)
    parts = [amount(operators, "operator call")]
    if len(calls) > operators:
        parts.append(amount(len(calls) - operators, "module"))
    alone = [one_sided(rows, call) for call in calls]
    parts += [f"{count(alone.count(side))} in the {side} only" for side in ("reference", "target") if side in alone]
    codes = rows.seen.worst[rows.tree.place_of[calls]] if calls else np.zeros(0, np.uint8)
    tally = [(v, int(np.count_nonzero(codes == v))) for v in sorted(Verdict, reverse=True) if np.any(codes == v)]
    said = [Segment(f" {', '.join(parts)}", Tone.STRONG)]
    for verdict, number in tally:
        its = mark(verdict)
        said += [Segment("  ·  ", Tone.FAINT), Segment(f"{its.glyph} {count(number)} {its.word}", its.tone)]
    return [first, Line(tuple(said)).clipped(width)]
