"""Numbers as text."""

from __future__ import annotations

import math

import pytest

from layerdiff.rows.figures import FIGURE_CELLS, RATIO_CELLS, against, amount, count, exact, figure, label, ratio, size, span, times


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"), (0.0, "0"), (0.0241, "2.41e-2"), (3.1e-7, "3.10e-7"), (1.0, "1.00e0"), (9.999e9, "1.00e10"),
        (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (4.9e-324, "4.94e-324"),
    ],
)  # fmt: skip
def test_figure(value: float | None, expected: str) -> None:
    assert figure(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"), (0.0, "0×"), (0.566, "0.566×"), (0.9999, "1.000×"), (1.0, "1.00×"), (4.1, "4.10×"), (41.27, "41.3×"), (412.7, "413×"),
        (999.4, "999×"), (999.6, "1.0e3×"), (4127.0, "4.1e3×"), (1.2e-5, "1.2e-5×"), (math.inf, "inf×"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_ratio(value: float | None, expected: str) -> None:
    assert ratio(value) == expected


@pytest.mark.parametrize("exponent", range(-99, 100))
def test_every_figure_fits_its_column(exponent: int) -> None:
    assert len(figure(9.87654 * 10.0**exponent)) <= FIGURE_CELLS
    assert len(ratio(9.87654 * 10.0**exponent)) <= RATIO_CELLS


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0.0, "0"), (0.012, "0.012"), (0.03089023456, "0.03089023"), (1e-5, "1e-5"), (1.2345678e10, "1.234568e10")],
)
def test_exact(value: float | None, expected: str) -> None:
    assert exact(value) == expected


def test_whole_numbers_sizes_and_spans() -> None:
    assert [count(9999), count(10_000), count(1_234_567)] == ["9999", "10,000", "1,234,567"]
    assert [amount(1, "origin"), amount(0, "origin"), amount(2, "is", "are")] == ["1 origin", "0 origins", "2 are"]
    assert [size(999), size(1000), size(2.1e9), size(412e6)] == ["999 B", "1 kB", "2.1 GB", "412 MB"]
    assert [span(8.4), span(200), span(7800)] == ["8 s", "3 min 20 s", "2 h 10 min"]


FIT = "ranks: residual of an equality between what they recorded"


@pytest.mark.parametrize(
    ("measured", "allowed", "rule", "expected"),
    [
        (0.0492, 0.012, "output rel L2", "0.0492 of 0.012 allowed"),
        (0.002224396, 1.072884e-6, "output rel L2", "2.224396e-3 of 1.072884e-6 allowed"),
        (8.8e-6, 4e-6, "", "8.8e-6 of 4e-6 allowed"),
        (0.0, 1e-6, "", "0 of 1e-6 allowed"),
        (192.0, 0.0, "threshold: non-finite", "192 elements, none allowed"),
        (1.0, 0.0, "threshold: discrete values", "1 element, none allowed"),
        (None, 1e-6, "", "- of 1e-6 allowed"),
        (3.6e-7, 0.02, FIT, "the explanation is 3.6e-7 off what was recorded, at most 2e-2 may be"),
        (1.43, 0.02, FIT, "1.43 of 0.02 allowed"),
        (0.0, 1e-4, "own replay, 6: orders", "the explanation is 0 off what was recorded, at most 0.0001 may be"),
    ],
)
def test_measured_against_allowed_in_one_notation(measured: float | None, allowed: float | None, rule: str, expected: str) -> None:
    assert against(measured, allowed, rule) == expected


def test_an_explanation_that_fits_is_no_share_of_what_is_allowed() -> None:
    assert ("fit", "") == (label(3.6e-7, 0.02, FIT), times(3.6e-7, 0.02, FIT))
    assert ("measured", "71.5×") == (label(1.43, 0.02, FIT), times(1.43, 0.02, FIT))  # how far a part is off, and no explanation
    assert ("measured", "4.10×") == (label(0.0492, 0.012, "output rel L2"), times(0.0492, 0.012, "output rel L2"))
    assert "" == times(0.0492, 0.0, "")
