"""`LinesView`: a few lines of rows, drawn as they are. The base of every widget that is not the table."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip
from textual.widget import Widget

from layerdiff.rows.tones import Line, Segment
from layerdiff.tui.palette import Palette, palette_of, strip_of


class LinesView(Widget):
    """Shows the lines it was given; what does not fit is cut."""

    raised = True
    """On the raised ground, or on that of the table."""
    indent = 0
    """Cells left free before each line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()

    @property
    def palette(self) -> Palette:
        """The colours of the present theme."""
        return palette_of(self.app)

    @property
    def ground(self) -> str:
        """The colour behind the lines."""
        return self.palette.raised if self.raised else self.palette.ground

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the lines."""
        if lines != self.lines:
            self.lines = lines
            self.refresh()

    def lines_at(self, width: int) -> Sequence[Line]:
        """What is drawn in `width` cells. What fills its width is made here, since a resize is told after the first paint."""
        return self.lines

    def render_line(self, y: int) -> Strip:
        """One line on the widget's ground."""
        width = self.size.width
        lines = self.lines_at(width)
        line = lines[y] if y < len(lines) else Line()
        if self.indent:
            line = Line((Segment(" " * self.indent), *line.segments))
        return strip_of(line.clipped(width), self.palette, self.ground, width)
