"""The values of one site as many ranks hold them, in lines: a map of blocks a value, with the error of each rank's part beside it.

Results come first, then what was given, then weights. Whatever is alike on all ranks takes one row; a rank stands in a row of its own
where it holds something else or is off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from layerdiff.align.placement import FITS
from layerdiff.judge.tables import Placing, Source
from layerdiff.rows.cells import cell_width, fit, shorten, visible, wrap
from layerdiff.rows.figures import amount, figure, known
from layerdiff.rows.ranks.block_map import Cells, cells_of, closer, missing, row_of_missing, row_of_rank, ruler
from layerdiff.rows.ranks.placement_words import holds_text, kind_text, ranks_listed, ranks_text
from layerdiff.rows.section import heading, said
from layerdiff.rows.tones import Line, Segment, Tone, line, mark, rank_tone
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.placements import Part, PlacedValue, Placements
from layerdiff.trace.schema import Role

LEAST: Final = 50
"""Cells that lines are made for at least; narrower screens cut them."""
_ROLES: Final = {Role.OUTPUT: 0, Role.INPUT: 1, Role.WEIGHT: 2}
_LABEL: Final = 11
_FIGURE: Final = 8
_MOST_ROWS: Final = 32
"""Rows of one value; ranks that are off are among them whatever their number."""
_LOW: Final = -8
_HIGH: Final = 0
"""Ends of every bar, as powers of ten: the same at all sites, so that what is off is long wherever one looks."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class _Widths:
    """Cells of each part of a row: label, map, places held, bar, figure."""

    map: int
    holds: int
    bar: int

    @classmethod
    def of(cls, width: int) -> _Widths:
        holds, bar = (18, 16) if width >= 100 else (13, 8)
        return cls(max(8, width - 2 - _LABEL - holds - bar - _FIGURE - 7), holds, bar)


def _bar(error: float, cells: int) -> str:
    """An error on a log scale, exactly `cells` cells; any error at all shows, and 0 does not."""
    if not error > 0:
        return " " * cells
    share = 1.0 if math.isinf(error) else (math.log10(error) - _LOW) / (_HIGH - _LOW)
    eighths = min(8 * cells, max(1, round(share * 8 * cells)))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(cells)


def values_of(comparison: Comparison, placements: Placements, row: int) -> list[PlacedValue]:
    """The placed values of a site: results, then what was given, then weights."""
    roles = comparison.pairs["role"]
    return sorted(placements.of_site(row), key=lambda value: (_ROLES.get(Role(int(roles[value.pair])), 3), value.pair))


def title_lines(comparison: Comparison, row: int, name: str, values: Sequence[PlacedValue], width: int) -> list[Line]:
    """Two lines: the site and its verdict; how many ranks and values there are, and what stands out."""
    shown = mark(int(comparison.sites["verdict"][row]))
    right = f"{shown.glyph} {shown.word} "
    text = shorten(name, max(8, width - cell_width(right) - 3), at="middle")
    gap = " " * max(1, width - 1 - cell_width(text) - cell_width(right))
    ranks = {part.rank for value in values for part in value.parts}
    counted = f"{amount(len(ranks), 'rank')}, {amount(len(values), 'value')}"
    if not values:
        counted = amount(len(comparison.target.files), "rank")
    odd = [(value, said) for value in values if value.off and (said := ranks_text(value))]
    if odd:
        value, said = odd[0]
        more = f" (+{len(odd) - 1} more)" if len(odd) > 1 else ""
        note = [("  ✗ ", _odd_tone(comparison, row)), (f"{visible(value.position)}: {said}{more}", _odd_tone(comparison, row))]
    elif parted := [value for value in values if value.agree is False]:
        told = "the ranks differ, and do not add up" if all(map(maybe_sum, parted)) else "ranks that should hold the same differ"
        note = [("  ✗ ", _odd_tone(comparison, row)), (told, _odd_tone(comparison, row))]
    else:
        fault = _odd_tone(comparison, row) is not Tone.NOTICE
        alike = [("  no rank alone is off", Tone.DIM)] if fault else [("  = ", Tone.SAME), ("no rank stands out", Tone.DIM)]
        note = alike if len(ranks) > 1 else []
    second = line((f" {counted}", Tone.DIM), *note)
    return [line((f" {text}", Tone.TITLE), gap, (right, shown.tone)).clipped(width), second.clipped(width)]


def _odd_tone(comparison: Comparison, row: int) -> Tone:
    """A rank that stands out is a fault where its site is one; elsewhere it is worth a look."""
    tone = mark(int(comparison.sites["verdict"][row])).tone
    return tone if tone in (Tone.FAULT, Tone.BROKEN) else Tone.NOTICE


def map_lines(comparison: Comparison, row: int, values: Sequence[PlacedValue], width: int) -> list[Line]:
    """Every value of the site, at most `width` cells wide."""
    width = max(LEAST, width)
    drawn = [value for value in values if value.kind is not Placing.UNKNOWN]
    errors = [*(part.error for value in drawn for part in value.parts), *(_joined(comparison, value) for value in drawn)]
    titled = sum(bool(value.off) for value in values) == 1
    widths, odd = _Widths.of(width), _odd_tone(comparison, row)
    lines: list[Line] = []
    same = [value for value in values if _is_same(value)]
    same = same if len(same) > 1 else []
    for value in values:
        if value not in same:
            lines += [*([line()] if lines else []), *_value(comparison, value, widths, odd, width, titled=titled)]
    if same:
        lines += [*([line()] if lines else []), *_same_on_all(same, widths, width)]
    if any(not math.isnan(error) for error in errors):
        told = f"bars: relative L2 to the same part of the reference, log from 1e{_LOW} to 1e{_HIGH}"
        lines += [line(), line((f"  {told}", Tone.FAINT))]
    return [made.clipped(width) for made in lines]


def _is_same(value: PlacedValue) -> bool:
    """Whether every rank holds the same whole value, of which there is little to see."""
    return value.kind is Placing.REPLICATED and value.agree is True and len(value.parts) > 1 and not value.also


def _same_on_all(values: Sequence[PlacedValue], widths: _Widths, width: int) -> Iterator[Line]:
    """Values that every rank holds whole and alike, a row each."""
    yield heading("replicated", width, f"{amount(len(values), 'value')}, the same bits on every rank")
    for value in values:
        error, shape = value.parts[0].error, str(list(value.shape))
        room = _LABEL + widths.map + widths.holds + 4
        name = fit(visible(value.position), max(8, room - cell_width(shape) - 1), at="middle")
        yield line(
            ("  ", Tone.PLAIN),
            (name, Tone.PLAIN),
            (f"{shape} ", Tone.DIM),
            (_bar(error, widths.bar), Tone.PLAIN),
            (f" {fit(figure(known(error)), _FIGURE, align='right')}", Tone.PLAIN),
        )


def _joined(comparison: Comparison, value: PlacedValue) -> float:
    """Error of the logical tensor, NaN where it was not compared."""
    compared = int(comparison.pairs["source"][value.pair]) == Source.BYTES
    return float(comparison.pairs["rel_l2"][value.pair]) if compared else math.nan


def _value(comparison: Comparison, value: PlacedValue, widths: _Widths, odd: Tone, width: int, *, titled: bool) -> Iterator[Line]:
    """One value; `titled` where the title says already which of its ranks is off."""
    off = {id(part) for part in value.off}
    position, how = visible(value.position), kind_text(value) if value.kind is not Placing.UNKNOWN else ""
    fits = cell_width(position) + cell_width(how) + 11 <= width
    yield heading(position, width, how if fits else "", odd if off or value.agree is False else Tone.TITLE)
    if not fits:
        yield from (line((f"  {text}", Tone.DIM)) for text in wrap(how, width - 2, lines=3))
    if value.kind is Placing.UNKNOWN:
        yield line(("  ∅ ", Tone.UNKNOWN), (f"not put together: {visible(value.name)}", Tone.PLAIN))
        return
    size = value.size if value.kind is Placing.SHARDED else None
    holds = [part.holds for part in value.parts] if size is not None else []
    drawn = size is not None and all(runs is not None for runs in holds)
    cells = cells_of(holds, size, widths.map) if size is not None else Cells(*np.zeros((2, widths.map), np.int64))
    rows = _rows(value)
    for parts in rows[:_MOST_ROWS]:
        yield _row(value, parts, cells, widths, odd if id(parts[0]) in off else None, drawn=drawn or size is None)
    if len(rows) > _MOST_ROWS:
        left = [part for parts in rows[_MOST_ROWS:] for part in parts]
        worst = max((part.error for part in left if not math.isnan(part.error)), default=math.nan)
        yield line((f"  and {amount(len(left), 'more rank')}, up to {figure(known(worst))}", Tone.DIM))
    if size is not None and drawn:
        near = closer([(part.rank, part.holds) for part in value.parts], size, widths.map)
        if near is not None:
            yield line(("  " + fit("closer", _LABEL), Tone.DIM), " ", *near, ("  the first places", Tone.DIM))
        absent = missing(holds, size)
        if absent is not None:
            said_of = f"  ✗ {amount(int(absent.sum()), 'place')}"
            yield line(("  " + fit("no rank", _LABEL), Tone.FAULT), " ", *row_of_missing(absent, cells, widths.map), (said_of, Tone.FAULT))
    joined = _joined(comparison, value)
    if len(value.parts) > 1 and (size is not None or value.kind in (Placing.PARTIAL, Placing.NESTED)):
        label = "sum" if value.kind is Placing.PARTIAL else "together"
        below = ruler(size, cells, widths.map) if size is not None and drawn else " " * widths.map
        bar = [(f" {_bar(joined, widths.bar)} ", Tone.DIM), (fit(figure(known(joined)), _FIGURE, align="right"), Tone.DIM)]
        yield line(("  " + fit(label, _LABEL), Tone.DIM), (f" {below}  {' ' * widths.holds}", Tone.FAINT), *bar)
    yield from _remarks(comparison, value, odd, width, titled=titled)


def maybe_sum(value: PlacedValue) -> bool:
    """Whether ranks that hold the whole shape, each in its own way, may hold parts of a sum: none of them has the reference's value."""
    errors = [part.error for part in value.parts]
    return value.kind is Placing.REPLICATED and value.agree is False and len(errors) > 1 and all(error >= FITS for error in errors)


def _adds_up_elsewhere(comparison: Comparison, value: PlacedValue) -> str | None:
    """A call of the same module in another layer, or another call of the same one, whose ranks hold parts of a sum at this position."""
    sites, pairs, placed, texts = comparison.sites, comparison.pairs, comparison.placed, comparison.texts

    def place(pair: int) -> tuple[str, int]:
        site = texts[int(sites["site"][int(pairs["site"][pair])])] or ""
        return re.sub(r"\d+", "#", site), int(pairs["position"][pair])

    for pair in dict.fromkeys(np.asarray(placed["pair"])[np.asarray(placed["kind"]) == Placing.PARTIAL].tolist()):
        if place(pair) == place(value.pair):
            return texts[int(sites["site"][int(pairs["site"][pair])])]
    return None


def _remarks(comparison: Comparison, value: PlacedValue, odd: Tone, width: int, *, titled: bool) -> Iterator[Line]:
    text = ranks_text(value)
    if text and value.off and not titled:
        yield from said("  ✗", odd, text, width, tone=odd)
    if maybe_sum(value):
        told = "no rank has the reference's value, and they do not add up to it: copies that should agree, or parts of a sum that is off"
        if (other := _adds_up_elsewhere(comparison, value)) is not None:
            told = f"these should be parts of a sum, as at {visible(other)}, and do not add up to the reference's"
        yield from said("  ✗", odd, told, width)
    elif value.agree is False:
        yield from said("  ✗", odd, "ranks that hold the same places hold other numbers", width)
    elif value.agree and value.kind is Placing.SHARDED:
        yield from said("  =", Tone.SAME, "ranks that hold the same places hold the same numbers", width, tone=Tone.DIM)
    if value.also:
        told = f"fits as well: {visible(value.also)}. A value that differs from place to place would tell them apart."
        yield from said("  ◇", Tone.NOTICE, told, width)


def _rows(value: PlacedValue) -> list[list[Part]]:
    """Which parts share a row: all, where they are the same whole value; else each alone, those that are off first where not all fit."""
    if value.kind is Placing.REPLICATED and value.agree is not False:
        return [list(value.parts)]
    rows = [[part] for part in value.parts]
    if len(rows) > _MOST_ROWS:
        off = {id(part) for part in value.off}
        kept = [row for row in rows if id(row[0]) in off][:_MOST_ROWS]
        kept += [row for row in rows if id(row[0]) not in off][: _MOST_ROWS - len(kept)]
        chosen = {id(row[0]) for row in kept}
        rows = sorted(kept, key=lambda row: row[0].rank) + [row for row in rows if id(row[0]) not in chosen]
    return rows


def _row(value: PlacedValue, parts: Sequence[Part], cells: Cells, widths: _Widths, odd: Tone | None, *, drawn: bool) -> Line:
    first = parts[0]
    label = f"rank {first.rank}" if len(parts) == 1 else f"ranks {ranks_listed(parts)}"
    label_tone = odd or (rank_tone(first.rank) if len(parts) == 1 else Tone.PLAIN)
    if value.kind is Placing.PARTIAL:
        body, held = row_of_rank(None, first.rank, cells, widths.map, shade="▒"), "part of the sum"
    elif value.kind is Placing.NESTED:
        body, held = row_of_rank(None, first.rank, cells, widths.map, shade="▒"), "a part"
    elif value.kind is Placing.SHARDED and not drawn:
        body, held = [Segment(fit("more pieces than a map shows", widths.map), Tone.FAINT)], ""
    elif value.kind is Placing.SHARDED:
        body, held = row_of_rank(first.holds, first.rank, cells, widths.map), holds_text(first.holds or ())
    elif len(parts) > 1:
        body, held = _everywhere(parts, widths.map), "same bits"
    else:
        body, held = row_of_rank(None, first.rank, cells, widths.map), "whole shape" if maybe_sum(value) else "whole"
    error = first.error
    bar_tone = odd or (rank_tone(first.rank) if len(parts) == 1 else Tone.PLAIN)
    return line(
        ("  " if odd is None else "✗ ", odd or Tone.PLAIN),
        (fit(label, _LABEL), label_tone),
        " ",
        *body,
        (f"  {fit(held, widths.holds)} ", Tone.DIM),
        (_bar(error, widths.bar), bar_tone),
        (f" {fit(figure(known(error)), _FIGURE, align='right')}", odd or Tone.PLAIN),
    )


def _everywhere(parts: Sequence[Part], width: int) -> list[Segment]:
    """One row for ranks that all hold the whole: a block a rank side by side, as many as fit."""
    each = max(2, min(width // len(parts), 13))
    shown = parts[: width // each]
    made = [Segment(_block(str(part.rank), each), rank_tone(part.rank)) for part in shown]
    return [*made, Segment(" " * (width - each * len(shown)))]


def _block(label: str, cells: int) -> str:
    """A label in a block of `cells` cells, the last of them free."""
    left = max(0, cells - 1 - len(label))
    return fit("█" * (left // 2) + label + "█" * (left - left // 2), cells - 1) + " "


def nothing_lines(comparison: Comparison, row: int, width: int) -> list[Line]:
    """What is said where no value of the site is made up of ranks' parts, or none is yet."""
    source, own = np.asarray(comparison.pairs["source"]), np.asarray(comparison.pairs["site"]) == row
    if (source[own] == Source.PENDING).any():
        told = "Not compared yet: how the ranks make up the values of this site is found when they are."
        return said("  ·", Tone.UNKNOWN, told, width)
    many = len(comparison.placed["pair"]) > 0
    why = "The target is one process, or each of its processes was compared by itself: there are no parts to put together."
    if many or (source == Source.PENDING).any():
        why = "No value of this site is made up of the parts of several ranks."
    elif comparison.reference is None:
        why = "The ranks were held against each other: without a reference nothing says what their parts make up."
    return said("  ∅", Tone.UNKNOWN, why, width)
