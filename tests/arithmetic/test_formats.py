from __future__ import annotations

import numpy as np
import pytest
import torch

from layerdiff.arithmetic.formats import FLOAT64, TF32, Format, excess, format_named, gap, round_to, rounding_of, truncate_to


def named(name: str) -> Format:
    found = format_named(name)
    assert found is not None
    return found


def test_unit_range_and_smallest_numbers_are_those_of_ieee() -> None:
    assert (2.0**-24, 2.0**-126, 2.0**-149) == (
        named("float32").unit,
        named("float32").smallest_normal,
        named("float32").smallest_subnormal,
    )
    assert (2.0**-8, 2.0**-126, 2.0**-133) == (
        named("bfloat16").unit,
        named("bfloat16").smallest_normal,
        named("bfloat16").smallest_subnormal,
    )
    assert (2.0**-11, 2.0**-14, 2.0**-24, 65504.0) == (
        named("float16").unit,
        named("float16").smallest_normal,
        named("float16").smallest_subnormal,
        named("float16").largest,
    )
    assert (448.0, 57344.0) == (named("float8_e4m3fn").largest, named("float8_e5m2").largest)
    assert 65520.0 == named("float16").overflow
    assert format_named("int64") is None
    assert format_named("float8_e8m0fnu") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn])
def test_rounding_is_torchs_also_among_subnormals_and_at_the_top(dtype: torch.dtype) -> None:
    format = named(str(dtype).removeprefix("torch."))
    random = np.random.default_rng(0)
    exponents = random.uniform(np.log2(format.smallest_subnormal) - 2, np.log2(format.largest), 4000)
    x = (np.exp2(exponents) * random.choice([-1.0, 1.0], 4000)).astype(np.float32)
    if dtype is torch.float32:
        x = x * 1.0000001
    expected = torch.from_numpy(x).to(dtype).double().numpy()
    np.testing.assert_array_equal(expected, round_to(x.astype(np.float64), format))


def test_ties_go_to_even_and_beyond_the_range_is_infinite() -> None:
    bfloat16 = named("bfloat16")
    ties = np.array([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, np.inf, -np.inf, 3.4e38, 0.0])
    np.testing.assert_array_equal([1.0, 1.0 + 2.0**-6, np.inf, -np.inf, np.inf, 0.0], round_to(ties, bfloat16))
    assert np.isnan(round_to(np.array([np.nan]), bfloat16))[0]
    assert np.isnan(round_to(np.array([500.0]), named("float8_e4m3fn")))[0]


def test_tf32_keeps_ten_bits_and_truncation_cuts_them() -> None:
    x = np.array([1.0 + 2.0**-10 + 2.0**-11 + 2.0**-12])
    assert 1.0 + 2.0**-9 == round_to(x, TF32)[0]
    assert 1.0 + 2.0**-10 == truncate_to(x, TF32)[0]


def test_the_gap_below_a_power_of_two_is_half_the_gap_above() -> None:
    bfloat16 = named("bfloat16")
    assert 2.0**-7 == gap(np.array([1.0]), bfloat16)[0]
    recorded = np.array([1.0, 1.0, 1.0, 1.0])
    exact = np.array([1.0 + 2.0**-8, 1.0 - 2.0**-9, 1.0 + 2.0**-8 + 1e-6, 1.0 - 2.0**-9 - 1e-6])
    np.testing.assert_allclose([0.0, 0.0, 1e-6, 1e-6], excess(recorded, exact, bfloat16), rtol=1e-6, atol=0)
    np.testing.assert_allclose([0.0, 0.0, 1e-6, 1e-6], excess(-recorded, -exact, bfloat16), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_correct_rounding_has_no_excess_and_its_neighbour_has(name: str) -> None:
    format = named(name)
    random = np.random.default_rng(1)
    x = random.standard_normal(5000) * np.exp2(random.integers(-12, 12, 5000))
    right = round_to(x, format)
    assert not np.any(excess(right, x, format))
    beside = right + np.copysign(gap(right, format), right)
    assert np.all(excess(beside, x, format) >= 0)
    assert np.mean(excess(beside, x, format) > 0) > 0.99


def test_infinity_is_the_rounding_of_all_that_lies_beyond() -> None:
    half = named("float16")
    inf = np.array([np.inf, np.inf, np.inf, 65504.0])
    np.testing.assert_array_equal([0.0, 20.0, 0.0, 1000.0 - 16.0], excess(inf, np.array([65520.0, 65500.0, np.inf, 66504.0]), half))
    assert np.isinf(excess(np.array([1.0]), np.array([np.inf]), half))[0]
    assert np.isnan(excess(np.array([np.nan]), np.array([1.0]), half))[0]


def test_float64_has_the_plain_distance_beyond_half_a_gap() -> None:
    assert 0.0 == excess(np.array([1.0]), np.array([1.0]), FLOAT64)[0]
    assert 2.0**-40 - 2.0**-53 == excess(np.array([1.0]), np.array([1.0 + 2.0**-40]), FLOAT64)[0]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_rounding_moves_a_number_by_no_more_than_is_said(name: str) -> None:
    format, random = named(name), np.random.default_rng(0)
    for size in (1.0, format.smallest_normal, 10 * format.smallest_subnormal):
        x = random.standard_normal(1000) * size
        x = x[np.abs(x) > format.smallest_subnormal]
        off, most = np.abs(round_to(x, format) - x), rounding_of(name, x)
        assert np.all(off <= most)
        assert off.max() > 0.4 * most.min()
    assert np.array_equal([0.0, 0.0], rounding_of(name, np.array([0.0, -0.0])))
    assert np.array_equal([0.0], rounding_of("int8", np.array([3.0])))
    assert np.array_equal([0.0], rounding_of(None, np.array([3.0])))
