"""Tokens of a batch that one run has in a row."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.align.beside import Forms
from layerdiff.align.packing import Packing, nearest_places, packed

IDS = np.array([[5, 6, 7, 0], [5, 6, 0, 0], [8, 9, 3, 4]])
COUNTS = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], bool)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_requests_are_found_in_any_order(order: tuple[int, ...]) -> None:
    row = np.concatenate([IDS[number][COUNTS[number]] for number in order])
    places = packed(IDS, COUNTS, row)
    assert places is not None
    assert [*IDS.reshape(-1)[places]] == [*row]
    assert sorted(places) == [*np.flatnonzero(COUNTS)]


@pytest.mark.parametrize(
    "row",
    [
        np.concatenate([IDS[0][:3], IDS[1][:2], IDS[2]])[::-1],  # tokens in another order
        np.array([5, 6, 7, 5, 6, 8, 9, 3, 3]),  # another token
        IDS[COUNTS][:-1],  # one too few
        IDS.reshape(-1),  # with the padding
    ],
)
def test_what_is_no_row_of_the_requests_is_none(row: np.ndarray) -> None:
    assert packed(IDS, COUNTS, row) is None


def test_requests_that_begin_alike_are_tried() -> None:
    ids, counts = np.array([[1, 1, 0], [1, 1, 1]]), np.array([[1, 1, 0], [1, 1, 1]], bool)
    places = packed(ids, counts, np.ones(5, int))
    assert places is not None and sorted(places) == [*np.flatnonzero(counts)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_requests_that_are_alike_keep_their_order(count: int) -> None:
    assert packed(np.full((count, 1), 7), np.ones((count, 1), bool), np.full(count, 7)) is None
    ids = np.repeat([[1, 2], [3, 4]], count, axis=0)
    assert packed(ids, np.ones(ids.shape, bool), ids.reshape(-1)) is None


def test_many_requests_that_are_alike_cost_little() -> None:
    ids, counts = np.ones((64, 9), int), np.arange(9) < 8
    assert packed(ids, np.broadcast_to(counts, ids.shape), np.ones(64 * 8 - 1, int)) is None
    assert packed(ids, np.broadcast_to(counts, ids.shape), np.ones(64 * 8, int)) is not None


@pytest.mark.parametrize("padded", ["reference", "target"])
@pytest.mark.parametrize("batch", [(3, 4, 2), (12, 2)])
@pytest.mark.parametrize("row", [(9, 2), (1, 9, 2)])
def test_the_tokens_that_count_are_laid_beside_each_other(padded: str, batch: tuple[int, ...], row: tuple[int, ...]) -> None:
    places = np.flatnonzero(COUNTS)
    forms = Forms(packing=Packing(padded, (3, 4), places))
    whole = np.random.default_rng(0).standard_normal((12, 2))
    sides = whole.reshape(batch), whole[places].reshape(row)
    sides = sides if padded == "reference" else sides[::-1]
    assert forms.same(*(side.shape for side in sides))
    beside = forms.beside(*sides)
    assert beside is not None and np.array_equal(*beside) and beside[0].size == 18
    other = np.full_like(sides[0], 7.0)
    again = forms.for_reference(sides[1], sides[0].shape, lambda: other)
    kept = np.isin(np.arange(12), places) if padded == "reference" else np.ones(9, bool)
    assert np.array_equal(again.reshape(-1, 2)[kept], sides[0].reshape(-1, 2)[kept])
    assert np.all(again.reshape(-1, 2)[~kept] == 7.0)


@pytest.mark.parametrize(("reference", "target"), [((3, 4, 2), (9, 3)), ((4, 3, 2), (9, 2)), ((3, 4, 2), (8, 2)), ((3, 4), (9, 2))])
def test_other_shapes_are_no_forms_of_one_thing(reference: tuple[int, ...], target: tuple[int, ...]) -> None:
    forms = Forms(packing=Packing("reference", (3, 4), np.flatnonzero(COUNTS)))
    assert not forms.same(reference, target)
    assert forms.beside(np.zeros(reference), np.zeros(target)) is None


@pytest.mark.parametrize("off", [0.0, 1e-6, 0.02])
def test_the_nearest_place_of_each_line(off: float) -> None:
    rng = np.random.default_rng(1)
    batch, likely = rng.standard_normal((12, 16)), np.isin(np.arange(12), [3, 7, 11])
    for places in ([3, 7, 11], [11, 3, 7], [2, 6, 10], [0]):
        row = batch[places] + off * rng.standard_normal((len(places), 16))
        found = nearest_places(batch, row, likely)
        assert found is not None and [*found] == places


def test_lines_of_nothing_in_the_batch_are_of_no_place() -> None:
    rng = np.random.default_rng(1)
    assert nearest_places(rng.standard_normal((12, 16)), rng.standard_normal((3, 16)), np.ones(12, bool)) is None


def test_of_places_that_are_alike_the_likely_ones_are_taken() -> None:
    line = np.random.default_rng(1).standard_normal(16)
    batch = np.stack([line, 2 * line, line, line])
    found = nearest_places(batch, np.stack([line, line]), np.array([False, False, True, True]))
    assert found is not None and sorted(found) == [2, 3]
