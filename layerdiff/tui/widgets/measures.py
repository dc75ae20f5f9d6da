"""`NumbersPane`: every number of the pair, and the histogram of distances below them where there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from layerdiff.rows.tensor.measures import histogram_lines, number_lines
from layerdiff.rows.tones import Line
from layerdiff.tui.widgets.pane import Pane


class NumbersPane(Pane):
    """Lines; without a cursor."""

    raised = True
    indent = 1
    instead: Callable[[int], Sequence[Line]] | None = None
    """What is shown in so many cells where nothing can be measured."""

    def lines_at(self, width: int) -> Sequence[Line]:
        """The numbers, then the histogram in what is left."""
        inner = max(1, width - 2)
        if self.examined is None:
            return () if self.instead is None else self.instead(inner)
        lines = number_lines(self.examined, inner)
        left = self.size.height - len(lines) - 1
        if self.examined.numbers is not None and left >= 4:
            lines += [Line(), *histogram_lines(self.examined.numbers, inner, left)]
        return lines
