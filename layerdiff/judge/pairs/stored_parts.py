"""Bit equality of a logical tensor and the parts that ranks recorded of it, a block at a time: equal ones are never in memory whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import Placement
from layerdiff.align.runs import Run, runs_of
from layerdiff.measure.equality import BLOCK_BYTES, same_bits
from layerdiff.trace.places import Place
from layerdiff.trace.reader import StoredValue

_WORD = 8
_PAGE = 4096
"""Bytes in a row under which a part is not read by itself."""
ROWS_BYTES = 4 << 20
"""Of the whole that are in memory at once where its rows are small: less, and calling numpy for each part takes longer than comparing."""
_Cut = tuple[Place, tuple[Run, ...]]
"""Where a part lies, and which places it holds."""


def same_parts(placement: Placement, shape: tuple[int, ...], whole: StoredValue, parts: Sequence[StoredValue | None]) -> bool:
    """Whether every part has the bits of its part of the whole, and together they have all of it.

    False too where that shows only in memory: places in no regular order, other orders of dimensions, views, padding.
    """
    if placement.turned or placement.form is not None or any(part is None or part.dtype != whole.dtype for part in parts):
        return False
    if placement.kind == "replicated" and placement.dim < 0:
        return all(part is not None and part.count == whole.count and same_bits(whole, part) for part in parts)
    if placement.kind != "sharded" or whole.place is None or not placement.covers(shape):
        return False
    inner = math.prod(shape[placement.dim + 1 :]) * whole.dtype.itemsize
    rows, row = math.prod(shape[: placement.dim]), shape[placement.dim] * inner
    cut: list[_Cut] = []
    for part, at in zip(parts, placement.positions, strict=True):
        runs = runs_of(at)
        if part is None or part.place is None or runs is None or any(run.start < 0 or run.step < 1 for run in runs):
            return False
        if part.place.nbytes != rows * at.size * inner:  # parts that differ in other dimensions too
            return False
        if row > BLOCK_BYTES and any(run.step > 1 or run.places * inner < _PAGE for run in runs):
            return False
        cut.append((part.place, runs))
    same = _same_ranges if row > BLOCK_BYTES else _same_rows
    return same(whole.place, cut, rows, row, inner)


def _same_ranges(whole: Place, parts: Sequence[_Cut], rows: int, row: int, inner: int) -> bool:
    """Where a row, all that lies along the dimension, is large: the bytes of each run, one after another."""
    ours, theirs = np.empty(BLOCK_BYTES, np.uint8), np.empty(BLOCK_BYTES, np.uint8)
    for part, runs in parts:
        own, at = sum(run.places for run in runs) * inner, 0
        for run in runs:
            for i in range(rows):
                for begin in range(0, run.places * inner, BLOCK_BYTES):
                    size = min(BLOCK_BYTES, run.places * inner - begin)
                    whole.fill(ours[:size], i * row + run.start * inner + begin)
                    part.fill(theirs[:size], i * own + at + begin)
                    if not _same(ours[:size], theirs[:size], inner):
                        return False
            at += run.places * inner
    return True


def _same_rows(whole: Place, parts: Sequence[_Cut], rows: int, row: int, inner: int) -> bool:
    """Where rows are small: many of the whole at once, and of every part as many."""
    many = max(1, ROWS_BYTES // max(row, 1))
    ours, theirs = np.empty(many * row, np.uint8), np.empty(many * row, np.uint8)
    for begin in range(0, rows, many):
        count = min(many, rows - begin)
        mine = ours[: count * row]
        whole.fill(mine, begin * row)
        for part, runs in parts:
            own, at = sum(run.places for run in runs) * inner, 0
            their = theirs[: count * own]
            part.fill(their, begin * own)
            for run in runs:
                size = run.places * inner
                held = their.reshape(count, own)[:, at : at + size]
                if run.step == 1:
                    first = run.start * inner
                    same = _same(mine.reshape(count, row)[:, first : first + size], held, math.gcd(row, first, own, at, size))
                else:
                    places = mine.reshape(count, row // inner, inner)[:, run.start : run.last + 1 : run.step]
                    same = _same(places, held.reshape(count, run.places, inner), inner)
                if not same:
                    return False
                at += size
    return True


def _same(one: NDArray[Any], other: NDArray[Any], unit: int) -> bool:
    """Compared in the widest words that `unit`, which divides all distances in bytes, allows."""
    word = math.gcd(_WORD, unit)
    return bool(np.array_equal(one.view(f"u{word}"), other.view(f"u{word}")))
