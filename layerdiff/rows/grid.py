"""Any part of a pair of values as a grid: a few rows and columns around a cursor, read when they are shown."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final

from numpy.typing import NDArray

from layerdiff.rows.cells import fit
from layerdiff.rows.figures import figure
from layerdiff.rows.tensor import Tensor, element_of
from layerdiff.rows.tones import Line, Segment, Tone, line

CELL: Final = 11
"""Cells of a number, the gap before it included."""


class Shown(Enum):
    """What a grid shows of each element."""

    ALL = "reference, target and difference"
    DIFFERENCE = "difference, target - reference"
    REFERENCE = "reference"
    TARGET = "target"


class Grid:
    """A window of a grid; `top` and `left` are its first row and column."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.shown = Shown.ALL
        self._name_cells = max(3, *(len(tensor.row_name(row)) for row in {0, max(0, tensor.rows - 1)}))

    @property
    def lines_a_row(self) -> int:
        """How many lines one row takes."""
        return 3 if self.shown is Shown.ALL else 1

    @property
    def margin(self) -> int:
        """Cells before the numbers."""
        return self._name_cells + 4

    def columns_in(self, width: int) -> int:
        """How many columns fit."""
        return max(1, (width - self.margin) // CELL)

    def heading(self, left: int, width: int) -> Line:
        """Indices of the columns."""
        last = min(left + self.columns_in(width), self.tensor.columns)
        names = "".join(fit(str(column) if not self.tensor.wrapped else f"+{column}", CELL, align="right") for column in range(left, last))
        return line((" " * self.margin, Tone.DIM), (names, Tone.DIM)).clipped(width)

    def row_lines(self, row: int, left: int, width: int, cursor: int | None) -> list[Line]:
        """The lines of one row from column `left` on; `cursor` is a column to stand out.

        Raises TraceError where the trace cannot be read.
        """
        tensor = self.tensor
        start = row * tensor.columns + left
        length = min(self.columns_in(width), tensor.columns - left, tensor.count - start)
        r, t = tensor.sides.reference.read(start, length), tensor.sides.target.read(start, length)
        name = fit(tensor.row_name(row), self._name_cells, align="right")
        kinds = (Shown.REFERENCE, Shown.TARGET, Shown.DIFFERENCE) if self.shown is Shown.ALL else (self.shown,)
        lines = []
        for number, kind in enumerate(kinds):
            mark = {Shown.REFERENCE: " r ", Shown.TARGET: " t ", Shown.DIFFERENCE: " Δ "}[kind]
            tone = {Shown.REFERENCE: Tone.REFERENCE, Shown.TARGET: Tone.TARGET, Shown.DIFFERENCE: Tone.PLAIN}[kind]
            made = [
                Segment(name if number == 0 else " " * len(name), Tone.STRONG if number == 0 else Tone.DIM),
                Segment(mark + " ", Tone.DIM),
            ]
            for i in range(length):
                text, its = self._cell(kind, r[i : i + 1], t[i : i + 1], tone)
                here = cursor is not None and left + i == cursor
                made.append(Segment(fit(f"›{text}" if here else text, CELL, align="right"), Tone.ACCENT if here else its))
            lines.append(Line(tuple(made)).clipped(width))
        return lines

    def _cell(self, kind: Shown, r: NDArray[Any], t: NDArray[Any], tone: Tone) -> tuple[str, Tone]:
        element = element_of(r, t, self.tensor.sides.map(lambda side: side.dtype), 0)
        if kind is Shown.DIFFERENCE:
            if element.difference == 0:
                return "·", Tone.FAINT
            if math.isinf(element.difference):
                return "class", Tone.BROKEN
            signed = (
                isinstance(element.reference, (int, float))
                and isinstance(element.target, (int, float))
                and element.target < element.reference
            )
            return f"{'-' if signed else ''}{figure(element.difference)}", Tone.NOTICE
        number = element.reference if kind is Shown.REFERENCE else element.target
        if isinstance(number, complex):
            return f"{number.real:.2g}{number.imag:+.2g}i", tone
        if isinstance(number, (bool, int)):
            return str(number), tone
        return (short(number), tone) if math.isfinite(number) else (str(number), Tone.BROKEN)


def short(number: float) -> str:
    """Four significant digits in at most 10 characters."""
    if number == 0:
        return "0" if math.copysign(1, number) > 0 else "-0"
    if 1e-3 <= abs(number) < 1e6:
        return f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def flat_of(text: str, tensor: Tensor) -> int | None:
    """The flat index that a user typed: `0,3,17`, `[0, 3, 17]`, or one flat number; None where there is no such element."""
    parts = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    try:
        index = [int(part) for part in parts]
    except ValueError:
        return None
    if len(index) == 1 and len(tensor.shape) != 1:
        return index[0] if 0 <= index[0] < tensor.count else None
    if len(index) != len(tensor.shape) or not index:
        return None
    flat = 0
    for at, size in zip(index, tensor.shape, strict=True):
        at = at + size if at < 0 else at
        if not 0 <= at < size:
            return None
        flat = flat * size + at
    return flat
