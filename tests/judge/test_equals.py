"""Which values are the same: by norm, projections and columns."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.judge.meaning.equals import Equals
from layerdiff.judge.meaning.signatures import Signatures
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("rows", [64, 2048])
@pytest.mark.parametrize("limit", [NOTHING, BELOW_ROUNDING])
def test_a_value_of_one_column_is_no_column_of_thousands_by_chance(rows: int, limit: float) -> None:
    wide = numbers(rows, 8192)
    known = Equals([wide], limit)
    assert not any(known.has(numbers(rows, 1, seed=seed) ** 2 + 1) for seed in range(1, 40))
    for column in (0, 4000, 8191):
        off = 1 + limit / 4 * numbers(rows, 1, seed=column)
        assert known.has(wide[:, column : column + 1] * off)


def test_what_has_no_elements_has_no_columns() -> None:
    assert not Equals([numbers(2, 3)]).has(np.zeros((2, 0)))


def test_many_dimensions_of_one_size_are_told_in_a_few_ways() -> None:
    value = numbers(*(2,) * 14)
    known = Equals([value], signatures=Signatures((2, 2)))
    assert known.has(value.reshape(4, -1))
    assert not known.has(value[::-1])


def test_complex_numbers_are_their_conjugates_in_no_part() -> None:
    value = numbers(3, 4, 5) + 1j * numbers(3, 4, 5, seed=1)
    known = Equals([value])
    assert known.has(value * (1 + 1e-14))
    assert known.has(value.transpose(0, 2, 1))
    assert not known.has(value.conj())
    assert not known.has(value.real + 0j)
