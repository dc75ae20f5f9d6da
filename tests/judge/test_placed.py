"""Of ranks that hold the same places of a value, the one that is furthest off is measured and stands in the logical tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerdiff.align.placements import infer
from layerdiff.judge.pairs.placed import Kept, Placed, screened
from layerdiff.trace.dtypes import dtype_named

WHOLE: NDArray[Any] = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)
HALVES = [WHOLE[:2], WHOLE[2:]]
QUARTERS = [WHOLE[i : i + 2, :, j : j + 4] for i in (0, 2) for j in (0, 4)]
LAYOUTS: dict[str, list[NDArray[Any]]] = {
    "copies of the whole": [WHOLE] * 3,
    "copies of a half": [half for half in HALVES for _ in range(2)],
    "copies of a half, in turn": HALVES * 2,
    "copies of a quarter, in a grid": [quarter for quarter in QUARTERS for _ in range(2)],
    "no copies": QUARTERS,
}


def _measured(parts: Sequence[NDArray[Any]]) -> tuple[float, Placed]:
    """Relative error of the logical tensor, and how the parts lie."""
    dtype = dtype_named("float32")
    assert dtype is not None
    kept = [Kept(dtype, np.ascontiguousarray(part, np.float32)) for part in (WHOLE, *parts)]
    numbers, placed = screened(kept[0], kept[1:], Placed(infer(WHOLE, parts), tuple(range(len(parts))), (), None))
    return float(numbers.columns["rel_l2"]), placed


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rank_that_is_off_is_measured_whichever_it_is(name: str) -> None:
    parts = LAYOUTS[name]
    assert _measured(parts)[0] == 0.0
    for off, part in enumerate(parts):
        error, placed = _measured([1.2 * one if rank == off else one for rank, one in enumerate(parts)])
        expected = 0.2 * float(np.linalg.norm(part)) / float(np.linalg.norm(WHOLE))
        assert error == pytest.approx(expected, rel=1e-3), (off, placed.placement.name)
        assert max(range(len(parts)), key=lambda rank: placed.errors[rank]) == off
