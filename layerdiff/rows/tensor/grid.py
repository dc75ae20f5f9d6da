"""Any part of a pair of values as a grid: a few rows and columns around a cursor, read when they are shown."""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from layerdiff.measure.along_axis import Element
from layerdiff.rows.cells import fit, shorten, visible
from layerdiff.rows.figures import figure
from layerdiff.rows.tensor.pair import Tensor, element_of
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
        dtypes = tensor.sides.map(lambda side: side.dtype)
        elements = [element_of(r[i : i + 1], t[i : i + 1], dtypes, start + i) for i in range(length)]
        lines = []
        for number, kind in enumerate(kinds):
            mark = {Shown.REFERENCE: " r  ", Shown.TARGET: " t  ", Shown.DIFFERENCE: " Δ  "}[kind]
            made = [Segment(name if number == 0 else " " * len(name), Tone.STRONG), Segment(mark, Tone.DIM)]
            for i, element in enumerate(elements):
                text, tone = _cell(kind, element)
                here = left + i == cursor
                made.append(Segment(f"{'›' + text if here else text:>{CELL}}", Tone.ACCENT if here else tone))
            lines.append(Line(tuple(made)).clipped(width))
        return lines


def _cell(kind: Shown, element: Element) -> tuple[str, Tone]:
    """One number in fewer than CELL characters."""
    if kind is Shown.DIFFERENCE:
        if element.difference == 0:
            return "·", Tone.FAINT
        if math.isinf(element.difference):
            return "class", Tone.BROKEN
        pair = element.reference, element.target
        below = not isinstance(pair[0], complex) and not isinstance(pair[1], complex) and pair[1] < pair[0]
        return f"{'-' if below else ''}{figure(element.difference)}", Tone.NOTICE
    number = element.reference if kind is Shown.REFERENCE else element.target
    tone = Tone.REFERENCE if kind is Shown.REFERENCE else Tone.TARGET
    if isinstance(number, complex):
        return f"{number.real:.1e}{number.imag:+.1e}i"[: CELL - 1], tone
    if isinstance(number, (bool, int)):
        return shorten(str(number), CELL - 2, at="middle"), tone
    return (short(number), tone) if math.isfinite(number) else (str(number), Tone.BROKEN)


def short(number: float) -> str:
    """Four significant digits in at most 10 characters."""
    if number == 0:
        return "0" if math.copysign(1, number) > 0 else "-0"
    if 1e-3 <= abs(number) < 1e6:
        return f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def no_element(text: str, tensor: Tensor) -> str:
    """What is said of an index that `flat_of` does not find: how many numbers it takes, and how large each may be."""
    last = ", ".join(str(size - 1) for size in tensor.shape)
    if not tensor.count:
        return "this value has no elements"
    if not tensor.shape:
        return f"no element {visible(text)}: this value is a single number"
    if len(tensor.shape) == 1:
        return f"no element {visible(text)}: an index is a number up to {last}"
    return f"no element {visible(text)}: an index is {len(tensor.shape)} numbers up to {last}, or one up to {tensor.count - 1}"


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
