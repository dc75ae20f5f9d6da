"""`CurveView`: difference by depth as bars of eighths of a cell, on a log axis.

A bar within what is allowed is green, or amber where the difference came in, as its verdict is in the table; one above it is
dark up to there and bright from there on, and has a cross on the axis. Origins stand as triangles on the axis and a value that is
not finite as a hatched column, so that the picture reads without colour too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from layerdiff.rows.cells import cell_width, shorten
from layerdiff.rows.sites.curve import Curve, curve
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Tone
from layerdiff.tui.palette import color_style, tone_style
from layerdiff.tui.widgets.lines import LinesView

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_LABELS: Final = 6
"""Cells of the axis labels on the left."""


class _Column(NamedTuple):
    """One column of bars."""

    bar: int
    """Height in eighths of a cell."""
    allowed: int
    """Likewise."""
    difference: float
    broken: bool
    origin: bool
    inherited: bool
    pending: bool


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
        self._mark: tuple[int, int, int] | None = None
        self._made: tuple[int, int, int] | None = None
        self._drawn: tuple[object, ...] | None = None
        self._columns: list[_Column] = []
        self._strips: list[Strip] = []
        self._axis_cells: list[tuple[str, Style]] = []
        self._axis_strip = Strip.blank(0)
        self._version = 0
        self._steps = 1

    def follow(self, rows: Rows, first: int, last: int) -> None:
        """Mark the sites of two rows and what lies between, drawing their step."""
        self._rows, self._row, self._last = rows, first, last
        drawn = self._current()
        mark = None if drawn is None else (drawn.step, *drawn.reach(first, last))
        if mark != self._mark or mark is None:
            self._mark = mark
            self.refresh()

    def changed(self) -> None:
        """The judgement changed."""
        self._version += 1
        self._mark = None
        self.refresh()

    @property
    def _plot(self) -> int:
        return max(1, self.size.width - _LABELS - 2)

    def _current(self) -> Curve | None:
        rows = self._rows
        if rows is None or not len(rows.tree) or not self.size.width:
            return None
        step = int(rows.comparison.sites["step"][self._row])
        made = (step, self._plot, self._version)
        if self._curve is None or self._made != made:
            self._curve, self._made, self._mark = curve(rows, step=step, buckets=self._plot), made, None
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
        state = (id(drawn), height, self._plot, self.palette.name)
        if state != self._drawn:
            self._drawn, self._columns = state, _columns(drawn, height - 2)
            self._strips = [self._strip(cells) for cells in self._drawing(drawn, height - 2)]
            self._axis_cells = self._axis(drawn)
            self._axis_strip = self._strip([Segment(*cell) for cell in self._axis_cells])
        if y == height - 1:
            return self._marked_axis(drawn)
        return self._marked(drawn, y - 1, height - 2)

    def _reach(self, drawn: Curve) -> tuple[int, int]:
        """The first and the last marked column."""
        if self._mark is None:
            self._mark = (drawn.step, *drawn.reach(self._row, self._last))
        return self._mark[1:]

    def _legend(self, drawn: Curve | None) -> Strip:
        palette, ground, width = self.palette, self.ground, self.size.width

        def text(words: str, tone: Tone) -> Segment:
            return Segment(words, tone_style(palette, tone, ground))

        step = f", step {drawn.step}" if drawn is not None and self._steps > 1 else ""
        left = [text(f" difference by depth{step}", Tone.STRONG), text("  rel L2, log", Tone.DIM)]
        wide = width >= 100
        right = [
            Segment("▄", color_style(palette.within, ground)), text(" within ", Tone.DIM),
            text("▄", Tone.INHERITED), text(" inherited ", Tone.DIM),
            Segment("▄×", color_style(palette.over, ground)), text(" over " if not wide else " over what is allowed ", Tone.DIM),
            text("╌", Tone.FAINT), text(" allowed ", Tone.DIM), text("▲", Tone.FAULT), text(" origin ", Tone.DIM),
            text("▒", Tone.BROKEN), text(" NaN " if not wide else " NaN or Inf ", Tone.DIM),
        ]  # fmt: skip
        used = sum(cell_width(s.text) for s in left + right)
        if used > width:
            used -= cell_width(left.pop().text)
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

    def _strip(self, cells: list[Segment]) -> Strip:
        return Strip(cells).simplify().adjust_cell_length(self.size.width, color_style(None, self.ground))

    def _marked(self, drawn: Curve, level: int, levels: int) -> Strip:
        """A line of the drawing, with the cursor where it is one column."""
        low, high = self._reach(drawn)
        if high - low > 1 or not 0 <= high < len(self._columns):
            return self._strips[level]
        cell = self._cells(self._columns[high : high + 1], level, levels, self.palette.cursor, cursor=True)
        whole, at = self._strips[level], _LABELS + 1 + high
        return Strip.join([whole.crop(0, at), Strip(cell, 1), whole.crop(at + 1)])

    def _drawing(self, drawn: Curve, levels: int) -> list[list[Segment]]:
        """Every line above the axis, a segment a cell after the two of the label."""
        made = []
        for level in range(levels):
            label = self._label(drawn, level, levels)
            head = [
                Segment(f"{label:>{_LABELS}}", tone_style(self.palette, Tone.DIM, self.ground)),
                Segment("┤" if label else "│", tone_style(self.palette, Tone.FAINT, self.ground)),
            ]
            made.append(head + self._cells(self._columns, level, levels, self.ground, cursor=False))
        return made

    def _cells(self, columns: Sequence[_Column], level: int, levels: int, ground: str, *, cursor: bool) -> list[Segment]:
        """Some cells of one line. A cell is eight eighths high; heights are in eighths from the axis."""
        palette, floor = self.palette, (levels - 1 - level) * 8
        within, explained = color_style(palette.within, ground), color_style(palette.explained, ground)
        inherited = tone_style(palette, Tone.INHERITED, ground)
        broken, line = Segment("▒", tone_style(palette, Tone.BROKEN, ground)), Segment("╌", tone_style(palette, Tone.FAINT, ground))
        same, waiting = Segment("▁", tone_style(palette, Tone.FAINT, ground)), Segment("·", tone_style(palette, Tone.UNKNOWN, ground))
        blank = Segment("│" if cursor else " ", tone_style(palette, Tone.ACCENT, ground))
        cells = []
        for bar, allowed, value, is_broken, is_origin, is_inherited, is_pending in columns:
            here, part = min(8, bar - floor), min(8, max(0, allowed - floor)) if allowed else 8
            if is_broken:
                cells.append(broken)
            elif here <= 0:
                if allowed and floor <= allowed < floor + 8:
                    cells.append(line)
                elif floor == 0 and value == 0:
                    cells.append(same)
                else:
                    cells.append(waiting if floor == 0 and is_pending else blank)
            elif part >= here:
                kept = inherited if is_inherited else within
                cells.append(Segment(_EIGHTHS[here], explained if allowed and bar > allowed else kept))
            else:
                over = palette.fault if is_origin else palette.over
                if part <= 0 or here < 8:
                    # A cell has two colours: where three meet, the bar's top is drawn and the change moves to the cell's floor.
                    cells.append(Segment(_EIGHTHS[here], color_style(over, ground) if part <= 4 else explained))
                else:
                    cells.append(Segment(_EIGHTHS[part], color_style(palette.explained, over)))
        return cells

    def _axis(self, drawn: Curve) -> list[tuple[str, Style]]:
        """The corner, then a cell a column: labels and origins."""
        palette, ground, width = self.palette, self.ground, self._plot
        faint, dim = tone_style(palette, Tone.FAINT, ground), tone_style(palette, Tone.DIM, ground)
        cells: list[tuple[str, Style]] = [("─", faint)] * width
        for at, label in _spaced(drawn.ticks, width):
            if not drawn.origin[at : at + len(label)].any():
                cells[at : at + len(label)] = [(character, dim) for character in label]
        with np.errstate(invalid="ignore"):
            over = np.flatnonzero(drawn.difference > drawn.allowed)
        for b in over.tolist():
            if cells[b][0] == "─":
                cells[b] = ("×", color_style(palette.over, ground))
        for b in np.flatnonzero(drawn.origin).tolist():
            cells[b] = ("▲", tone_style(palette, Tone.FAULT, ground))
        return [(" " * _LABELS + "└", faint), *cells]

    def _marked_axis(self, drawn: Curve) -> Strip:
        palette, whole = self.palette, self._axis_strip
        low, high = self._reach(drawn)
        first, end = max(0, low if high - low > 1 else high), min(high + 1, self._plot)
        marked = []
        for glyph, _ in self._axis_cells[1 + first : 1 + end]:
            shown = glyph if glyph != "─" else "━" if high - low > 1 else "┴"
            marked.append(Segment(shown, tone_style(palette, Tone.FAULT if shown == "▲" else Tone.ACCENT, palette.cursor)))
        at = _LABELS + 1
        return Strip.join([whole.crop(0, at + first), Strip(marked, len(marked)).simplify(), whole.crop(at + first + len(marked))])


def _columns(drawn: Curve, levels: int) -> list[_Column]:
    """Every column of a drawing `levels` cells high."""
    bars, allowances = drawn.heights(drawn.difference, levels * 8), drawn.heights(drawn.allowed, levels * 8)
    flags = (array.tolist() for array in (bars, allowances, drawn.difference, drawn.broken, drawn.origin, drawn.inherited, drawn.pending))
    return [_Column(*column) for column in zip(*flags, strict=True)]


def _spaced(ticks: tuple[tuple[int, str], ...], width: int) -> list[tuple[int, str]]:
    """Every n-th label, n round and just large enough that labels keep two cells apart."""
    if not ticks:
        return []
    room = max(len(shorten(label, 8)) for _, label in ticks) + 2
    every = next((n for n in (1, 2, 4, 5, 8, 10, 16, 20, 25, 50, 100, 200, 500) if width * n >= room * len(ticks)), 1000)
    labels = [(at, shorten(label, 8)) for at, label in ticks[::every]]
    return [(at, label) for at, label in labels if at + len(label) <= width]
