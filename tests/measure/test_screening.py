"""Screening against numbers worked out by hand, and against a plain float64 computation."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from layerdiff.judge.tables import PAIRS
from layerdiff.measure.screening import Screening, screen
from layerdiff.trace.dtypes import DTYPES
from tests.measure.arrays import ArrayBlocks, raw, value

INF, NAN = math.inf, math.nan
FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind == "float"]
SIGNED_FLOATS = [name for name in FLOATS if name != "float8_e8m0fnu"]
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind == "integer"]


def test_its_fields_are_columns_of_pairs() -> None:
    columns = [name for name in PAIRS if name in {field.name for field in fields(Screening)}]
    assert columns == [field.name for field in fields(Screening)]


def test_numbers_by_hand() -> None:
    found = screen(value("float32", [3.0, 0.0, -4.0, 0.0]), value("float32", [3.0, 2.0, -4.0, -1.0]))
    assert (0, 4, -1) == (found.equal, found.count, found.mismatched)
    assert math.sqrt(5 / 25) == pytest.approx(found.rel_l2, rel=1e-7)
    assert (2.0, 4.0, 1) == (found.max_abs, found.max_reference, found.worst)
    assert (2.5, math.sqrt(5 / 4)) == pytest.approx((found.rms_reference, found.rms_difference), rel=1e-7)
    assert (0, 0, 0) == (found.nonfinite_reference, found.nonfinite_target, found.nonfinite_differ)


@pytest.mark.parametrize("name", list(DTYPES))
def test_the_same_bits_are_equal_whatever_they_are(name: str) -> None:
    size = DTYPES[name].itemsize * 70001
    bits = np.random.default_rng(0).integers(0, 256, size, np.uint8).view(DTYPES[name].raw)
    found = screen(ArrayBlocks(DTYPES[name], bits), ArrayBlocks(DTYPES[name], bits.copy()))
    assert (1, 70001, 0.0, 0.0, -1) == (found.equal, found.count, found.rel_l2, found.max_abs, found.worst)


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("place", [0, 65535, 70000])
def test_one_flipped_bit_anywhere_is_not_equal(name: str, place: int) -> None:
    bits = np.zeros(70001, DTYPES[name].raw)
    other = bits.copy()
    other.view(np.uint8)[place * DTYPES[name].itemsize] ^= 1
    found = screen(ArrayBlocks(DTYPES[name], bits), ArrayBlocks(DTYPES[name], other))
    assert 0 == found.equal
    assert place == found.worst
    if DTYPES[name].kind != "float":
        assert (-1 if DTYPES[name].kind == "complex" else 1) == found.mismatched


@pytest.mark.parametrize("names", [("float32", "float32"), ("float32", "bfloat16"), ("int8", "int8"), ("bool", "float16")])
def test_empty_tensors_are_equal(names: tuple[str, str]) -> None:
    found = screen(value(names[0], []), value(names[1], []))
    assert (1, 0, 0.0, 0.0, 0.0, -1) == (found.equal, found.count, found.rel_l2, found.max_abs, found.rms_difference, found.worst)


def test_a_zero_reference() -> None:
    assert INF == screen(value("float32", [0.0, 0.0]), value("float32", [0.0, 1e-30])).rel_l2
    assert 0.0 == screen(value("float32", [0.0, 0.0]), value("float64", [0.0, 0.0])).rel_l2


def test_the_sign_of_zero_is_a_bit_and_no_difference() -> None:
    found = screen(value("float32", [0.0, 1.0]), value("float32", [-0.0, 1.0]))
    assert (0, 0.0, 0.0, -1) == (found.equal, found.rel_l2, found.max_abs, found.worst)


def test_non_finite_elements_compare_by_class_and_position() -> None:
    reference = value("float32", [1.0, NAN, INF, -INF, NAN, INF, 2.0, INF])
    target = value("float32", [1.5, NAN, INF, -INF, INF, -INF, NAN, 7.0])
    found = screen(reference, target)
    assert (6, 6, 4) == (found.nonfinite_reference, found.nonfinite_target, found.nonfinite_differ)
    assert (0.5, 0, 0.5) == (found.max_abs, found.worst, found.rel_l2)
    assert (1.0, 1.0) == (found.rms_reference, found.max_reference)


def test_where_only_classes_differ_worst_is_the_first_of_them() -> None:
    found = screen(value("float16", [1.0, INF, INF, NAN]), value("float16", [1.0, INF, NAN, NAN]))
    assert (1, 2, 0.0) == (found.nonfinite_differ, found.worst, found.rel_l2)


def test_nothing_finite_in_common() -> None:
    found = screen(value("bfloat16", [NAN, INF]), value("float32", [1.0, 2.0]))
    assert (2, 2, 0, 0.0, 0.0, 0.0) == (
        found.nonfinite_differ,
        found.nonfinite_reference,
        found.nonfinite_target,
        found.rel_l2,
        found.rms_reference,
        found.max_abs,
    )


@pytest.mark.parametrize("size", [2.0**k for k in (-138, -126, -100, -80, -30, 30, 62, 100, 124)])
def test_float32_sums_neither_overflow_nor_underflow(size: float) -> None:
    x = np.array([1.0, -0.5, 0.25, 2.0] * 10000, np.float32) * np.float32(size)
    found = screen(ArrayBlocks(DTYPES["float32"], x), ArrayBlocks(DTYPES["float32"], x * np.float32(1.0078125)))
    assert 0.0078125 == pytest.approx(found.rel_l2, rel=1e-6)
    assert math.sqrt(5.3125 / 4) * size == pytest.approx(found.rms_reference, rel=1e-6)


@pytest.mark.parametrize("size", [1e-307, 1e-200, 1e-150, 1.0, 1e150, 1e200, 1e307])
def test_float64_sums_neither_overflow_nor_underflow(size: float) -> None:
    x = np.array([1.0, -0.5, 0.25, 2.0] * 10000) * size
    found = screen(ArrayBlocks(DTYPES["float64"], x), ArrayBlocks(DTYPES["float64"], x * 1.0078125))
    assert 0.0078125 == pytest.approx(found.rel_l2, rel=1e-12)
    assert math.sqrt(5.3125 / 4) * size == pytest.approx(found.rms_reference, rel=1e-12)


def test_blocks_of_very_different_size_add_up() -> None:
    x = np.concatenate([np.full(40000, 1e-200), np.full(40000, 1e200), np.full(40000, 1.0)])
    found = screen(ArrayBlocks(DTYPES["float64"], x), ArrayBlocks(DTYPES["float64"], np.where(x == 1e200, 1.5e200, x)))
    assert 0.5 == pytest.approx(found.rel_l2, rel=1e-12)
    assert 1e200 / math.sqrt(3) == pytest.approx(found.rms_reference, rel=1e-12)


def test_a_difference_beyond_float32_is_still_a_number() -> None:
    found = screen(value("float32", [3e38, 1.0]), value("float32", [1.0, 3e38]))
    assert float(np.float32(3e38)) == pytest.approx(found.max_abs, rel=1e-7)
    found = screen(value("float32", [1.0, 3e38]), value("float32", [1.0, -3e38]))
    assert (2.0, 6e38) == pytest.approx((found.rel_l2, found.max_abs), rel=1e-6)


def test_small_differences_of_large_numbers_are_not_lost_in_norms() -> None:
    x = np.full(100000, 1.0, np.float32)
    y = x.copy()
    y[::1000] += np.float32(2.0**-23)
    assert math.sqrt(1e-3) * 2.0**-23 == pytest.approx(
        screen(ArrayBlocks(DTYPES["float32"], x), ArrayBlocks(DTYPES["float32"], y)).rel_l2, rel=1e-6
    )


def test_float64_against_float32_is_measured_in_float64() -> None:
    found = screen(value("float64", [1.0 + 2.0**-40]), value("float32", [1.0]))
    assert 2.0**-40 == found.max_abs


def test_huge_integers_do_not_wrap() -> None:
    low, high = -(2**63), 2**63 - 1
    found = screen(raw("int64", [low, 5, high]), raw("int64", [high, 5, high - 1]))
    assert (2, float(2**64 - 1), 0) == (found.mismatched, found.max_abs, found.worst)
    found = screen(raw("int64", [-1, 3]), raw("uint64", [2**64 - 1, 3]))
    assert (1, float(2**64), 0) == (found.mismatched, found.max_abs, found.worst)
    found = screen(raw("int64", [2**62]), raw("uint64", [2**62]))
    assert (0, 0.0) == (found.mismatched, found.max_abs)


def test_neighbouring_integers_that_no_float64_tells_apart() -> None:
    found = screen(raw("int64", [2**62, 1]), raw("int64", [2**62 + 1, 1]))
    assert (1, 1.0, 2.0**-62) == (found.mismatched, found.max_abs, found.rel_l2)


def test_any_true_is_true() -> None:
    found = screen(raw("bool", [2, 0, 1]), raw("bool", [1, 0, 1]))
    assert (0, 0, 0.0) == (found.equal, found.mismatched, found.max_abs)


def test_an_integer_against_a_float() -> None:
    found = screen(value("int64", [3, 4]), value("float32", [3.0, 4.5]))
    assert (0.5, 0.1, -1, 1) == pytest.approx((found.max_abs, found.rel_l2, found.mismatched, found.worst))


def test_complex_numbers_are_pairs_of_reals() -> None:
    found = screen(value("complex64", [3 + 4j, 0j]), value("complex64", [3 + 4j, 3j]))
    assert (2, 3.0, 0.6, 1, 4.0) == pytest.approx((found.count, found.max_abs, found.rel_l2, found.worst, found.max_reference))
    found = screen(value("complex128", [1 + 0j, 2 + 1j]), value("float32", [1.0, 2.0]))
    assert (1.0, 1) == (found.max_abs, found.worst)


def test_types_without_numbers_are_equal_or_not() -> None:
    found = screen(raw("float4_e2m1fn_x2", [1, 2, 3]), raw("float4_e2m1fn_x2", [1, 9, 9]))
    assert (0, 2, 1) == (found.equal, found.mismatched, found.worst)
    assert math.isnan(found.rel_l2) and math.isnan(found.max_abs)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_a_boolean_mask_means_an_additive_one(name: str) -> None:
    lowest = {"float64": -1.7976931348623157e308, "float32": -3.4028234e38, "bfloat16": -3.3895314e38, "float16": -65504.0}[name]
    boolean = raw("bool", [1, 0, 1, 0])
    for additive in (value(name, [0.0, -INF, 0.0, lowest]), value(name, [0.0, lowest, -0.0, lowest])):
        for found in (screen(boolean, additive), screen(additive, boolean)):
            assert (0, 0, 0.0, 0.0, -1) == (found.equal, found.mismatched, found.max_abs, found.rel_l2, found.worst)
    found = screen(boolean, value(name, [0.0, 0.0, 0.0, -INF]))
    assert (1, 1.0, math.sqrt(1 / 2), 1) == (found.mismatched, found.max_abs, found.rel_l2, found.worst)


def test_booleans_against_ordinary_numbers_are_numbers() -> None:
    found = screen(raw("bool", [1, 0, 1]), value("float32", [1.0, 0.0, 0.5]))
    assert (-1, 0.5, 2) == (found.mismatched, found.max_abs, found.worst)
    assert 0.0 == screen(raw("bool", [0, 0]), value("float32", [0.0, 0.0])).max_abs
    assert 0.0 == screen(raw("bool", [1, 1]), value("float32", [0.0, 0.0])).max_abs


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        (("float32", -INF), ("float32", -3.4028234e38)),
        (("float32", -3.4028234e38), ("bfloat16", -3.3895314e38)),
        (("float32", -3.3895314e38), ("float32", -INF)),
        (("float16", -65504.0), ("bfloat16", -3.3895314e38)),
        (("float16", -65504.0), ("float16", -INF)),
        (("float64", -3.4028234663852886e38), ("float64", -INF)),
        (("float64", -1.7976931348623157e308), ("float32", -3.4028234e38)),
    ],
)
def test_forbidden_is_one_meaning_and_no_part_of_a_norm(reference: tuple[str, float], target: tuple[str, float]) -> None:
    found = screen(value(reference[0], [0.5, reference[1], 2.0]), value(target[0], [0.5, target[1], 2.5]))
    assert (0, 0.5, 2, 2.0) == (found.nonfinite_differ, found.max_abs, found.worst, found.max_reference)
    assert math.sqrt(4.25 / 2) == pytest.approx(found.rms_reference, rel=1e-7)


def test_a_large_float16_is_a_number_against_another() -> None:
    found = screen(value("float16", [-40000.0, 1.0]), value("float16", [-50016.0, 1.0]))
    assert (10016.0, 0) == (found.max_abs, found.worst)


def test_forbidden_against_open_is_a_difference() -> None:
    assert 1 == screen(value("float32", [0.0, -INF]), value("float32", [0.0, 0.0])).nonfinite_differ
    assert 3e38 < screen(value("float32", [0.0, -3.4e38]), value("float32", [0.0, 0.0])).max_abs


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="2 elements and the target 3"):
        screen(value("float32", [1.0, 2.0]), value("float32", [1.0, 2.0, 3.0]))


elements = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-20, 1e20, 3e38, NAN, INF, -INF]),
    st.floats(-8, 8, width=32),
)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(SIGNED_FLOATS), st.sampled_from(SIGNED_FLOATS), st.integers(1, 40))
def test_floats_against_plain_float64(data: st.DataObject, first: str, second: str, count: int) -> None:
    reference = value(first, data.draw(hnp.arrays(np.float32, count, elements=elements)))
    target = value(second, data.draw(hnp.arrays(np.float32, count, elements=elements)))
    found = screen(reference, target)
    r, t = (side.dtype.decode(side.bits).astype(np.float64) for side in (reference, target))
    masked = (r < -32000) & (t < -32000)  # what forbids has tests of its own
    if masked.any():
        return
    if found.equal:
        assert first == second and reference.bits.tobytes() == target.bits.tobytes()
        return
    both = np.isfinite(r) & np.isfinite(t)
    d = t[both] - r[both]
    assert float(np.abs(d).max(initial=0.0)) == pytest.approx(found.max_abs, rel=3e-7)
    assert float(np.abs(r[both]).max(initial=0.0)) == found.max_reference
    if d.any() and r[both].any():
        assert math.sqrt(float((d**2).sum()) / float((r[both] ** 2).sum())) == pytest.approx(found.rel_l2, rel=1e-6)
    else:
        assert (INF if d.any() else 0.0) == found.rel_l2
    agree = both | (np.isnan(r) & np.isnan(t)) | ((r == t) & ~both)
    masks = ((r == -INF) & (t < -32000)) | ((t == -INF) & (r < -32000))
    if not masks.any():
        assert int((~agree).sum()) == found.nonfinite_differ
    assert int((~np.isfinite(r)).sum()) == found.nonfinite_reference
    assert int((~np.isfinite(t)).sum()) == found.nonfinite_target
    if found.max_abs > 0:
        assert found.max_abs == pytest.approx(abs(t[found.worst] - r[found.worst]), rel=3e-7)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.integers(1, 20))
def test_integers_against_python(data: st.DataObject, first: str, second: str, count: int) -> None:
    def draw(name: str) -> list[int]:
        limits = np.iinfo(DTYPES[name].raw)
        edges = st.sampled_from([int(limits.min), int(limits.max), 0, 1])
        return data.draw(st.lists(st.one_of(edges, st.integers(int(limits.min), int(limits.max))), min_size=count, max_size=count))

    r, t = draw(first), draw(second)
    found = screen(raw(first, r), raw(second, t))
    assert (first == second and r == t) == bool(found.equal)
    assert sum(x != y for x, y in zip(r, t, strict=True)) == found.mismatched
    assert float(max(abs(x - y) for x, y in zip(r, t, strict=True))) == found.max_abs


@pytest.mark.parametrize(
    "names", [("float32", "float32"), ("float64", "float32"), ("bfloat16", "float32"), ("complex64", "complex64"), ("int64", "uint64")]
)
def test_memory_stays_below_eight_megabytes(names: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1 << 20) * 100
    x[::1000] = -3e38 if "float" in names[0] else 0
    reference, target = value(names[0], x), value(names[1], x + 1)
    tracemalloc.start()
    try:
        screen(reference, target)
        extra = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert extra < 8 << 20
