"""All that is known of one line of the table: the finding in full, measured against allowed, and every value."""

from __future__ import annotations

import numpy as np

from layerdiff.judge.tables import Source
from layerdiff.rows.cells import cell_width, fit, shorten, visible, wrap
from layerdiff.rows.evidence import facts
from layerdiff.rows.figures import UNKNOWN, against, amount, count, figure, known, label, times
from layerdiff.rows.ranks.held import values_of
from layerdiff.rows.ranks.placement_words import ranks_text
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Segment, Tone, line, mark
from layerdiff.rows.values import index_text, pairs_of, shape_of


def detail(rows: Rows, index: int, width: int, *, most: int = 1000, table: int | None = None) -> list[Line]:
    """Lines for line `index` of the table, each at most `width` cells, and the table of values at most `table`.

    `most` bounds the lines of a statement and the values.
    """
    row = rows.row(index)
    if rows.is_fold(index):
        return [made.clipped(width) for made in _fold(rows, index, width)]
    place = int(rows.tree.place_of[row])
    sites, texts = rows.comparison.sites, rows.comparison.texts
    lines = [_name(rows, place, row, width)]

    shown = mark(int(sites["verdict"][row]))
    statement = rows.statement(row)
    origins = rows.origins_of(row)
    for origin in origins:
        own = mark(origin.verdict)
        text = visible(origin.statement)
        at = f"  {visible(origin.value)}" if len(origins) > 1 or origin.value != "out" else ""
        lines += _said(own.glyph, own.word + at, own.tone, text, width, most)
        lines.append(_measured(origin.measured, origin.allowed, visible(origin.rule), width))
        if origin.evidence:
            evidence = wrap("evidence  " + " · ".join(facts(origin.evidence)), width, lines=1 if most <= 2 else 20)
            lines += [line((text, Tone.DIM)) for text in evidence]
    if not origins:
        lines += _said(shown.glyph, shown.word, shown.tone, statement, width, most)
        inside = rows.seen.origins_inside(place, int(rows.tree.end[place]))
        if inside:
            lines.append(line((f"{amount(inside, 'origin')} inside", Tone.STRONG), ("; n goes there", Tone.DIM)))
        measured, allowed = float(sites["measured"][row]), float(sites["allowed"][row])
        if not (np.isnan(measured) and np.isnan(allowed)):
            rule = visible(texts[int(sites["rule"][row])] or "")
            lines.append(_measured(known(measured), known(allowed), rule, width))
    lines += _ranks(rows, row)
    end = int(rows.tree.end[place])
    if end > place + 1:
        lines.append(_inside(rows, place + 1, end, width))
    lines += _values(rows, row, min(width, table or width), most)
    return [made.clipped(width) for made in lines]


def _name(rows: Rows, place: int, row: int, width: int) -> Line:
    sites, texts = rows.comparison.sites, rows.comparison.texts
    note = "  ".join(visible(texts[int(sites[c][row])] or "") for c in ("operator", "type") if sites[c][row] >= 0)
    name = shorten(rows.names.full(place), width, at="middle")
    room = width - cell_width(name) - 2
    return line((name, Tone.TITLE), (f"  {shorten(note, room)}" if note and note != name and room > 4 else "", Tone.DIM))


def _said(glyph: str, word: str, tone: Tone, text: str, width: int, most: int) -> list[Line]:
    head = f"{glyph} {word}"
    if not text:
        return [line((head, tone))]
    indent = cell_width(head) + 2
    first, *rest = wrap(text, max(10, width - indent), lines=most)
    return [line((head, tone), f"  {first}"), *(line(" " * indent + more) for more in rest)]


def _measured(measured: float | None, allowed: float | None, rule: str, width: int) -> Line:
    over = times(measured, allowed, rule)
    figures = against(measured, allowed, rule) if measured is not None or allowed is not None else ""
    over = f"  {over}" if over else ""
    head = f"{label(measured, allowed, rule)}  " if figures else ""
    room = width - len(head) - len(figures) - len(over) - (2 if figures else 0)
    return line((head, Tone.DIM), figures, (over, Tone.STRONG), ("  " if figures else "", Tone.DIM), (shorten(rule, room), Tone.DIM))


def _fold(rows: Rows, index: int, width: int) -> list[Line]:
    members = np.array(rows.members(index))
    name = shorten(rows.fold_name(index), width - 30, at="middle")
    shown = mark(rows.verdict(index))
    lines = [
        line((name, Tone.TITLE), (f"  {count(len(members))} alike, folded: enter shows each", Tone.DIM)),
        line((f"{shown.glyph} {shown.word}", shown.tone), ("  the worst of them", Tone.DIM)),
    ]
    values = rows.seen.difference[members]
    known = np.flatnonzero(~np.isnan(values))
    if known.size:
        worst = int(members[known[np.argmax(values[known])]])
        spread = f"{figure(float(values[known].min()))} to {figure(float(values[known].max()))}"
        where = shorten(rows.names.full(worst), width // 2, at="middle")
        lines.append(line(("rel L2  ", Tone.DIM), spread, (f"  largest at {where}", Tone.DIM)))
    lines.append(_inside(rows, int(members[0]), int(rows.tree.end[members[-1]]), width))
    return lines


def _ranks(rows: Rows, row: int) -> list[Line]:
    """How ranks make up the value that is most worth a look: one that a rank is off in, else the first result."""
    values = values_of(rows.comparison, rows.placements, row)
    if not values:
        return []
    value = next((value for value in values if value.off or value.agree is False), values[0])
    off = ranks_text(value) or ("replicas differ" if value.agree is False else "")
    what = f"{visible(value.position)} {visible(value.name)}"
    return [
        line(("ranks     ", Tone.DIM), (f"✗ {off}  " if off else "", Tone.NOTICE), what, ("  r", Tone.ACCENT), (" shows each", Tone.DIM))
    ]


def _inside(rows: Rows, place: int, end: int, width: int) -> Line:
    """How many calls of which verdict a range of places holds."""
    tally = rows.seen.tally(place, end)
    text = ", ".join(f"{count(number)} {mark(verdict).word}" for verdict, number in tally)
    return line(("inside  ", Tone.DIM), shorten(f"{amount(end - place, 'call')}: {text}", width - 8))


def _values(rows: Rows, row: int, width: int, most: int) -> list[Line]:
    """One line a pair of values: outputs, then inputs, then weights."""
    mine = pairs_of(rows.comparison, row)
    if not mine.size:
        return []
    wide = width >= 100
    heads = ["value", "reference", "target", "rel L2", "max |Δ|", *(["max |ref|"] if wide else []), "worst element" if wide else "worst at"]
    body = [_value(rows, int(pair), wide) for pair in mine[:most]]
    widths = [max(cell_width(line_[i]) for line_ in [heads, *body]) for i in range(len(heads))]
    widths[0], widths[1], widths[2] = min(widths[0], 24), min(widths[1], width // 4), min(widths[2], width // 4)
    made = []
    for number, cells in enumerate([heads, *body]):
        tone = Tone.DIM if number == 0 else Tone.PLAIN
        numeric = range(3, len(heads) - 1)
        text = "  ".join(
            fit(cell, cells_wide, align="right" if i in numeric else "left", at="middle")
            for i, (cell, cells_wide) in enumerate(zip(cells, widths, strict=True))
        )
        made.append(Line((Segment(shorten(text.rstrip(), width), tone),)))
    if len(mine) > most:
        made.append(line((f"{amount(len(mine) - most, 'more value')}: v", Tone.DIM)))
    return made


def _value(rows: Rows, pair: int, wide: bool) -> list[str]:
    pairs, texts = rows.comparison.pairs, rows.comparison.texts

    def text(column: str) -> str:
        return visible(texts[int(pairs[column][pair])] or UNKNOWN)

    def tensor(side: str) -> str:
        return f"{text(f'{side}_dtype')} {text(f'{side}_shape')}".replace(", ", ",")

    source = int(pairs["source"][pair])
    number = known(float(pairs["statistic" if source == Source.STATISTICS else "rel_l2"][pair]))
    difference = "0" if pairs["equal"][pair] == 1 else ("~" if source == Source.STATISTICS else "") + figure(number)
    if pairs["mismatched"][pair] > 0:
        difference = f"{count(int(pairs['mismatched'][pair]))} differ"
    odd = int(pairs["nonfinite_differ"][pair])
    worst = index_text(int(pairs["worst"][pair]), shape_of(texts[int(pairs["reference_shape"][pair])]))
    if odd > 0:
        worst = f"{amount(odd, 'element')} not finite on one side; the figures are of the others"
    elif source in (Source.NOTHING, Source.PENDING):
        worst = "not compared" if source == Source.NOTHING else "pending"
    largest = [figure(known(float(pairs["max_reference"][pair])))] if wide else []
    furthest = figure(known(float(pairs["max_abs"][pair])))
    return [text("position"), tensor("reference"), tensor("target"), difference, furthest, *largest, worst]
