"""`ProfilePane`: the difference along each axis as bars of eighths of a character, an axis below the other."""

from __future__ import annotations

from typing import Final

import numpy as np
from rich.segment import Segment
from textual.strip import Strip

from layerdiff.rows.tensor.axes import Bars, axis_title, bars_of
from layerdiff.rows.tones import Tone, line
from layerdiff.tui.palette import color_style, strip_of, tone_style
from layerdiff.tui.widgets.pane import Pane

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_NONE: Final = "_"
"""Nothing differs at this index."""
_MARGIN: Final = 7
_LOWEST, _HIGHEST = 2, 6
"""Lines of bars of one axis."""


class ProfilePane(Pane):
    """A cursor over the bars of one axis."""

    axis = 0
    cursor = 0
    _bars: tuple[object, list[Bars]] | None = None
    _levels: dict[int, tuple[Bars, dict[object, Strip]]]

    def begin(self) -> None:
        """The first index of the first axis."""
        self._levels = {}
        self.axis = self.cursor = 0

    def bars(self) -> list[Bars]:
        """Every axis measured so far, at the present width."""
        if self.examined is None:
            return []
        state = (self.examined.profiles, self.size.width)
        if self._bars is None or self._bars[0] != state:
            self._bars = state, [bars_of(profile, self.size.width - _MARGIN - 1) for profile in self.examined.profiles]
        return self._bars[1]

    def _plan(self) -> tuple[int, int, int]:
        """(first axis shown, axes shown, lines of bars each)."""
        bars = self.bars()
        fits = max(1, self.size.height // (_LOWEST + 2))
        shown = min(len(bars), fits)
        first = min(max(0, self.axis - shown + 1), max(0, len(bars) - shown))
        return first, shown, max(1, min(_HIGHEST, self.size.height // max(1, shown) - 2))

    def move(self, down: int, right: int) -> None:
        """Down to another axis, right along the bars."""
        bars = self.bars()
        if bars:
            self.axis = min(max(0, self.axis + (down > 0) - (down < 0)), len(bars) - 1)
            self.cursor = min(max(0, self.cursor + right), len(bars[self.axis].relative) - 1)
            self.refresh()

    def end(self, *, last: bool) -> None:
        """The first or the last bar."""
        bars = self.bars()
        if bars:
            self.cursor = len(bars[self.axis].relative) - 1 if last else 0
            self.refresh()

    def choose(self, x: int, y: int) -> None:
        """The clicked bar."""
        first, shown, lines = self._plan()
        axis = first + y // (lines + 2)
        if axis < first + shown:
            bars = self.bars()[axis]
            wide = self._wide(bars)
            self.axis, self.cursor = axis, min(max(0, (x - _MARGIN) // wide), len(bars.relative) - 1)
            self.refresh()

    @property
    def element(self) -> int | None:
        """The first element at the index under the cursor."""
        bars = self.bars()
        if not bars or self.examined is None:
            return None
        tensor, chosen = self.examined.tensor, bars[self.axis]
        index = self.cursor * chosen.width * chosen.profile.step
        if chosen.profile.name == "rows":
            return index * tensor.columns
        axis = int(chosen.profile.name.removeprefix("axis "))
        inner = 1
        for size in tensor.shape[axis + 1 :]:
            inner *= size
        return index * inner

    def _wide(self, bars: Bars) -> int:
        """Characters a bar."""
        return max(1, min(3, (self.size.width - _MARGIN - 1) // max(1, len(bars.relative))))

    def render_line(self, y: int) -> Strip:
        """A title, a line of bars, or an axis."""
        palette, width, bars = self.palette, self.size.width, self.bars()
        if not bars:
            measured = self.examined is not None and self.examined.done == self.examined.total
            text = "" if self.examined is None else "  one element: no axis" if measured else "  measuring along each axis"
            return strip_of(line((text if y == 0 else "", Tone.DIM)), palette, self.ground, width)
        first, shown, lines = self._plan()
        at, row = divmod(y, lines + 2)
        if at >= shown:
            return strip_of(line(), palette, self.ground, width)
        mine = first + at == self.axis
        chosen = bars[first + at]
        if row == 0:
            before = Segment("▌ " if mine else "  ", tone_style(palette, Tone.ACCENT, self.ground))
            title = axis_title(chosen, min(self.cursor, len(chosen.relative) - 1) if mine else None, width - 2)
            return strip_of(title, palette, self.ground, width, before=before)
        if row == lines + 1:
            return self._axis(chosen)
        return self._level(chosen, row - 1, lines, mine)

    def _level(self, bars: Bars, level: int, levels: int, mine: bool) -> Strip:
        """A line of bars, the one under the cursor in its colour."""
        palette, ground, wide = self.palette, self.ground, self._wide(bars)
        state = (self.palette.name, ground, self.size.width, levels, level)
        known = self._levels.get(id(bars))
        if known is None or known[0] is not bars:
            known = self._levels[id(bars)] = bars, {}
        strip = known[1].get(state)
        if strip is None:
            dim, faint = tone_style(palette, Tone.DIM, ground), tone_style(palette, Tone.FAINT, ground)
            label = f"1e{bars.high}" if level == 0 else f"1e{bars.low}" if level == levels - 1 else ""
            within = color_style(palette.within, ground)
            cells = [Segment(f"{label:>{_MARGIN - 1}}", dim), Segment("│", faint)]
            for glyph in self._glyphs(bars, level, levels):
                cells.append(Segment(glyph * wide, faint if glyph == _NONE else within))
            strip = known[1][state] = Strip(cells).simplify().adjust_cell_length(self.size.width, color_style(None, ground))
        if not mine or self.cursor >= len(bars.relative):
            return strip
        at = _MARGIN + self.cursor * wide
        glyph = self._glyphs(bars, level, levels)[self.cursor]
        cell = Strip([Segment(glyph * wide, tone_style(palette, Tone.ACCENT, palette.cursor))], wide)
        return Strip.join([strip.crop(0, at), cell, strip.crop(at + wide)])

    def _glyphs(self, bars: Bars, level: int, levels: int) -> str:
        """A character a bar: how much of it is on this line."""
        floor = (levels - 1 - level) * 8
        here = np.clip(bars.heights(levels * 8) - floor, 0, 8).tolist()
        none = (bars.relative == 0).tolist() if floor == 0 else [False] * len(here)
        return "".join(_NONE if equal else _EIGHTHS[height] for height, equal in zip(here, none, strict=True))

    def _axis(self, bars: Bars) -> Strip:
        palette, wide = self.palette, self._wide(bars)
        last = str(bars.profile.size - 1)
        length = len(bars.relative) * wide
        rule = "0" + "─" * max(0, length - 1 - len(last)) + last if length > len(last) + 1 else "─" * length
        made = line((" " * (_MARGIN - 1) + "└", Tone.FAINT), (rule, Tone.DIM))
        return strip_of(made.clipped(self.size.width), palette, self.ground, self.size.width)
