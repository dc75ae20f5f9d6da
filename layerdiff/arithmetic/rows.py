"""`Rows`: a call whose result can be replayed row by row, and how far each row lies from the call done once in fp32.

A distance here only ranks rows, and tells which are to be looked at in float64. It estimates what the ladder measures: the
distance to the recorded result's rounding interval over the error that arithmetic makes, from norms and not from every product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Array
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.sums import ROUNDING_SIGMA
from layerdiff.trace.arguments import Arguments

Narrow = NDArray[np.float32]
UNIT: Final = 2.0**-24
SIGMA: Final = ROUNDING_SIGMA * UNIT
"""Of one rounding in fp32, relative."""
_EXPONENT: Final = 0x7F800000
_AT_ONCE: Final = 1 << 18
"""Elements of a block: what a core keeps at hand."""


@dataclass(frozen=True)
class Rows:
    """A call that can be replayed row by row.

    Attributes:
        operator: whose contract knows `take`'s arguments.
        count: how many rows the result has.
        work: multiplications of the whole call.
        take: arguments of the call that makes the rows at ascending indices, and nothing else.
        taken: of result number i, as recorded, those rows.
        axes: for each result the axis of its rows, after `shapes`.
        shapes: for each result the shape with rows on an axis of their own.
        distances: from the recorded results and the format of the first, for each row about how many sigmas it lies at most from
            the call done in fp32, float64 [count]; inf where only one of the two is finite.
    """

    operator: str
    count: int
    work: int
    take: Callable[[NDArray[np.intp]], Arguments]
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[int, ...]
    distances: Callable[[tuple[Array, ...], Format], NDArray[np.float64]]


def narrow(x: Any) -> Narrow:
    """An operand in fp32."""
    return np.asarray(x, np.float32)


def blocks(rows: int, columns: int) -> list[slice]:
    """Runs of rows that are looked at together."""
    step = max(16, _AT_ONCE // max(columns, 1))
    return [slice(begin, begin + step) for begin in range(0, rows, step)]


def distance(recorded: Array, made: Narrow, format: Format) -> Narrow:
    """How far what fp32 made lies outside the interval of what rounds to `recorded`; inf where one of the two is finite alone.

    Half a gap counts in full on both sides of a power of two, and is left in for a result of fp32, whose sums are rounded as often.
    """
    near = narrow(recorded)
    off = np.abs(near - made)
    if format.unit > UNIT:
        below = (near.view(np.int32) & _EXPONENT).view(np.float32)
        off -= np.maximum(below * np.float32(format.unit), np.float32(format.smallest_subnormal / 2.0))
        np.maximum(off, 0.0, out=off)
    if not np.all(np.isfinite(off)):
        same = (near == made) | (np.isnan(near) & np.isnan(made))
        off[~np.isfinite(off)] = np.inf
        off[same] = 0.0
    return narrow(off)


def farthest(off: Narrow, sigma: Narrow) -> NDArray[np.float64]:
    """The largest off / sigma of each row of the last axis; inf where there is a distance and no sigma."""
    with np.errstate(all="ignore"):
        z = off / sigma
    z[off == 0] = 0.0
    z[np.isnan(z)] = np.inf
    return np.asarray(z.max(-1, initial=0.0), np.float64)
