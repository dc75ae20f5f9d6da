"""The picture of a difference: tiles pooled to the cells of a screen, and how far each is up a log scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.pooled import Pooled
from layerdiff.rows.figures import amount, count, figure
from layerdiff.rows.tensor.pair import Tensor
from layerdiff.rows.tones import Line, Segment, Tone, line

DECADES: Final = 3
"""From the largest difference down to the lowest step of the scale; what is smaller and not zero is on that step."""
_NARROWEST: Final = 2.0
"""The ends of the scale are at least this far apart, so that a picture of equal differences is of one tone."""
ODD: Final = 99
"""The level of a cell where the class (finite, nan, inf, -inf) of an element differs."""
UNKNOWN_LEVEL: Final = -1


@dataclass(frozen=True)
class Picture:
    """Cells of a screen."""

    tensor: Tensor
    largest: NDArray[np.float64]
    """Shape (h, w): the largest |difference| of a cell; inf where a class differs, nan where no element falls."""
    cell_rows: int
    cell_columns: int
    """Rows and columns of the layout (of its sample) that one cell stands for."""
    low: float
    high: float
    """Ends of the scale; both 0 where nothing differs."""

    def levels(self, steps: int) -> NDArray[np.int64]:
        """Shape (h, w): 0 for no difference, 1 to `steps` on the log scale, ODD, or UNKNOWN_LEVEL."""
        value = self.largest
        known = np.isfinite(value) & (value > 0)
        span = math.log10(self.high / self.low) if self.high > self.low > 0 else 0.0
        share = (np.log10(np.where(known, value, self.high or 1.0)) - math.log10(self.low or 1.0)) / span if span else np.ones(value.shape)
        level = np.where(known, np.clip(1 + np.floor(share * steps), 1, steps), 0)
        level = np.where(np.isinf(value), ODD, level)
        out: NDArray[np.int64] = np.where(np.isnan(value), UNKNOWN_LEVEL, level).astype(np.int64)
        return out

    def first_element(self, y: int, x: int) -> int:
        """The flat index of the first element of a cell."""
        row = y * self.cell_rows * self.tensor.every
        return min(row * self.tensor.columns + x * self.cell_columns, self.tensor.count - 1)

    def worst_element(self, y: int, x: int, *, most: int = 1 << 12) -> int:
        """The flat index of the element that differs most in a cell; its first where it has more than `most` elements."""
        tensor, first = self.tensor, self.first_element(y, x)
        rows = min(self.cell_rows, -(-(tensor.count - first) // (tensor.columns * tensor.every)))
        columns = min(self.cell_columns, tensor.columns - x * self.cell_columns)
        if rows * columns > most or rows * self.tensor.every > most:
            return first
        best, found = -1.0, first
        for i in range(rows):
            start = first + i * tensor.every * tensor.columns
            length = min(columns, tensor.count - start)
            if length <= 0:
                break
            ours, theirs = (side.dtype.decode(side.read(start, length)) for side in (tensor.sides.reference, tensor.sides.target))
            with np.errstate(invalid="ignore", over="ignore"):
                apart = np.abs(theirs.astype(np.complex128) - ours.astype(np.complex128))
            both = (ours == theirs) | (np.isnan(ours.astype(np.complex128)) & np.isnan(theirs.astype(np.complex128)))
            apart = np.where(both, 0.0, np.where(np.isfinite(apart), apart, np.inf))
            at = int(apart.argmax())
            if apart[at] > best:
                best, found = float(apart[at]), start + at
        return found

    def pooling(self) -> str:
        """What a cell stands for."""
        each = self.cell_rows * self.cell_columns
        if each == 1:
            return "a cell is one element"
        return f"a cell is the largest of {count(self.cell_rows)} × {count(self.cell_columns)} elements"

    def describe(self, y: int, x: int) -> str:
        """Which elements a cell stands for."""
        tensor = self.tensor
        top, left = y * self.cell_rows * tensor.every, x * self.cell_columns
        bottom = min(top + (self.cell_rows - 1) * tensor.every, tensor.rows - 1)
        right = min(left + self.cell_columns, tensor.columns) - 1
        if tensor.wrapped:
            first, last = top * tensor.columns + left, min(bottom * tensor.columns + right, tensor.count - 1)
            return tensor.name(first) if first == last else f"{tensor.name(first)} to {tensor.name(last)}"
        columns = str(left) if left == right else f"{left}..{right}"
        rows = tensor.row_name(top) if top == bottom else f"{tensor.row_name(top)}..{tensor.row_name(bottom)}"
        return f"[{rows}, {columns}]"


def picture_of(tensor: Tensor, tiles: Pooled, tall: int, wide: int) -> Picture:
    """Tiles pooled into at most `tall` by `wide` cells."""
    h, w = tiles.largest.shape
    down, across = max(1, -(-h // max(1, tall))), max(1, -(-w // max(1, wide)))
    largest = np.where(np.isnan(tiles.largest), -1.0, tiles.largest)
    largest = np.maximum.reduceat(np.maximum.reduceat(largest, np.arange(0, h, down), axis=0), np.arange(0, w, across), axis=1)
    finite = largest[np.isfinite(largest) & (largest > 0)]
    high = float(finite.max()) if finite.size else 0.0
    low = min(max(float(finite.min()), high * 10.0**-DECADES), high / _NARROWEST) if finite.size else 0.0
    return Picture(tensor, np.where(largest < 0, np.nan, largest), tiles.row_width * down, tiles.column_width * across, low, high)


def caption(picture: Picture, width: int) -> Line:
    """What is drawn, what is down and what is across."""
    tensor = picture.tensor
    if tensor.wrapped:
        laid = f"{amount(tensor.rows, 'row')} of {count(tensor.columns)}, a vector wrapped"
    else:
        axes = f"axes 0 to {len(tensor.shape) - 2}" if len(tensor.shape) > 2 else "axis 0"
        laid = f"down {axes} ({count(tensor.rows)}), across axis {len(tensor.shape) - 1} ({count(tensor.columns)})"
    short = f"{count(tensor.rows)} × {count(tensor.columns)}"
    for words in (f"{laid} · {picture.pooling()}", f"{short} · {picture.pooling()}", picture.pooling()):
        made = line(("|Δ|  ", Tone.STRONG), (words, Tone.DIM))
        if made.width <= width:
            break
    return made.clipped(width)


def cell_line(picture: Picture, y: int, x: int, width: int) -> Line:
    """The cell under the cursor."""
    value = float(picture.largest[y, x])
    if math.isinf(value):
        said = Segment("an element whose class (finite, nan, inf) differs", Tone.BROKEN)
    else:
        said = Segment("no element" if math.isnan(value) else f"largest |Δ| {figure(value)}", Tone.PLAIN)
    return line((f"{picture.describe(y, x)}  ", Tone.TITLE), said).clipped(width)
