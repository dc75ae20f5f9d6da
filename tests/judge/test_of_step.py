"""What one step of several may have of a value that the other run makes at once, and that it is found among many values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import pytest

from layerdiff.judge.meaning.equals import Equals
from layerdiff.judge.programs.of_step import Part, parts_of_step, without_own
from layerdiff.judge.programs.together import Together
from layerdiff.trace.along import InRow, Layout, Shape

# requests of 3 and 5 tokens: the first, the second with 2 before, and the rest of it; in the second step one place is of neither
GRIDS = ((1, 3), (1, 3), (1, 3))
ORDER = (0, 1, 2, 3, 4, 6, 7, 8)
ROW = Layout(GRIDS, ORDER, (1, 1, 1), (0, 2), pieces=(((0, 0, 3, 0, 0),), ((3, 3, 5, 0, 1),), ((3, 5, 8, 0, 0),)))
BATCH = Layout(((2, 2), (2, 3)))


def parts(layout: Layout, whole: np.ndarray, step: int) -> list[np.ndarray]:
    return [part.of(whole) for part in parts_of_step(layout, whole.shape, step)]


@pytest.mark.parametrize("step", range(3))
def test_a_step_has_its_lines_of_a_row(step: int) -> None:
    whole = np.random.default_rng(0).standard_normal((8, 4))
    (own, *_) = parts(ROW, whole, step)
    assert np.array_equal(own, InRow(0, False, ORDER).parts(whole, [(3, 4)] * 3)[step])


def test_a_request_in_a_step_has_its_own_tokens_all_until_then_and_their_scores() -> None:
    scores = np.random.default_rng(0).standard_normal((2, 8, 6))
    found = parts(ROW, scores, 2)
    for expected in (scores[:, 5:8], scores[:, 3:8], scores[:, 5:8, :5]):
        assert any(np.array_equal(one, expected) for one in found)


def test_a_step_of_a_batch_has_its_tokens_and_those_until_then() -> None:
    flat = np.random.default_rng(0).standard_normal((10, 4))
    whole = flat.reshape(2, 5, 4)
    for one in (flat, whole):
        found = [part.reshape(2, -1, 4) for part in parts(BATCH, one, 1)]
        assert np.array_equal(found[0], whole[:, 2:])
        assert np.array_equal(found[1], whole)


@pytest.mark.parametrize("layout", [ROW, BATCH])
def test_the_size_of_a_part_is_told_before_it_is_made(layout: Layout) -> None:
    for shape in ((8, 4), (2, 8, 6), (8,), (2, 5, 4), (10, 4), (5, 5)):
        for part in parts_of_step(layout, shape, 1):
            assert part.size(shape) == part.of(np.zeros(shape)).size


class Steps:
    """Calls of one step, each by itself."""

    def piece_of(self, call: int) -> int:
        return 2

    def is_alone(self, piece: int) -> bool:
        return False

    def without_own(self, value: np.ndarray, piece: int) -> Iterator[np.ndarray]:
        return (value[part] for part in without_own(ROW, value.shape, piece))

    def parts(self, shape: Shape, piece: int, size: int) -> Sequence[Part]:
        return [part for part in parts_of_step(ROW, shape, piece) if part.size(shape) == size]


def test_a_part_is_found_in_any_of_thousands_of_values() -> None:
    numbers = np.random.default_rng(0)
    wholes = [numbers.standard_normal((2, 8, 6)) for _ in range(4000)]
    known = Equals(wholes, pieces=cast("Together", Steps()))
    assert known.has(np.ascontiguousarray(wholes[-1][:, 5:8, :5].transpose(1, 0, 2)), 0)
    assert not known.has(np.ascontiguousarray(wholes[-1][::-1, 5:8, :5]), 0)
