"""The values of a site: which pairs of values it has, in the order in which a screen names them."""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.rows.cells import visible
from layerdiff.rows.figures import UNKNOWN
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import Role

_ORDER: Final = {Role.OUTPUT: 0, Role.INPUT: 1, Role.WEIGHT: 2}
Shape = tuple[int, ...]


class ValueName(NamedTuple):
    """One side of a pair of values, as the comparison knows it. Texts are visible."""

    dtype: str
    shape: Shape | None

    @property
    def text(self) -> str:
        """`float32 [1,18,64]`."""
        return f"{self.dtype} {shape_text(self.shape)}"


def pairs_of(comparison: Comparison, row: int) -> NDArray[np.int64]:
    """The pairs of values of a site: outputs, then inputs, then weights, as recorded within each."""
    # The table of pairs is in the order of its sites, so a search finds a site's pairs; any other order is scanned.
    column = np.asarray(comparison.pairs["site"])
    low, high = np.searchsorted(column, row), np.searchsorted(column, row, side="right")
    mine = np.arange(low, high) if high > low and np.all(column[low:high] == row) else np.flatnonzero(column == row)
    role = comparison.pairs["role"][mine]
    found: NDArray[np.int64] = mine[np.argsort([_ORDER.get(Role(int(r)), 3) if r in (0, 1, 2) else 3 for r in role], kind="stable")]
    return found


def position(comparison: Comparison, pair: int) -> str:
    """`out`, `in[0]`, `weight`."""
    return visible(comparison.texts[int(comparison.pairs["position"][pair])] or UNKNOWN)


def value_name(comparison: Comparison, pair: int, side: str) -> ValueName:
    """dtype and shape of one side (`reference`, `target`) of a pair."""
    pairs, texts = comparison.pairs, comparison.texts
    return ValueName(visible(texts[int(pairs[f"{side}_dtype"][pair])] or UNKNOWN), shape_of(texts[int(pairs[f"{side}_shape"][pair])]))


def shape_of(text: str | None) -> Shape | None:
    """A shape from its JSON; None where there is none."""
    try:
        shape = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return tuple(shape) if isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) else None


def shape_text(shape: Shape | None) -> str:
    """`[1,18,64]`."""
    return UNKNOWN if shape is None else f"[{','.join(map(str, shape))}]"


def index_text(flat: int, shape: Shape | None) -> str:
    """A flat row-major index as `[0, 3, 17]`; as it is where the shape is not known, or too small for it."""
    if flat < 0:
        return UNKNOWN
    if not shape or flat >= math.prod(shape):
        return str(flat)
    return str(list(index_of(flat, shape)))


def index_of(flat: int, shape: Shape) -> Shape:
    """A flat row-major index along each axis."""
    found: list[int] = []
    for n in reversed(shape):
        flat, at = divmod(flat, max(1, n))
        found.append(at)
    return tuple(reversed(found))
