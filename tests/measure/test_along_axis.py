"""Norms along an axis against numpy's own, and the worst elements in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.measure.along_axis import Element, along, worst
from layerdiff.trace.dtypes import DTYPES
from tests.measure.arrays import ArrayBlocks, raw, value

INF, NAN = math.inf, math.nan


def test_one_token_that_is_wrong() -> None:
    reference = np.ones((2, 3, 4), np.float32)
    target = reference.copy()
    target[:, 1] += 3
    sides = ArrayBlocks(DTYPES["float32"], reference), ArrayBlocks(DTYPES["float32"], target)
    found = along(*sides, (2, 3, 4), 1)
    assert [0.0, math.sqrt(72), 0.0] == pytest.approx(found.difference.tolist())
    assert [math.sqrt(8)] * 3 == pytest.approx(found.reference.tolist())
    assert (1, 3, 1) == (found.axis, found.size, found.width)
    pooled = along(*sides, (2, 3, 4), -2, most=2)
    assert (2, [math.sqrt(72), 0.0]) == (pooled.width, pytest.approx(pooled.difference.tolist()))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=3), st.data())
def test_any_shape_and_axis(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    rng = np.random.default_rng(0)
    r, t = rng.standard_normal(shape), rng.standard_normal(shape)
    found = along(ArrayBlocks(DTYPES["float64"], r), ArrayBlocks(DTYPES["float64"], t), shape, axis)
    others = tuple(i for i in range(len(shape)) if i != axis)
    assert np.sqrt(((t - r) ** 2).sum(axis=others)).tolist() == pytest.approx(found.difference.tolist(), rel=1e-12)
    assert np.sqrt((r**2).sum(axis=others)).tolist() == pytest.approx(found.reference.tolist(), rel=1e-12)


@pytest.mark.parametrize(("shape", "axis"), [((3, 50000), 1), ((3, 50000), 0), ((2, 7, 10007), 1), ((70001,), 0), ((5, 40000, 2), 1)])
def test_rows_longer_than_a_block(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(0)
    r, t = rng.standard_normal(shape), rng.standard_normal(shape)
    found = along(ArrayBlocks(DTYPES["float64"], r), ArrayBlocks(DTYPES["float64"], t), shape, axis, most=10**6)
    others = tuple(i for i in range(len(shape)) if i != axis)
    np.testing.assert_allclose(found.difference, np.sqrt(((t - r) ** 2).sum(axis=others)), rtol=1e-12)


def test_classes_that_differ_are_counted_and_in_no_norm() -> None:
    found = along(value("float32", [1.0, NAN, 3.0, NAN]), value("float32", [1.0, 2.0, 4.0, NAN]), (2, 2), 0)
    assert ([1, 0], [0.0, 1.0], [1.0, 3.0]) == (found.differ.tolist(), found.difference.tolist(), found.reference.tolist())


def test_complex_and_empty() -> None:
    found = along(value("complex64", [1 + 0j, 0j]), value("complex64", [1 + 0j, 3 + 4j]), (2,), 0)
    assert [0.0, 5.0] == found.difference.tolist()
    assert 0 == along(value("float32", []), value("float32", []), (0, 4), 0).difference.size


def test_what_along_refuses() -> None:
    one = value("float32", [1.0, 2.0])
    with pytest.raises(ValueError, match="no axis 1"):
        along(one, one, (2,), 1)
    with pytest.raises(ValueError, match=r"\[3\] has 3 elements and the value 2"):
        along(one, one, (3,), 0)


def test_the_worst_elements() -> None:
    reference, target = value("float32", [1.0, 2.0, NAN, 4.0, 5.0]), value("float32", [1.5, 2.0, 3.0, 6.0, 4.5])
    found = worst(reference, target, 3)
    assert Element(3, 4.0, 6.0, 2.0, 0x40800000, 0x40C00000) == found[1]
    assert Element(0, 1.0, 1.5, 0.5, 0x3F800000, 0x3FC00000) == found[2]
    assert (2, 3.0, INF, 0x40400000) == (found[0].index, found[0].target, found[0].difference, found[0].target_bits)
    assert [2, 3, 0, 4] == [element.index for element in worst(reference, target, 9)]
    assert [] == worst(reference, target, 0)


def test_the_worst_integers_booleans_and_complex_numbers() -> None:
    assert [Element(1, 2**62, 2**62 + 1, 1.0, 2**62, 2**62 + 1)] == worst(raw("int64", [5, 2**62]), raw("int64", [5, 2**62 + 1]), 2)
    assert [Element(0, True, False, 1.0, 1, 0)] == worst(raw("bool", [1, 1]), raw("bool", [0, 1]), 2)
    found = worst(value("complex64", [1j, 2 + 0j]), value("complex64", [1j, 2 + 3j]), 2)
    assert [(1, 2 + 0j, 2 + 3j, 3.0)] == [(e.index, e.reference, e.target, e.difference) for e in found]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_the_worst_of_many(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    r = rng.integers(0, 40, 70000).astype(np.float32)
    t = r + rng.integers(0, 30, r.size)
    expected = np.lexsort((np.arange(r.size), -np.abs(t - r)))[:n].tolist()
    assert expected == [e.index for e in worst(ArrayBlocks(DTYPES["float32"], r), ArrayBlocks(DTYPES["float32"], t.astype(np.float32)), n)]
