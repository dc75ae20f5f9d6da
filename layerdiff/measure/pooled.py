"""The difference as a picture: a value laid out in rows and columns, the largest |difference| of every tile.

Tiles are whole numbers of rows and columns, so that a screen can pool them further without reading again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.along_axis import _magnitudes
from layerdiff.measure.blocks import Blocks

MOST_TILES: Final = 512
"""Along each side."""


@dataclass(frozen=True)
class Pooled:
    """Largest |target - reference| a tile; nan where no element falls."""

    rows: int
    columns: int
    """Of the layout, in elements."""
    row_width: int
    column_width: int
    """Of a tile, in elements."""
    largest: NDArray[np.float64]
    """Shape (ceil(rows / row_width), ceil(columns / column_width)); inf where the class (finite, nan, inf, -inf) differs."""


def pooled(reference: Blocks, target: Blocks, columns: int, *, most: int = MOST_TILES) -> Pooled:
    """Both values, row-major in rows of `columns` elements (the last may be shorter), in at most `most` by `most` tiles.

    Raises ValueError where the two do not hold equally many elements, or a dtype has no numbers.
    """
    if "bits" in (reference.dtype.kind, target.dtype.kind):
        raise ValueError(f"{reference.dtype.name} against {target.dtype.name}: a type without numbers has no differences")
    columns = max(1, columns)
    rows = -(-reference.count // columns)
    row_width, column_width = max(1, -(-rows // most)), max(1, -(-columns // most))
    largest = np.full((-(-rows // row_width), -(-columns // column_width)), -1.0)
    flat, across = largest.reshape(-1), largest.shape[1]
    for start, apart in _magnitudes(reference, target):
        first, last = start // columns, (start + apart.size - 1) // columns
        cuts = (np.arange(first, last + 1)[:, None] * columns + np.arange(0, columns, column_width)).reshape(-1) - start
        cuts = cuts[cuts < apart.size]
        before = max(0, int(np.searchsorted(cuts, 0, side="right")) - 1)
        cuts = cuts[before:]
        tile = ((cuts + start) // columns // row_width) * across + (cuts + start) % columns // column_width
        cuts[0] = max(0, cuts[0])
        np.maximum.at(flat, tile, np.maximum.reduceat(apart, cuts).astype(np.float64))
    return Pooled(rows, columns, row_width, column_width, np.where(largest < 0, np.nan, largest))
