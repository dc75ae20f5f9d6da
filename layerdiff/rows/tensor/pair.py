"""One pair of values, opened for a screen: any element at once, and all of it in blocks, or a sample of a large one.

A value is laid out in rows for picture and grid: the last axis is the columns, all axes before it together the
rows; a vector is wrapped. The sample of a large value is every k-th of these rows, from the first: whole rows, so that
what is shown of it is where it is, and chosen by size alone, so that it never depends on the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import NOTHING_FILLED, Fillings
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.packing import forms_of_steps
from layerdiff.measure.along_axis import Element
from layerdiff.measure.blocks import Blocks
from layerdiff.rows.figures import count
from layerdiff.rows.tensor.put_together import of_ranks, put_together
from layerdiff.rows.tensor.unreadable import why_unreadable
from layerdiff.rows.traces import Traces
from layerdiff.rows.values import Shape, index_of, index_text, value_name
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both
from layerdiff.trace.dtypes import Dtype
from layerdiff.trace.reader import StoredValue, TraceFile
from layerdiff.trace.schema import Role

WHOLE: Final = 1 << 24
"""Elements: a value of up to as many is read whole, a larger one every k-th row."""
_LONGEST_ROW: Final = 1 << 20
_LARGEST_VIEW_BYTES: Final = 4 << 30


@dataclass(frozen=True)
class Held:
    """Bits in memory, as `Blocks`."""

    dtype: Dtype
    bits: NDArray[Any]

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.bits.size)

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        """Runs of `count` elements."""
        for start in range(0, self.bits.size, count):
            yield self.bits[start : start + count]


@dataclass(frozen=True)
class OneSide:
    """The bits of one value, by position."""

    dtype: Dtype
    count: int
    whole: Blocks

    def read(self, start: int, count: int) -> NDArray[Any]:
        """`count` elements from number `start` on, as bits: an array of `dtype.raw`."""
        if isinstance(self.whole, Held):
            return self.whole.bits[start : start + count]
        assert isinstance(self.whole, StoredValue)
        if self.whole.place is None:
            return np.empty(0, self.dtype.raw)
        size = self.dtype.itemsize
        return self.whole.place.read(start * size, count * size).view(self.dtype.raw)


@dataclass(frozen=True)
class SampledRows:
    """Every `every`-th row of `columns` elements, one after the other, as `Blocks`."""

    side: OneSide
    columns: int
    every: int

    @property
    def dtype(self) -> Dtype:
        """Element type."""
        return self.side.dtype

    @property
    def count(self) -> int:
        """Number of elements in the sample: whole rows only."""
        return -(-(self.side.count // self.columns) // self.every) * self.columns

    def blocks(self, count: int) -> Iterator[NDArray[Any]]:
        """Runs of `count` elements of the sample."""
        for start in range(0, self.count, count):
            end = min(start + count, self.count)
            pieces = []
            while start < end:
                row, column = divmod(start, self.columns)
                length = min(self.columns - column, end - start)
                pieces.append(self.side.read(row * self.every * self.columns + column, length))
                start += length
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True)
class Tensor:
    """Both values of a pair, of equally many elements."""

    shape: Shape
    sides: Both[OneSide]
    columns: int
    """Elements a row of the layout."""
    wrapped: bool
    """A row is a run of a vector, and no index of the axes before the last."""
    every: int
    """1, or k where the sample is every k-th row."""
    made_of: str = ""
    """Of a value that ranks hold, in words: of which of them this is, and how."""

    @property
    def count(self) -> int:
        """Elements of each value."""
        return self.sides.reference.count

    @property
    def rows(self) -> int:
        """Rows of the layout; the last may be shorter."""
        return -(-self.count // self.columns) if self.count else 0

    @property
    def measured(self) -> Both[Blocks]:
        """What numbers are made from: all, or the sample."""
        if self.every == 1:
            return self.sides.map(lambda side: side.whole)
        return self.sides.map(lambda side: SampledRows(side, self.columns, self.every))

    @property
    def sampling(self) -> str:
        """The rule of the sample in words; empty where all is measured."""
        if self.every == 1:
            return ""
        part = f"{count(self.measured.reference.count)} of {count(self.count)} elements"
        return f"every {count(self.every)}th row of {count(self.columns)}, {part}"

    def flat(self, index: int) -> int:
        """The flat index in the value of element `index` of what is measured."""
        if self.every == 1 or index < 0:
            return index
        row, column = divmod(index, self.columns)
        return row * self.every * self.columns + column

    def row_name(self, row: int) -> str:
        """A row by the indices before the last axis, `0,3`; of a wrapped vector, its first element."""
        if self.wrapped:
            return str(row * self.columns)
        return ",".join(map(str, index_of(row * self.columns, self.shape)[:-1]))

    def name(self, flat: int) -> str:
        """An element by its index along each axis."""
        return index_text(flat, self.shape)

    def element(self, flat: int) -> Element:
        """One element with its bits. Raises TraceError where it cannot be read."""
        return element_of(self.sides.reference.read(flat, 1), self.sides.target.read(flat, 1), self.sides.map(lambda s: s.dtype), flat)


def element_of(ours: NDArray[Any], theirs: NDArray[Any], dtypes: Both[Dtype], flat: int) -> Element:
    """An element from the bits of both sides, arrays of shape (1,)."""
    reference, target = number_of(ours, dtypes.reference), number_of(theirs, dtypes.target)
    bits = Both(ours, theirs).map(lambda raw: int.from_bytes(raw.tobytes(), "little"))
    return Element(flat, reference, target, _apart(reference, target), bits.reference, bits.target)


def number_of(bits: NDArray[Any], dtype: Dtype) -> bool | int | float | complex:
    """The number of one element, shape (1,)."""
    number: bool | int | float | complex = bool(bits[0]) if dtype.kind == "boolean" else dtype.decode(bits)[0].item()
    return number


def _apart(reference: complex, target: complex) -> float:
    if isinstance(reference, int) and isinstance(target, int):
        return float(abs(target - reference))
    parts = [(x.real, y.real) for x, y in [(complex(reference), complex(target))]]
    parts += [(x.imag, y.imag) for x, y in [(complex(reference), complex(target))]]
    return max(_real_apart(x, y) for x, y in parts)


def _real_apart(x: float, y: float) -> float:
    if math.isfinite(x) and math.isfinite(y):
        return abs(y - x)
    return 0.0 if x == y or (math.isnan(x) and math.isnan(y)) else math.inf


def open_tensor(traces: Traces, comparison: Comparison, pair: int, *, part: int | None = None) -> Tensor:
    """Both values of a pair; of ranks put together, or of the rank at number `part` of `ranks_of` alone.

    Raises TraceError, in words for a user, where a trace is not there, no bytes were kept, or the two cannot be held against each other.
    """
    row, made_of = int(comparison.pairs["site"][pair]), ""
    if of_ranks(comparison, pair):
        logical = put_together(traces, comparison, pair, part)
        shape, made_of = logical.shape, logical.said
        sides = logical.sides.map(lambda side: OneSide(side.dtype, int(side.bits.size), Held(side.dtype, side.bits.reshape(-1))))
    else:
        shape = value_name(comparison, pair, "reference").shape or ()
        values = Both(*(_value(traces, comparison, row, pair, name) for name in ("reference", "target")))
        if any(file.shape(value) != value_name(comparison, pair, name).shape for file, value, name in _named(values)):
            sides = _what_both_have(traces, comparison, pair, values, shape)
        else:
            sides = Both(*(_side(file, value, name) for file, value, name in _named(values)))
    r, t = sides.reference, sides.target
    if r.count != t.count:
        raise TraceError(f"the shapes do not fit: {count(r.count)} elements in the reference, {count(t.count)} in the target")
    columns, wrapped = layout(shape, r.count)
    return Tensor(shape, sides, columns, wrapped, max(1, -(-r.count // WHOLE)), made_of)


def layout(shape: Shape, elements: int) -> tuple[int, bool]:
    """(elements a row, whether rows are runs of a vector)."""
    columns = shape[-1] if shape else 1
    if 1 < columns < elements and columns <= _LONGEST_ROW:
        return columns, False
    if elements <= 64:
        return max(1, elements), True
    return 1 << math.ceil(math.log2(elements) / 2), True


def _value(traces: Traces, comparison: Comparison, row: int, pair: int, name: str) -> tuple[TraceFile, int]:
    value = int(comparison.pairs[f"{name}_value"][pair])
    if value < 0:
        raise TraceError(f"the {name} has no such value")
    file, _ = traces.file(comparison, name, row)
    if value >= len(file.values) or file.dtype_name(value) != value_name(comparison, pair, name).dtype:
        raise _another(file, name)
    return traces.in_order(comparison, file) if name == "reference" else file, value


def _another(file: TraceFile, name: str) -> TraceError:
    return TraceError(f"{file.path} is not the {name} that was compared: its values are others. Compare the two again.")


def _named(values: Both[tuple[TraceFile, int]]) -> Iterator[tuple[TraceFile, int, str]]:
    return ((file, value, name) for (file, value), name in zip(values, ("reference", "target"), strict=True))


def _what_both_have(traces: Traces, comparison: Comparison, pair: int, values: Both[tuple[TraceFile, int]], shape: Shape) -> Both[OneSide]:
    """Of values with a dimension, or with positions, that one side filled up: what was compared, in the shape of it."""
    shapes = values.map(lambda side: side[0].shape(side[1]))
    padded = any(notice.kind == "layout-padded" for notice in comparison.notices)
    fillings = Fillings(frozenset(zip(shapes.reference, shapes.target, strict=False))) if padded else NOTHING_FILLED
    files = Both(*(tuple(traces.files(comparison, name)) for name in ("reference", "target")))
    row = int(comparison.pairs["site"][pair])
    numbers = int(comparison.sites["target_file"][row]), int(comparison.sites["target_call"][row])
    turned = any(notice.kind == "layout-turned" for notice in comparison.notices)  # another value than this one may have told it
    told = np.flatnonzero(comparison.pairs["role"] != Role.WEIGHT).tolist() if turned else [pair]
    forms = forms_of_steps(comparison.sites, comparison.pairs, files, fillings, told).at(*numbers)
    if not forms.common(*shapes):
        raise next(_another(file, name) for file, value, name in _named(values) if file.shape(value) != shape)
    for file, value, name in _named(values):
        _readable(file, value, name)
    beside = forms.beside(*(file.raw(value) for file, value in values))
    assert beside is not None
    return Both(*(_held(file, value, np.ascontiguousarray(bits)) for (file, value), bits in zip(values, beside, strict=True)))


def _held(file: TraceFile, value: int, bits: NDArray[Any]) -> OneSide:
    dtype = file.dtype(value)
    assert dtype is not None
    return OneSide(dtype, int(bits.size), Held(dtype, bits.reshape(-1)))


def _readable(file: TraceFile, value: int, name: str) -> None:
    if why := why_unreadable(file, value, f"the {name}"):
        raise TraceError(why)


def _side(file: TraceFile, value: int, name: str) -> OneSide:
    _readable(file, value, name)
    dtype, stored = file.dtype(value), file.stored(value)
    assert dtype is not None and stored is not None
    if stored.place is None and stored.count:  # made of other values, or in a checkpoint
        return _held(file, value, _of_view(file, value, name))
    return OneSide(dtype, stored.count, stored)


def _of_view(file: TraceFile, value: int, name: str) -> NDArray[Any]:
    base = int(file.values.base[value])
    if base >= 0 and int(file.values.nbytes[base]) > _LARGEST_VIEW_BYTES:
        raise TraceError(
            f"this value of the {name} is a view of one of {count(int(file.values.nbytes[base]))} bytes: too large to read for a screen"
        )
    return file.raw(value).reshape(-1)
