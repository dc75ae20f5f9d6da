"""The display set against hand-derived numbers and a plain float64 computation; ULP distances against Python's own."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from layerdiff.measure.full import full
from layerdiff.measure.ulps import distances, histogram, places
from layerdiff.trace.dtypes import DTYPES
from tests.measure.arrays import ArrayBlocks, raw, value

INF, NAN = math.inf, math.nan


def test_numbers_by_hand() -> None:
    found = full(value("float64", [3.0, 4.0, 0.0, 0.0]), value("float64", [3.0, 0.0, 4.0, 0.0]))
    assert (4, 0, 4.0, 2.0, 1) == (found.count, found.left_out, found.max_abs, found.mean_abs, found.worst)
    assert (math.sqrt(8), math.sqrt(32) / 5, 1 - 9 / 25) == pytest.approx((found.rms, found.rel_l2, found.cosine_distance))
    assert (2, INF) == (found.mismatched, found.max_rel)


def test_a_cosine_distance_that_dot_products_lose() -> None:
    x = np.ones(100000, np.float32)
    y = x.copy()
    y[::2] += np.float32(2.0**-20)
    y[1::2] -= np.float32(2.0**-20)
    assert 2.0**-41 == pytest.approx(full(ArrayBlocks(DTYPES["float32"], x), ArrayBlocks(DTYPES["float32"], y)).cosine_distance, rel=1e-5)
    assert pytest.approx(0.0, abs=1e-15) == full(value("float32", [1.0, 2.0]), value("float32", [2.0, 4.0])).cosine_distance
    assert 2.0 == pytest.approx(full(value("float32", [1.0, 2.0]), value("float32", [-1.0, -2.0])).cosine_distance)


def test_elements_left_out() -> None:
    found = full(value("float32", [1.0, NAN, INF, -INF, 2.0]), value("float32", [1.0, 1.0, INF, -3.4e38, 3.0]))
    assert (2, 3, 1.0, 4, 0.5) == (found.count, found.left_out, found.max_abs, found.worst, found.max_rel)
    assert 2 == sum(found.ulp_histogram)


def test_nothing_to_compare() -> None:
    found = full(value("float32", [NAN]), value("float32", [1.0]))
    assert (0, 1, -1, 0) == (found.count, found.left_out, found.worst, found.mismatched)
    assert all(math.isnan(x) for x in (found.max_abs, found.mean_abs, found.rms, found.rel_l2, found.cosine_distance, found.max_rel))
    assert 0 == full(value("float32", []), value("float32", [])).count


def test_integers() -> None:
    found = full(raw("int64", [-(2**63), 7]), raw("int64", [2**63 - 1, 7]))
    assert (float(2**64 - 1), 0, 1, None, -1, ()) == (
        found.max_abs,
        found.worst,
        found.mismatched,
        found.ulp_dtype,
        found.max_ulps,
        found.ulp_histogram,
    )


def test_a_type_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float4_e2m1fn_x2 .* only equality"):
        full(raw("float4_e2m1fn_x2", [1]), raw("float4_e2m1fn_x2", [2]))


@pytest.mark.parametrize(
    ("name", "reference", "target", "ulps"),
    [
        ("float32", 0x3F800000, 0x3F800003, 3),
        ("float32", 0x80000001, 0x00000001, 2),
        ("float32", 0x80000000, 0x00000000, 0),
        ("float32", 0xFF7FFFFF, 0x7F7FFFFF, 2 * 0x7F7FFFFF),  # more than int32 holds
        ("float64", 0xFFEFFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 2 * 0x7FEFFFFFFFFFFFFF),  # more than int64 holds
        ("float16", 0x8001, 0x0002, 3),
        ("bfloat16", 0x3F80, 0x3F81, 1),
        ("bfloat16", 0xFF7F, 0x7F7F, 2 * 0x7F7F),
        ("float8_e4m3fn", 0x38, 0x3A, 2),
        ("float8_e5m2", 0x81, 0x01, 2),
    ],
)
def test_ulps_by_bits(name: str, reference: int, target: int, ulps: int) -> None:
    found = full(raw(name, [reference]), raw(name, [target]))
    assert (name, ulps) == (found.ulp_dtype, found.max_ulps)
    assert ulps.bit_length() + 1 == len(found.ulp_histogram)
    assert 1 == found.ulp_histogram[-1]


def test_ulps_are_those_of_the_coarser_side() -> None:
    found = full(value("float32", [1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8]), value("bfloat16", [1.0, 1.0, 1.0, 1.0]))
    assert ("bfloat16", 2) == (found.ulp_dtype, found.max_ulps)
    assert (2, 1, 1) == found.ulp_histogram  # the third is a tie and goes to the even 1.0; the fourth to 1 + 2 units


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), min_size=1, max_size=20))
def test_histogram_of_64_bits(numbers: list[int]) -> None:
    counts = [sum(n.bit_length() == k for n in numbers) for k in range(65)]
    assert counts == histogram(np.array(numbers, np.uint64), max(numbers)).tolist()


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 40), min_size=1, max_size=20))
def test_histogram_of_32_bits(numbers: list[int]) -> None:
    counts = [sum(n.bit_length() == k for n in numbers) for k in range(65)]
    assert counts == histogram(np.array(numbers, np.uint32), max(numbers)).tolist()


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.kind == "float" and dtype.itemsize == 1])
def test_keys_of_fp8_round_to_nearest_even(name: str) -> None:
    dtype = DTYPES[name]
    codes = np.arange(256, dtype=np.uint8)
    decoded = dtype.decode(codes).astype(np.float64)
    finite = sorted({(float(x), int(c) & 1) for c, x in zip(codes, decoded, strict=True) if math.isfinite(x) and (x != 0 or c == 0)})
    rng = np.random.default_rng(0)
    probes = np.concatenate([rng.normal(0, 3, 200), [(a[0] + b[0]) / 2 for a, b in pairwise(finite)], [a for a, _ in finite]])

    def nearest(x: float) -> int:
        order = sorted(range(len(finite)), key=lambda i: (abs(Fraction(finite[i][0]) - Fraction(x)), finite[i][1]))
        return order[0]

    zero = next((i for i, (x, _) in enumerate(finite) if x == 0), 0)
    found = [-(p & 0x7FFFFFFF) if p >> 31 else p for p in places(probes, dtype).tolist()]
    assert [nearest(float(x)) - zero for x in probes] == found


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.uint32, st.integers(1, 30)), st.data())
def test_float32_distances_against_whole_numbers(bits: np.ndarray, data: st.DataObject) -> None:
    other = data.draw(hnp.arrays(np.uint32, bits.size))
    ok = np.isfinite(bits.view(np.float32)) & np.isfinite(other.view(np.float32))
    x, y = bits[ok], other[ok]

    def place(b: int) -> int:
        return -(b & 0x7FFFFFFF) if b >> 31 else b

    expected = [abs(place(int(a)) - place(int(b))) for a, b in zip(x, y, strict=True)]
    assert expected == distances(places(x.view(np.float32), DTYPES["float32"]), places(y.view(np.float32), DTYPES["float32"])).tolist()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 50))
def test_against_plain_float64(data: st.DataObject, count: int) -> None:
    numbers = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-10)
    r, t = (data.draw(hnp.arrays(np.float32, count, elements=numbers)) for _ in range(2))
    found = full(ArrayBlocks(DTYPES["float32"], r), ArrayBlocks(DTYPES["float32"], t))
    a, b = r.astype(np.float64), t.astype(np.float64)
    d = np.abs(b - a)
    assert (float(d.max()), float(d.mean()), math.sqrt(float((d**2).mean()))) == pytest.approx(
        (found.max_abs, found.mean_abs, found.rms), rel=1e-6
    )
    norms = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
    if norms:
        assert 1 - float((a * b).sum()) / norms == pytest.approx(found.cosine_distance, abs=1e-6)
    assert np.count_nonzero(r != t) == found.mismatched
    if (a != 0).all():
        assert float((d / np.abs(a)).max()) == pytest.approx(found.max_rel, rel=1e-6)
    assert count == sum(found.ulp_histogram)


@pytest.mark.parametrize("names", [("float32", "float32"), ("float64", "bfloat16")])
def test_memory_stays_below_eight_megabytes(names: tuple[str, str]) -> None:
    x = np.random.default_rng(0).standard_normal(1 << 20)
    x[::1000] = NAN
    reference, target = value(names[0], x), value(names[1], x + 1)
    tracemalloc.start()
    try:
        full(reference, target)
        extra = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert extra < 8 << 20
