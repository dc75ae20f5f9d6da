"""One pair of values: its layout, its sample, any element, and what is measured of it. Values are held in memory or in a trace."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerdiff.compare import compare_traces
from layerdiff.errors import TraceError
from layerdiff.rows.tensor.axes import bars_of, spread
from layerdiff.rows.tensor.elements import decimal, element_lines, fields, hexadecimal, ulps
from layerdiff.rows.tensor.examined import Examined, examine
from layerdiff.rows.tensor.grid import Grid, Shown, flat_of, no_element
from layerdiff.rows.tensor.measures import histogram_lines, number_lines
from layerdiff.rows.tensor.pair import Held, OneSide, Tensor, layout, open_tensor
from layerdiff.rows.tensor.picture import ODD, UNKNOWN_LEVEL, picture_of
from layerdiff.rows.traces import Traces
from layerdiff.rows.values import index_text, pairs_of, position
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both
from layerdiff.trace.dtypes import DTYPES
from tests.measure.arrays import value

CAPTURES = Path(__file__).parents[2] / "captures"


def held(reference: NDArray[np.float32], target: NDArray[np.float32], *, name: str = "float32", whole: int = 1 << 24) -> Tensor:
    def side(x: NDArray[np.float32], dtype: str) -> OneSide:
        made = value(dtype, x)
        return OneSide(made.dtype, made.count, Held(made.dtype, made.bits.reshape(-1)))

    columns, wrapped = layout(reference.shape, reference.size)
    every = max(1, -(-reference.size // whole))
    return Tensor(reference.shape, Both(side(reference, "float32"), side(target, name)), columns, wrapped, every)


def last(tensor: Tensor) -> Examined:
    *_, found = examine(tensor)
    return found


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3, 64), (64, False)),
        ((64,), (64, True)),
        ((4096,), (64, True)),
        ((1, 4096), (64, True)),
        ((4096, 1), (64, True)),
        ((), (1, True)),
        ((3, 1 << 21), (4096, True)),
    ],
)
def test_layout(shape: tuple[int, ...], expected: tuple[int, bool]) -> None:
    assert expected == layout(shape, math.prod(shape))


def test_an_element_with_its_bits() -> None:
    x = np.array([[1.0, 2.0], [3.0, -0.5]], np.float32)
    tensor = held(x, x + np.float32(2.0**-7), name="bfloat16")
    element = tensor.element(0)
    assert (1.0, 1.0078125, 0x3F800000, 0x3F81) == (element.reference, element.target, element.reference_bits, element.target_bits)
    assert 1 == ulps(element, tensor.sides.map(lambda side: side.dtype))
    lines = [line.plain for line in element_lines(tensor, element, 100)]
    assert "[0, 0]  reference 1  target 1.0078125  |Δ| 7.81e-3  1 ulp of bfloat16" == lines[0]
    assert "reference 3f800000 0 01111111 00000000000000000000000  target 3f81 0 01111111 0000001  " == lines[1]
    assert "r 3f800000  t 3f81  " == element_lines(tensor, element, 30)[1].plain


def test_decimals_and_bits_of_every_kind() -> None:
    f32, f64 = DTYPES["float32"], DTYPES["float64"]
    assert ["0.1", "1e-7", "1.5e38", "nan", "-inf", "16777216"][:5] == [decimal(x, f32) for x in (0.1, 1e-7, 1.5e38, math.nan, -math.inf)]
    assert "0.30000000000000004" == decimal(0.1 + 0.2, f64)
    assert ["True", "-7", "1-2i"] == [
        decimal(x, d) for x, d in ((True, DTYPES["bool"]), (-7, DTYPES["int8"]), (1 - 2j, DTYPES["complex64"]))
    ]
    assert "0080" == hexadecimal(0x80, DTYPES["bfloat16"])
    assert ["1", "0111", "001"] == fields(0b10111001, DTYPES["float8_e4m3fn"])
    assert ["01111111"] == fields(127, DTYPES["float8_e8m0fnu"])
    assert ["11111111"] == fields(255, DTYPES["int8"])


def test_no_ulps_where_there_are_none() -> None:
    x = np.ones((2, 2), np.float32)
    tensor = held(x, np.array([[np.nan, 1], [1, 1]], np.float32))
    assert ulps(tensor.element(0), tensor.sides.map(lambda side: side.dtype)) is None
    assert math.isinf(tensor.element(0).difference)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(2, 30), st.integers(1, 400), st.integers(1, 50))
def test_a_sample_is_every_kth_row(rows: int, columns: int, whole: int, block: int) -> None:
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    tensor = held(x, x, whole=whole)
    if tensor.every == 1:
        return
    assert -(-rows * columns // whole) == tensor.every
    kept = x.reshape(-1)[: rows * columns // tensor.columns * tensor.columns].reshape(-1, tensor.columns)[:: tensor.every].reshape(-1)
    sample = tensor.measured.reference
    assert kept.size == sample.count
    assert kept.tolist() == [float(v) for piece in sample.blocks(block) for v in piece]
    assert [int(v) for v in kept] == [tensor.flat(i) for i in range(kept.size)]


def test_a_sample_says_its_rule_and_keeps_its_indices() -> None:
    x = np.ones((100, 8), np.float32)
    y = x.copy()
    y[40, 3] = 5  # row 40 is one of every 4th
    y[41, 0] = 9  # row 41 is not
    found = last(held(x, y, whole=200))
    assert "every 4th row of 8, 200 of 800 elements" == found.tensor.sampling
    assert found.worst is not None and [(40 * 8 + 3, 4.0)] == [(element.index, element.difference) for element in found.worst]
    assert [("rows", 100, 4), ("axis 1", 8, 1)] == [(p.name, p.size, p.step) for p in found.profiles]
    assert "all of it at 40" == spread(found.profiles[0])
    assert "40" == bars_of(found.profiles[0], 200).indices(10)
    assert any("from a sample: every 4th row" in line.plain for line in number_lines(found, 80))


def test_everything_is_measured_a_pass_at_a_time() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, 16)).astype(np.float32)
    y = x.copy()
    y[:, 2, :] *= np.float32(1 + 2.0**-10)
    states = list(examine(held(x, y)))
    assert [0, 1, 2, 4, 5, 6, 7] == [state.done for state in states]
    assert {7} == {state.total for state in states}
    assert ["spread over all indices", "all of it at 2", "spread over all indices"] == [spread(p) for p in states[-1].profiles]
    assert all(state.numbers is None for state in states[:2]) and states[2].numbers is not None


def test_an_empty_value_and_a_single_element() -> None:
    empty = last(held(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)))
    assert ((), (), None) == (empty.worst, empty.profiles, empty.picture)
    one = last(held(np.float32(1).reshape(()), np.float32(2).reshape(())))
    assert one.worst is not None and [(0, 1.0)] == [(e.index, e.difference) for e in one.worst]
    assert () == one.profiles


def test_the_picture_pools_by_the_largest_and_finds_elements_again() -> None:
    x = np.zeros((8, 12), np.float32)
    y = x.copy()
    y[5, 7], y[0, 0] = 1.0, 1e-3
    found = last(held(x, y))
    assert found.picture is not None
    picture = picture_of(found.tensor, found.picture, 4, 4)
    assert (4, 4, 2, 3) == (*picture.largest.shape, picture.cell_rows, picture.cell_columns)
    assert 5 * 12 + 7 == picture.worst_element(2, 2)
    assert "[4..5, 6..8]" == picture.describe(2, 2)
    levels = picture.levels(5)
    assert (5, 1, 0) == (levels[2, 2], levels[0, 0], levels[1, 1])


def test_the_picture_marks_other_classes_and_what_is_not_there() -> None:
    x = np.zeros(100, np.float32)
    y = x.copy()
    y[0] = np.nan
    found = last(held(x, y))
    assert found.picture is not None
    levels = picture_of(found.tensor, found.picture, 100, 100).levels(5)
    assert (16, ODD, 0, UNKNOWN_LEVEL) == (levels.shape[1], levels[0, 0], levels[0, 1], levels[6, 15])


def test_equal_differences_are_of_one_tone() -> None:
    x = np.zeros((4, 4), np.float32)
    found = last(held(x, x + np.float32(0.5)))
    assert found.picture is not None
    picture = picture_of(found.tensor, found.picture, 9, 9)
    assert ({8}, 0.25, 0.5) == (set(picture.levels(8).reshape(-1).tolist()), picture.low, picture.high)


def test_grid_lines() -> None:
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    y = x.copy()
    y[1, 1] = 4.5
    grid = Grid(held(x, y))
    lines = [line.plain for line in grid.row_lines(1, 0, 60, 1)]
    assert [
        "  1 r            4         ›5          6",
        "    t            4       ›4.5          6",
        "    Δ            ·  ›-5.00e-1          ·",
    ] == lines
    grid.shown = Shown.TARGET
    assert ["  0 t            2          3"] == [line.plain for line in grid.row_lines(0, 1, 60, None)]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("1,2,3", 23), ("[0, 0, 1]", 1), ("-1,-1,-1", 23), ("23", 23), ("24", None), ("2,0,0", None), ("a", None), ("", None), ("0,0", None)],
)
def test_an_index_that_is_typed(typed: str, expected: int | None) -> None:
    x = np.zeros((2, 3, 4), np.float32)
    assert expected == flat_of(typed, held(x, x))


def test_an_index_that_is_not_there_says_what_one_is() -> None:
    for shape, said in [
        ((2, 3, 4), "no element 99,1: an index is 3 numbers up to 1, 2, 3, or one up to 23"),
        ((7,), "no element 99,1: an index is a number up to 6"),
        ((), "no element 99,1: this value is a single number"),
        ((0, 2), "this value has no elements"),
    ]:
        x = np.zeros(shape, np.float32)
        assert said == no_element("99,1", held(x, x))


def test_histogram_joins_buckets_and_loses_none() -> None:
    x = np.ones((64, 64), np.float32)
    y = (x + np.float32(2.0**-23) * np.arange(4096).reshape(64, 64)).astype(np.float32)
    numbers = last(held(x, y)).numbers
    assert numbers is not None
    for height in (4, 6, 20):
        lines = histogram_lines(numbers, 60, height)
        assert len(lines) <= height
        assert 4096 == sum(int(line.plain.split()[-2].replace(",", "")) for line in lines[1:])


def test_index_text() -> None:
    assert ["[0, 1, 2]", "-", "99", "5"] == [index_text(6, (2, 3, 4)), index_text(-1, (3,)), index_text(99, (3, 3)), index_text(5, ())]


# from a trace


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare_traces(CAPTURES / "clean_bf16" / "reference.h5", CAPTURES / "clean_bf16" / "target.h5")


def test_values_of_a_trace_are_what_the_reader_reads(compared: Comparison) -> None:
    traces = Traces()
    row = next(row for row in range(len(compared.sites["site"])) if compared.texts[int(compared.sites["site"][row])] == "layers.1.mlp")
    pairs = pairs_of(compared, row).tolist()
    assert ["out", "in[0]"] == [position(compared, pair) for pair in pairs]
    tensor = open_tensor(traces, compared, pairs[0])
    for name in ("reference", "target"):
        file, _ = traces.file(compared, name, row)
        read = file.read(int(compared.pairs[f"{name}_value"][pairs[0]])).reshape(-1)
        side = getattr(tensor.sides, name)
        assert read.tolist() == side.dtype.decode(side.read(0, side.count)).tolist()
        assert read[100:164].tolist() == side.dtype.decode(side.read(100, 64)).tolist()
    found = last(tensor)
    assert found.numbers is not None
    assert float(compared.pairs["rel_l2"][pairs[0]]) == pytest.approx(found.numbers.rel_l2, rel=1e-6)
    traces.close()


def test_a_value_without_bytes_says_what_to_do(compared: Comparison) -> None:
    traces = Traces()
    weight = next(int(pair) for pair in range(len(compared.pairs["site"])) if position(compared, pair) == "weight")
    with pytest.raises(TraceError, match=r"kept no bytes of this value .* --weights used"):
        open_tensor(traces, compared, weight)
    traces.close()
