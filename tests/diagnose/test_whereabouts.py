"""Where elements lie, in words."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.diagnose.whereabouts import ranges, whereabouts


def at(shape: tuple[int, ...], *where: object) -> np.ndarray:
    chosen = np.zeros(shape, bool)
    for part in where:
        chosen[part] = True  # type: ignore[index]  # any index
    return chosen


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (at((1, 18, 64), np.s_[:, :3]), "rows 0..2 of dim 1 are wholly NaN"),
        (at((1, 18, 64), np.s_[:, 5]), "row 5 of dim 1 is wholly NaN"),
        (at((4, 18), np.s_[1, :2]), "rows 1 of dim 0 and 0..1 of dim 1 are wholly NaN"),
        (at((9,), 0, 2, 3, 5, 8), "rows 0, 2..3, 5, 8 of dim 0 are wholly NaN"),
        (at((2, 3), np.s_[:]), "every element is NaN"),
        (at((2, 3), (0, 1), (1, 2)), "the first at [0, 1]"),
        (at((), ()), "every element is NaN"),
        (at((2, 3)), ""),
    ],
)
def test_whereabouts(chosen: np.ndarray, expected: str) -> None:
    assert whereabouts(chosen, "NaN") == expected


def test_ranges_say_how_many_they_leave_out() -> None:
    assert ranges([0, 1, 2, 7]) == "0..2, 7"
    assert ranges([0, 2, 4, 5, 6, 9], most=2) == "0, 2 and 4 more"
