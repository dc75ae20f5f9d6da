"""The difference by rows, with figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from layerdiff.measure.rows import FLOOR, RowDifference, row_difference

ROW = np.array([3.0, 4.0, 0.0, 0.0])  # root mean square 2.5


def figure(reference: object, target: object) -> float:
    return row_difference(np.asarray(reference), np.asarray(target)).figure


def test_the_largest_difference_of_a_row_over_its_root_mean_square() -> None:
    other = ROW + np.array([0, 0.5, 0, -0.25])
    assert RowDifference(0.5 / 2.5, 1, 0.5, 1) == row_difference(other, ROW)


def test_the_worst_row_counts_and_no_other_dilutes_it() -> None:
    target = np.tile(ROW, (100, 1))
    reference = target.copy()
    reference[70, 2] = 1.0
    reference[80, 0] = 2.5
    assert RowDifference(1.0 / 2.5, 70 * 4 + 2, 1.0, 2) == row_difference(reference, target)


def test_a_row_of_nothing_is_held_against_a_thousandth_of_the_median_row() -> None:
    target = np.stack([ROW, ROW, np.zeros(4)])
    reference = target.copy()
    reference[2, 0] = 1e-6
    assert 1e-6 / (FLOOR * 2.5) == pytest.approx(figure(reference, target), rel=1e-12)


@pytest.mark.parametrize(("reference", "target"), [(np.zeros(4), ROW), (ROW, np.zeros(4)), (np.zeros(4), np.array([0, 0, 0, 1e-300]))])
def test_a_side_that_is_all_zero_compares_exactly(reference: object, target: object) -> None:
    assert math.inf == figure(reference, target)
    assert 0.0 == figure(np.zeros(4), np.zeros(4))


def test_non_finite_elements_compare_by_class_and_position() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert 0.0 == figure(special, special)
    assert math.inf == figure(special, np.array([np.nan, np.inf, np.inf, 1.0]))
    assert math.inf == figure(special, np.array([0.0, np.inf, -np.inf, 1.0]))
    # the rest is measured without them: the row's root mean square is over four elements, of which one is finite
    assert 1.0 == figure(np.array([np.nan, np.inf, -np.inf, 1.5]), special)


def test_whole_numbers_and_booleans_compare_exactly() -> None:
    assert RowDifference(math.inf, 1, 2.0, 2) == row_difference(np.array([1, 2, 3]), np.array([1, 3, 4]))
    assert 0.0 == figure([True, False], [True, False])
    assert math.inf == figure([True, False], [True, True])
    assert math.inf == figure(np.array([1, 2]), np.array([1.0, 2.5]))


def test_nothing_differs_in_nothing_and_a_number_is_a_row() -> None:
    assert RowDifference(0.0, -1, 0.0, 0) == row_difference(np.zeros((0, 3)), np.zeros((0, 3)))
    assert RowDifference(0.25, 0, 1.0, 1) == row_difference(np.array(5.0), np.array(4.0))


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        row_difference(np.zeros(2), np.zeros(3))


def test_complex_numbers_by_their_size() -> None:
    target = np.array([3.0 + 4.0j, 0.0])  # root mean square 5 / sqrt 2
    assert 1.0 / (5.0 / math.sqrt(2.0)) == pytest.approx(figure(target + np.array([1j, 0]), target), rel=1e-12)


def test_huge_numbers_do_not_overflow_into_agreement() -> None:
    assert not figure(np.array([1e200, 0.0]), np.array([2e200, 0.0])) <= 1e-9
