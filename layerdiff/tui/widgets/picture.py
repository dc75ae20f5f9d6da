"""`PicturePane`: the difference as a picture, two cells of it to a character.

The scale goes steadily away from the ground, so that it reads without hues; where the terminal has few colours the
cells are drawn as shades of `░▒▓█` instead, one to a character. Elements of another class (nan, inf) are a `!`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from textual.strip import Strip

from layerdiff.rows.figures import figure
from layerdiff.rows.tensor.elements import element_lines
from layerdiff.rows.tensor.picture import ODD, UNKNOWN_LEVEL, Picture, caption, cell_line, picture_of
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.palette import color_style, strip_of, tone_style
from layerdiff.tui.widgets.pane import Pane

_SHADES: Final = "·░▒▓█"
_GUTTER: Final = 2
"""Cells before a line: the mark of the cursor's row."""
_LARGEST_CELL: Final = 4
"""Characters across that one cell of a small value may take."""


class PicturePane(Pane):
    """A cursor over cells."""

    cursor = (0, 0)
    _drawn: tuple[object, Picture, NDArray[np.int64]] | None = None
    _strips: tuple[object, list[Strip]] | None = None
    _touched = False

    def begin(self) -> None:
        """Where the largest difference is, once that is known."""
        self.cursor, self._drawn, self._touched = (0, 0), None, False

    @property
    def _shaded(self) -> bool:
        return not self.palette.heat

    @property
    def steps(self) -> int:
        """Steps of the scale."""
        return len(_SHADES) - 1 if self._shaded else len(self.palette.heat)

    def picture(self) -> Picture | None:
        """The picture at the present size."""
        if self.examined is None or self.examined.picture is None or not self.size:
            return None
        tall, wide = max(1, self.size.height - 3), max(1, self.size.width - 3)
        state = (self.examined.picture, tall, wide, self.palette.name, self._shaded)
        if self._drawn is None or self._drawn[0] != state:
            drawn = picture_of(self.examined.tensor, self.examined.picture, tall if self._shaded else 2 * tall, wide)
            self._drawn = state, drawn, drawn.levels(self.steps)
            if not self._touched:
                largest = np.where(np.isnan(drawn.largest), -1.0, drawn.largest)
                y, x = np.unravel_index(int(largest.argmax()), largest.shape)
                self.cursor = int(y), int(x)
        return self._drawn[1]

    def _scale(self, drawn: Picture) -> tuple[int, int]:
        """Pixels (half characters down, characters across) of one cell."""
        h, w = drawn.largest.shape
        tall, wide = max(1, self.size.height - 3), max(1, self.size.width - 3)
        across = min(_LARGEST_CELL, max(1, wide // w))
        down = max(1, min(across, (tall if self._shaded else 2 * tall) // h))
        return down, max(across, 1)

    def _clamped(self, drawn: Picture) -> tuple[int, int]:
        h, w = drawn.largest.shape
        return min(self.cursor[0], h - 1), min(self.cursor[1], w - 1)

    def _select(self, y: int, x: int) -> None:
        drawn = self.picture()
        if drawn is not None:
            h, w = drawn.largest.shape
            self._touched = True
            self.cursor = min(max(0, y), h - 1), min(max(0, x), w - 1)
            self.refresh()

    def move(self, down: int, right: int) -> None:
        """By cells."""
        self._select(self.cursor[0] + down, self.cursor[1] + right)

    def end(self, *, last: bool) -> None:
        """The first or the last row of cells."""
        self._select(1 << 30 if last else 0, self.cursor[1])

    def choose(self, x: int, y: int) -> None:
        """The clicked cell."""
        drawn = self.picture()
        if drawn is not None and y >= 1:
            down, across = self._scale(drawn)
            self._select((y - 1) * (1 if self._shaded else 2) // down, (x - _GUTTER) // across)

    @property
    def element(self) -> int | None:
        """The worst of the cell."""
        drawn = self.picture()
        return None if drawn is None else drawn.worst_element(*self._clamped(drawn))

    def status(self, width: int) -> list[Line] | None:
        """The cell, and the element of it that differs most."""
        drawn, element = self.picture(), self.element
        if drawn is None or element is None:
            return []
        return [cell_line(drawn, *self._clamped(drawn), width), element_lines(drawn.tensor, drawn.tensor.element(element), width)[0]]

    def render_line(self, y: int) -> Strip:
        """The caption, cells, the marker of the column, or the scale."""
        palette, ground, width, drawn = self.palette, self.ground, self.size.width, self.picture()
        if drawn is None or self._drawn is None:
            waiting = self.examined is not None and self.examined.tensor.count > 0
            return strip_of(line((" drawing" if y == 0 and waiting else "", Tone.DIM)), palette, ground, width)
        if y == 0:
            return strip_of(line(" ", *caption(drawn, width - 2).segments), palette, ground, width)
        if y == self.size.height - 1:
            return self._legend(drawn)
        strips = self._cells(drawn)
        down, across = self._scale(drawn)
        cy, cx = self._clamped(drawn)
        pixels = 1 if self._shaded else 2
        first, last = cy * down // pixels, (cy * down + down - 1) // pixels
        if y - 1 == len(strips):
            return strip_of(line((" " * (_GUTTER + cx * across) + "▴" * across, Tone.ACCENT)), palette, ground, width)
        if y - 1 > len(strips):
            return strip_of(line(), palette, ground, width)
        if not first <= y - 1 <= last:
            return strips[y - 1]
        halves = [cy * down <= (y - 1) * pixels + half < (cy + 1) * down for half in range(pixels)]
        at = _GUTTER + cx * across
        cell = self._cell(self._inks(), (y - 1) * pixels // down, ((y - 1) * pixels + pixels - 1) // down, cx, across, halves)
        marker = Strip([Segment(" ▸", tone_style(palette, Tone.ACCENT, ground))], _GUTTER)
        return Strip.join([marker, strips[y - 1].crop(_GUTTER, at), Strip([cell], across), strips[y - 1].crop(at + across)])

    def _cells(self, drawn: Picture) -> list[Strip]:
        """Every line of cells without a cursor, made once for each size and palette."""
        assert self._drawn is not None
        if self._strips is None or self._strips[0] is not self._drawn:
            inks, pixels = self._inks(), 1 if self._shaded else 2
            down, across = self._scale(drawn)
            h, w = drawn.largest.shape
            blank, none = color_style(None, self.ground), [False, False]
            made = []
            for y in range(-(-h * down // pixels)):
                upper, lower = y * pixels // down, (y * pixels + pixels - 1) // down
                cells = [self._cell(inks, upper, lower, x, across, none) for x in range(w)]
                made.append(Strip([Segment(" " * _GUTTER, blank), *cells]).simplify().adjust_cell_length(self.size.width, blank))
            self._strips = self._drawn, made
        return self._strips[1]

    def _inks(self) -> dict[int, str]:
        """The colour of each level."""
        palette = self.palette
        return {
            ODD: palette.inks[Tone.BROKEN].color, UNKNOWN_LEVEL: palette.ground, 0: palette.raised,
            **{level: color for level, color in enumerate(palette.heat, 1)},
        }  # fmt: skip

    def _cell(self, inks: dict[int, str], upper: int, lower: int, x: int, across: int, chosen: list[bool]) -> Segment:
        """The character of one or two rows of cells; of the chosen ones in the colour of the cursor."""
        assert self._drawn is not None
        levels = self._drawn[2]
        a = int(levels[upper, x])
        if not self.palette.heat:
            return self._shade(a, across, chosen=chosen[0])
        b = int(levels[lower, x]) if lower < levels.shape[0] else UNKNOWN_LEVEL
        if ODD in (a, b) and not any(chosen):
            other = b if a == ODD else a
            return Segment("!" * across, color_style(inks[ODD], inks[UNKNOWN_LEVEL if other == ODD else other], True))
        accent = self.palette.inks[Tone.ACCENT].color
        return Segment("▀" * across, color_style(accent if chosen[0] else inks[a], accent if chosen[1] else inks[b]))

    def _shade(self, level: int, across: int, *, chosen: bool) -> Segment:
        palette = self.palette
        glyph = "!" if level == ODD else " " if level == UNKNOWN_LEVEL else _SHADES[level]
        tone = Tone.BROKEN if level == ODD else Tone.FAINT if level == 0 else Tone.NOTICE if level == self.steps else Tone.PLAIN
        return Segment(glyph * across, tone_style(palette, tone, palette.cursor if chosen else self.ground))

    def _legend(self, drawn: Picture) -> Strip:
        palette, ground = self.palette, self.ground
        dim = tone_style(palette, Tone.DIM, ground)
        if not drawn.high and not np.isinf(drawn.largest).any():
            return strip_of(line(("  no element differs", Tone.SAME)), palette, ground, self.size.width)
        shades = [(_SHADES[i + 1], None) for i in range(self.steps)] if self._shaded else [("██", colour) for colour in palette.heat]
        none = (_SHADES[0], tone_style(palette, Tone.FAINT, ground)) if self._shaded else ("██", color_style(palette.raised, ground))
        parts = [Segment("  0 ", dim), Segment(*none)]
        if drawn.high:
            parts.append(Segment(f"  ≤ {figure(drawn.low)} ", dim))
            parts += [Segment(glyph, color_style(colour, ground)) for glyph, colour in shades]
            parts.append(Segment(f" {figure(drawn.high)}", dim))
        if np.isinf(drawn.largest).any():
            parts += [Segment("  ! ", tone_style(palette, Tone.BROKEN, ground)), Segment("class differs", dim)]
        return Strip(parts).adjust_cell_length(self.size.width, color_style(None, ground))
