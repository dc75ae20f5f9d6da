"""Tiles of a difference against a plain loop over them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.measure.pooled import pooled
from layerdiff.trace.dtypes import DTYPES
from tests.measure.arrays import ArrayBlocks, raw


def test_a_tile_shows_its_largest_difference() -> None:
    reference = np.zeros((4, 6), np.float32)
    target = reference.copy()
    target[0, 5], target[3, 0], target[2, 1] = -2, 0.5, 0.25
    found = pooled(ArrayBlocks(DTYPES["float32"], reference), ArrayBlocks(DTYPES["float32"], target), 6, most=2)
    assert (4, 6, 2, 3) == (found.rows, found.columns, found.row_width, found.column_width)
    assert [[0.0, 2.0], [0.5, 0.0]] == found.largest.tolist()


def test_a_class_that_differs_is_infinite_and_a_missing_element_unknown() -> None:
    reference = np.ones(5, np.float32)
    target = np.array([1, np.nan, 1, 1, 1], np.float32)
    found = pooled(ArrayBlocks(DTYPES["float32"], reference), ArrayBlocks(DTYPES["float32"], target), 3)
    assert str([[0.0, math.inf, 0.0], [0.0, 0.0, math.nan]]) == str(found.largest.tolist())


def test_integers_are_exact() -> None:
    reference, target = np.array([2**62, 5]), np.array([2**62 + 1, 5])
    found = pooled(ArrayBlocks(DTYPES["int64"], reference), ArrayBlocks(DTYPES["int64"], target), 2)
    assert [[1.0, 0.0]] == found.largest.tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3000), st.integers(1, 9))
def test_any_layout(rows: int, columns: int, most: int) -> None:
    rng = np.random.default_rng(rows * 7 + columns)
    r, t = rng.standard_normal((rows, columns)), rng.standard_normal((rows, columns))
    found = pooled(ArrayBlocks(DTYPES["float64"], r), ArrayBlocks(DTYPES["float64"], t), columns, most=most)
    tall, wide = -(-rows // most), -(-columns // most)
    apart = np.abs(t - r)
    expected = [[float(apart[y : y + tall, x : x + wide].max()) for x in range(0, columns, wide)] for y in range(0, rows, tall)]
    assert expected == found.largest.tolist()


def test_other_sizes_and_types_without_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 elements"):
        pooled(ArrayBlocks(DTYPES["float32"], np.zeros(3)), ArrayBlocks(DTYPES["float32"], np.zeros(4)), 2)
    bits = raw("float4_e2m1fn_x2", [1, 2])
    with pytest.raises(ValueError, match="without numbers"):
        pooled(bits, bits, 2)
