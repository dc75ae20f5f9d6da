"""`CurveView`: difference by depth as bars of eighths of a cell, on a log axis.

A bar within what is allowed is green; one above it is dark up to there and amber from there on. Origins
stand as triangles on the axis and a value that is not finite as a hatched column, so that the picture
reads without colour too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from layerdiff.rows.cells import cell_width, shorten
from layerdiff.rows.curve import Curve, curve
from layerdiff.rows.table import Rows
from layerdiff.rows.tones import Tone
from layerdiff.tui.palette import color_style, tone_style
from layerdiff.tui.widgets.lines import LinesView

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_LABELS: Final = 6
"""Cells of the axis labels on the left."""


class CurveView(LinesView):
    """The curve of one step, with a marker at the selected site."""

    DEFAULT_CSS = """
    CurveView { height: 10; }
    """

    @dataclass
    class Jumped(Message):
        """A column was clicked."""

        row: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: Rows | None = None
        self._curve: Curve | None = None
        self._row = self._last = 0
        self._made: tuple[int, int, int] | None = None
        self._version = 0
        self._steps = 1

    def follow(self, rows: Rows, first: int, last: int) -> None:
        """Mark the sites of two rows and what lies between, drawing their step."""
        self._rows, self._row, self._last = rows, first, last
        self.refresh()

    def changed(self) -> None:
        """The judgement changed."""
        self._version += 1
        self.refresh()

    @property
    def _plot(self) -> int:
        return max(1, self.size.width - _LABELS - 2)

    def _current(self) -> Curve | None:
        rows = self._rows
        if rows is None or not len(rows.tree):
            return None
        step = int(rows.comparison.sites["step"][self._row])
        made = (step, self._plot, self._version)
        if self._curve is None or self._made != made:
            self._curve, self._made = curve(rows, step=step, buckets=self._plot), made
            self._steps = len(rows.comparison.alignment.steps)
        return self._curve

    def on_click(self, event: events.Click) -> None:
        """Jump to the site that made the column."""
        drawn, bucket = self._current(), event.x - _LABELS - 1
        if drawn is not None and 0 <= bucket < len(drawn.rows) and drawn.rows[bucket] >= 0:
            self.post_message(self.Jumped(int(drawn.rows[bucket])))

    def render_line(self, y: int) -> Strip:
        """The legend, the bars, or the axis."""
        height, drawn = self.size.height, self._current()
        if y == 0:
            return self._legend(drawn)
        if drawn is None:
            return super().render_line(y)
        if y == height - 1:
            return self._axis(drawn)
        return self._bars(drawn, y - 1, height - 2)

    def _legend(self, drawn: Curve | None) -> Strip:
        palette, ground, width = self.palette, self.ground, self.size.width

        def text(words: str, tone: Tone) -> Segment:
            return Segment(words, tone_style(palette, tone, ground))

        step = f", step {drawn.step}" if drawn is not None and self._steps > 1 else ""
        left = [text(f" difference by depth{step}", Tone.STRONG), text("  rel L2, log", Tone.DIM)]
        wide = width >= 100
        right = [
            Segment("▄", color_style(palette.within, ground)), text(" within ", Tone.DIM),
            Segment("▄", color_style(palette.over, ground)), text(" over " if not wide else " over what is allowed ", Tone.DIM),
            text("╌", Tone.FAINT), text(" allowed ", Tone.DIM), text("▲", Tone.FAULT), text(" origin ", Tone.DIM),
        ]  # fmt: skip
        used = sum(cell_width(s.text) for s in left + right)
        if used > width:
            return Strip(left).adjust_cell_length(width, color_style(None, ground))
        gap = Segment(" " * (width - used), color_style(None, ground))
        return Strip([*left, gap, *right]).adjust_cell_length(width, color_style(None, ground))

    def _label(self, drawn: Curve, level: int, levels: int) -> str:
        """Labels at the cells in which whole powers of ten fall, as many as are apart by a row."""
        decades = drawn.high - drawn.low
        step = max(1, -(-decades // max(1, levels // 2)))
        bottom, top = (levels - 1 - level) / levels, (levels - level) / levels
        for exponent in range(drawn.high - 1, drawn.low, -step):
            at = (exponent - drawn.low) / decades
            if bottom <= at < top:
                return f"1e{exponent}"
        return ""

    def _bars(self, drawn: Curve, level: int, levels: int) -> Strip:
        palette, ground = self.palette, self.ground
        label = self._label(drawn, level, levels)
        segments = [
            Segment(f"{label:>{_LABELS}}", tone_style(palette, Tone.DIM, ground)),
            Segment("┤" if label else "│", tone_style(palette, Tone.FAINT, ground)),
        ]
        low, high = drawn.reach(self._row, self._last)
        cursor = high if high - low < 2 else -1
        floor = (levels - 1 - level) * 8
        for b in range(len(drawn.difference)):
            segments.append(self._cell(drawn, b, floor, levels * 8, b == cursor))
        return Strip(segments).simplify().adjust_cell_length(self.size.width, color_style(None, ground))

    def _cell(self, drawn: Curve, b: int, floor: int, full: int, cursor: bool) -> Segment:
        """One cell of the drawing; `floor` and `full` in eighths."""
        palette, ground = self.palette, self.palette.cursor if cursor else self.ground
        if drawn.broken[b]:
            return Segment("▒", tone_style(palette, Tone.BROKEN, ground))
        value = drawn.difference[b]
        allowed = round(drawn.height(drawn.allowed[b]) * full) if drawn.allowed[b] > 0 else None
        bar = max(1, round(drawn.height(value) * full)) if value > 0 else 0
        here = min(8, bar - floor)
        over_color = palette.fault if drawn.origin[b] else palette.over
        if here <= 0:
            if allowed is not None and floor <= allowed < floor + 8:
                return Segment("╌", tone_style(palette, Tone.FAINT, ground))
            if floor == 0 and value == 0:
                return Segment("▁", tone_style(palette, Tone.FAINT, ground))
            if floor == 0 and drawn.pending[b]:
                return Segment("·", tone_style(palette, Tone.UNKNOWN, ground))
            return Segment("│" if cursor else " ", tone_style(palette, Tone.ACCENT, ground))
        part = 8 if allowed is None else min(8, max(0, allowed - floor))
        under = palette.within if allowed is None or bar <= allowed else palette.explained
        if part >= here:
            return Segment(_EIGHTHS[here], color_style(under, ground))
        if part <= 0 or here < 8:
            # A cell has two colours: where three meet, the bar's top is drawn and the change moves to the cell's floor.
            return Segment(_EIGHTHS[here], color_style(over_color if part <= 4 else under, ground))
        return Segment(_EIGHTHS[part], color_style(under, over_color))

    def _axis(self, drawn: Curve) -> Strip:
        palette, ground, width = self.palette, self.ground, self._plot
        faint, dim = tone_style(palette, Tone.FAINT, ground), tone_style(palette, Tone.DIM, ground)
        cells: list[tuple[str, Style]] = [("─", faint)] * width
        for at, label in _spaced(drawn.ticks, width):
            for i, character in enumerate(label):
                cells[at + i] = (character, dim)
        for b in np.flatnonzero(drawn.origin).tolist():
            cells[b] = ("▲", tone_style(palette, Tone.FAULT, ground))
        low, high = drawn.reach(self._row, self._last)
        for b in range(max(0, low if high - low > 1 else high), min(high + 1, width)):
            glyph = cells[b][0] if cells[b][0] != "─" else "━" if high - low > 1 else "┴"
            cells[b] = (glyph, tone_style(palette, Tone.FAULT if glyph == "▲" else Tone.ACCENT, palette.cursor))
        segments = [Segment(" " * _LABELS + "└", faint), *(Segment(*cell) for cell in cells)]
        return Strip(segments).simplify().adjust_cell_length(self.size.width, color_style(None, ground))


def _spaced(ticks: tuple[tuple[int, str], ...], width: int) -> list[tuple[int, str]]:
    """Every n-th label, n round and just large enough that labels keep two cells apart."""
    if not ticks:
        return []
    room = max(len(shorten(label, 8)) for _, label in ticks) + 2
    every = next((n for n in (1, 2, 4, 5, 8, 10, 16, 20, 25, 50, 100, 200, 500) if width * n >= room * len(ticks)), 1000)
    labels = [(at, shorten(label, 8)) for at, label in ticks[::every]]
    return [(at, label) for at, label in labels if at + len(label) <= width]
