"""Which rank holds what of a logical dimension, drawn: a row a rank, the dimension from left to right.

A cell stands for a run of places and says by its shade how many of them the rank holds, so a strided part, which holds some of every
run, is pale from end to end where a contiguous one is a block. The digits say the rank again, since colours are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.runs import Run
from layerdiff.rows.figures import count
from layerdiff.rows.tones import Segment, Tone, rank_tone

Runs = Sequence[Run] | None
_SHADES: Final = ((1.0, "█"), (2 / 3, "▓"), (1 / 3, "▒"), (0.0, "░"))
_LARGEST: Final = 1 << 20
"""Places up to which it is worked out which of them no rank holds."""


class Cells(NamedTuple):
    """The places that each cell of a map stands for, shape (cells,)."""

    first: NDArray[np.int64]
    end: NDArray[np.int64]
    """One past the last."""


def cells_of(parts: Sequence[Runs], size: int, width: int) -> Cells:
    """At most `width` cells. Blocks begin where cells do, and every cell of a strided part holds as many places, where there is room."""
    if size < 1 or width < 1:
        return Cells(np.zeros(0, np.int64), np.zeros(0, np.int64))
    if size <= width:
        first = np.repeat(np.arange(size, dtype=np.int64), width // size)
        return Cells(first, first + 1)
    runs = [run for part in parts for run in part or () if run.start >= 0]
    step = max((abs(run.step) for run in runs), default=1)
    if 1 < step <= size // 4:
        each = -(-size // width)
        each = -(-each // step) * step
        edges = np.array([*range(0, size, each), size], np.int64)
    else:
        blocks = size // math.gcd(size, *(run.start for run in runs))
        cells = width // blocks * blocks if blocks <= width // 2 else width
        edges = np.array([cell * size // cells for cell in range(cells + 1)], np.int64)
    return Cells(edges[:-1], edges[1:])


def shares(runs: Runs, cells: Cells) -> NDArray[np.float64]:
    """Which part of the places of each cell is held, shape (cells,), from 0 to 1. `runs` None is all of them."""
    first, end = cells
    if runs is None:
        return np.ones(len(first))
    held = np.zeros(len(first))
    for run in runs:
        if run.start < 0:
            continue
        low, step = (run.start, run.step) if run.step >= 0 else (run.last, -run.step)
        if step == 0:
            held += (first <= low) & (low < end)
            continue
        before, until = (np.clip(-((low - edge) // step), 0, run.places) for edge in (first, end))
        held += until - before
    share: NDArray[np.float64] = np.minimum(1.0, held / np.maximum(1, end - first))
    return share


def row_of_rank(runs: Runs, rank: int, cells: Cells, width: int, *, shade: str | None = None) -> list[Segment]:
    """What one rank holds, exactly `width` cells. `shade`: drawn for all that is held, whatever its share."""
    held = shares(runs, cells)
    texts = [(shade or _shade(share)) if share > 0 else "·" for share in held.tolist()]
    label, at = str(rank), 0
    for is_held, run in groupby(share > 0 for share in held.tolist()):
        length = len(list(run))
        if is_held and length >= len(label) + 2:
            middle = at + (length - len(label)) // 2
            texts[middle : middle + len(label)] = list(label)
        at += length
    texts += [" "] * (width - len(texts))
    tone = rank_tone(rank)
    return [Segment("".join(run), Tone.FAINT if empty else tone) for empty, run in groupby(texts, lambda text: text in "· ")]


def _shade(share: float) -> str:
    return next(glyph for least, glyph in _SHADES if share >= least)


def missing(parts: Sequence[Runs], size: int) -> NDArray[np.bool_] | None:
    """Which places no rank holds, shape (size,); None where every one is held, or where there are too many to look."""
    if size > _LARGEST or any(runs is None for runs in parts):
        return None
    held = np.zeros(size, bool)
    for runs in parts:
        for run in runs or ():
            if run.start < 0:
                continue
            low, step = (run.start, run.step) if run.step >= 0 else (run.last, -run.step)
            held[low : low + (run.places - 1) * step + 1 : max(1, step)] = True
    return None if held.all() else ~held


def row_of_missing(absent: NDArray[np.bool_], cells: Cells, width: int) -> list[Segment]:
    """The places that no rank holds, exactly `width` cells."""
    texts = ["╳" if absent[a:b].any() else " " for a, b in zip(cells.first.tolist(), cells.end.tolist(), strict=True)]
    return [Segment("".join(texts).ljust(width), Tone.FAULT)]


def closer(parts: Sequence[tuple[int, Runs]], size: int, width: int) -> list[Segment] | None:
    """The first places, one a cell, by the last digit of the rank that holds each; None where the whole map shows each place."""
    if size <= width or not any(runs is not None and any(abs(run.step) > 1 for run in runs) for _, runs in parts):
        return None
    first = np.arange(width, dtype=np.int64)
    each = Cells(first, first + 1)
    owner = np.full(width, -1, np.int64)
    for rank, runs in reversed(parts):
        owner[shares(runs, each) > 0] = rank
    return [Segment(str(rank % 10), rank_tone(rank)) if rank >= 0 else Segment("╳", Tone.FAULT) for rank in owner.tolist()]


def ruler(size: int, cells: Cells, width: int) -> str:
    """The first and the last place under the map, exactly `width` cells; the middle one where there is room."""
    drawn = len(cells.first)
    last = count(size - 1)
    if drawn < len(last) + 3:
        return "0".ljust(width)[:width]
    text = "0" + last.rjust(drawn - 1)
    at = drawn // 2
    middle = count(int(cells.first[at]))
    if drawn > 4 * (len(middle) + 2) and size > 2:
        text = text[:at] + middle + text[at + len(middle) :]
    return text.ljust(width)[:width]
