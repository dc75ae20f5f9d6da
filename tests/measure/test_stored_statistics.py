"""Statistics instead of bytes: equal fingerprints, and lower bounds otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from layerdiff.judge.tables import PAIRS
from layerdiff.measure.screening import screen
from layerdiff.measure.stored_statistics import StatisticsNumbers, compare_statistics
from layerdiff.sides import Both
from layerdiff.trace.schema import Statistics
from tests.measure.arrays import value

ONE = Statistics(minimum=-2.0, maximum=4.0, mean=1.0, rms=2.0)


def compared(
    reference: Statistics, target: Statistics, dtypes: tuple[str, str] = ("float32", "float32"), known: bool = False
) -> StatisticsNumbers:
    marks = Both((1, 2), (1, 3)) if known else Both(None, None)
    return compare_statistics(reference, target, fingerprints=marks, dtypes=Both(*dtypes))


def test_its_fields_are_columns_of_pairs() -> None:
    assert set(StatisticsNumbers.__annotations__) <= set(PAIRS)


def test_equal_fingerprints_of_one_dtype_are_equal_bits() -> None:
    same = Both((1, 2), (1, 2))
    found = compare_statistics(ONE, ONE._replace(rms=3.0), fingerprints=same, dtypes=Both("float32", "float32"))
    assert (1, 0.0) == (found["equal"], found["statistic"])
    assert 0 == compare_statistics(ONE, ONE, fingerprints=same, dtypes=Both("int32", "float32"))["equal"]


def test_equal_statistics_prove_nothing() -> None:
    assert (0, 0.0) == (compared(ONE, ONE)["equal"], compared(ONE, ONE)["statistic"])
    assert 0 == compared(ONE, ONE, known=True)["equal"]


@pytest.mark.parametrize(
    ("changed", "statistic"),
    [({"rms": 2.5}, 0.25), ({"mean": 0.5}, 0.25), ({"minimum": -3.0}, 0.25), ({"maximum": 5.0}, 0.25), ({"maximum": 5.0, "rms": 3.0}, 0.5)],
)
def test_the_largest_relative_difference(changed: dict[str, float], statistic: float) -> None:
    assert statistic == compared(ONE, ONE._replace(**changed))["statistic"]


def test_a_zero_reference() -> None:
    zero = Statistics(0.0, 0.0, 0.0, 0.0)
    assert math.inf == compared(zero, ONE)["statistic"]
    assert 0.0 == compared(zero, zero)["statistic"]


@pytest.mark.parametrize(
    ("reference", "target", "differ"),
    [((0, 0, 0), (3, 0, 0), 3), ((2, 0, 0), (0, 2, 0), 2), ((1, 1, 1), (1, 1, 1), 0), ((3, 0, 0), (0, 1, 0), 3), ((0, 0, 5), (0, 0, 2), 3)],
)
def test_non_finite_counts(reference: tuple[int, int, int], target: tuple[int, int, int], differ: int) -> None:
    found = compared(Statistics(*ONE[:4], *reference), Statistics(*ONE[:4], *target))
    assert (sum(reference), sum(target), differ) == (found["nonfinite_reference"], found["nonfinite_target"], found["nonfinite_differ"])


def test_a_mask_written_in_two_ways() -> None:
    infinite = Statistics(0.0, 0.0, 0.0, 0.0, neginf=6)
    lowest = Statistics(-3.4028234e38, 0.0, -1e38, 2e38)
    for found in (
        compared(infinite, lowest),
        compared(lowest, infinite),
        compared(lowest, Statistics(-65504.0, 0.0, -3e4, 4e4), ("float32", "float16")),
    ):
        assert (0.0, 0) == (found["statistic"], found["nonfinite_differ"])
    assert 6 == compared(infinite, Statistics(0.0, 0.0, 0.0, 0.0))["nonfinite_differ"]


numbers = hnp.arrays(np.float64, st.integers(1, 30), elements=st.integers(-(10**6), 10**6).map(lambda n: n / 64))


@given(numbers, st.integers(0, 2**32 - 1))
def test_it_is_a_lower_bound_of_the_true_difference(r: np.ndarray, seed: int) -> None:
    t = r + np.random.default_rng(seed).normal(0, 1, r.shape)
    found = compared(*(Statistics(float(x.min()), float(x.max()), float(x.mean()), float(np.sqrt((x**2).mean()))) for x in (r, t)))
    true = screen(value("float64", r), value("float64", t))
    if true.max_reference > 0:
        assert found["statistic"] <= max(true.rel_l2, true.max_abs / true.max_reference) * (1 + 1e-9) + 1e-12
