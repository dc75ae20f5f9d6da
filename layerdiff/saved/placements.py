"""How the values of many ranks make up logical tensors, looked up by site: the columns of PLACED as objects, made when asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.runs import Run, read_runs
from layerdiff.judge.tables import Placing

if TYPE_CHECKING:
    from layerdiff.saved.comparison import Comparison

FAR: Final = 10.0
"""How many times the middle error of all ranks makes one rank stand out."""


@dataclass(frozen=True)
class Part:
    """One rank's part of a value."""

    file: int
    """Of the target's files."""
    rank: int
    error: float
    """Relative L2 against its part of the reference; NaN where it has none of its own, as a part of a sum."""
    holds: tuple[Run, ...] | None
    """Places along the dimension; None where it holds all of them, or where they are too many runs to be kept."""


@dataclass(frozen=True)
class PlacedValue:
    """One value of a site, made up of the parts of ranks."""

    pair: int
    position: str
    """out, in[0], weight."""
    kind: Placing
    name: str
    """`sharded along 2, contiguous`."""
    dim: int
    shape: tuple[int, ...]
    """Of the logical tensor."""
    also: str | None
    """Other readings that fit as well."""
    agree: bool | None
    """Whether ranks that hold the same places have the same numbers; None where none hold the same."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int | None:
        """Places along the dimension; None where there is none."""
        return self.shape[self.dim] if 0 <= self.dim < len(self.shape) else None

    @property
    def off(self) -> tuple[Part, ...]:
        """Parts that are more than `FAR` times as far off as the middle one of all ranks; none where that is half of them or more."""
        known = [part for part in self.parts if not math.isnan(part.error)]
        if len(known) < 2:
            return ()
        middle = sorted(part.error for part in known)[(len(known) - 1) // 2]
        found = tuple(part for part in known if part.error > FAR * middle)
        return found if 2 * len(found) < len(known) or len(known) == 2 else ()


class Placements:
    """The placed values of one comparison."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        pair = np.asarray(comparison.placed["pair"])
        sites = np.asarray(comparison.pairs["site"])[pair] if pair.size else np.empty(0, np.int64)
        self._order = np.lexsort((pair, sites))
        self._site = sites[self._order]

    def __len__(self) -> int:
        return int(self._order.size)

    def of_site(self, row: int) -> list[PlacedValue]:
        """The values of the site in `row`, in the order of its pairs."""
        first, end = np.searchsorted(self._site, [row, row + 1]).tolist()
        rows = self._order[first:end]
        if not rows.size:
            return []
        pairs = np.asarray(self._comparison.placed["pair"])[rows]
        starts = np.flatnonzero(np.diff(pairs, prepend=-1)).tolist()
        return [self._value(rows[a:b]) for a, b in zip(starts, [*starts[1:], len(rows)], strict=True)]

    def of_value(self, row: int, position: str) -> PlacedValue | None:
        """The value at `position` of the site in `row`; None where it is not placed."""
        return next((value for value in self.of_site(row) if value.position == position), None)

    def _value(self, rows: NDArray[np.intp]) -> PlacedValue:
        placed, texts, pairs = self._comparison.placed, self._comparison.texts, self._comparison.pairs
        first = int(rows[0])
        pair, agree = int(placed["pair"][first]), int(placed["agree"][first])
        parts = tuple(
            Part(
                int(placed["file"][row]), int(placed["rank"][row]), float(placed["error"][row]), read_runs(texts[int(placed["holds"][row])])
            )
            for row in rows
        )
        return PlacedValue(
            pair=pair,
            position=texts[int(pairs["position"][pair])] or "",
            kind=Placing(int(placed["kind"][first])),
            name=texts[int(placed["placement"][first])] or "",
            dim=int(placed["dim"][first]),
            shape=tuple(json.loads(texts[int(pairs["reference_shape"][pair])] or "[]")),
            also=texts[int(placed["also"][first])],
            agree=None if agree == 2 else bool(agree),
            parts=tuple(sorted(parts, key=lambda part: (part.rank, part.file))),
        )


def counted(comparison: Comparison) -> dict[Placing, int]:
    """How many values are placed in each way, those that are, in the order of `Placing` from replicated on, unknown last."""
    _, first = np.unique(np.asarray(comparison.placed["pair"]), return_index=True)
    kinds = np.asarray(comparison.placed["kind"])[first]
    order: Sequence[Placing] = (Placing.REPLICATED, Placing.SHARDED, Placing.PARTIAL, Placing.NESTED, Placing.UNKNOWN)
    return {kind: int(number) for kind in order if (number := np.count_nonzero(kinds == kind))}
