"""Sums of less precision: partial sums that are rounded to 16 bits, and running sums in 16 bits.

What a partial sum is rounded from may have been added in any order: where it lies within a few sigma of the middle between two
numbers, nothing is certain of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT32, Format, interval, round_to
from layerdiff.arithmetic.orders.replaying import Replayed
from layerdiff.arithmetic.orders.summing import Array, Taken
from layerdiff.arithmetic.sums import sum_sigma

Across = Literal["wide", "chain", "reversed", "pairs", "halves"]
_SIGMAS: Final = 6.0
_WORDS: Final = {
    "wide": "added in fp32",
    "chain": "added in order in {}",
    "reversed": "added from the last in {}",
    "pairs": "added pairwise in {}",
    "halves": "added in halves in {}",
}


@dataclass(frozen=True)
class Partials:
    """`parts` sums over equal ranges, each rounded to `format`, then added."""

    parts: int
    format: Format
    across: Across

    @property
    def name(self) -> str:
        """`4 partial sums in bf16, added in order in bf16`."""
        short = {"bfloat16": "bf16", "float16": "fp16"}.get(self.format.name, self.format.name)
        return f"{self.parts} partial sums in {short}, {_WORDS[self.across].format(short)}"


def sum_of_partials(how: Partials, accumulator: Format, taken: Taken) -> Replayed:
    """The sums of `how`; certain where no partial sum is near the middle between two numbers."""
    products = taken.left if taken.right is None else taken.left * taken.right
    terms = products.shape[1]
    size = -(-terms // how.parts)
    edges = np.arange(0, terms, size)
    sums = np.add.reduceat(products, edges, axis=1)
    squares = np.add.reduceat(np.square(products), edges, axis=1)
    parts = round_to(sums, how.format)
    certain = np.all(_settled(sums, parts, _SIGMAS * sum_sigma(sums, squares, size, accumulator), how.format), axis=1)
    return Replayed(added(parts.T, how.across, how.format), certain)


def added(parts: Array, across: Across, format: Format) -> Array:
    """Rounded parts [P, m] added up: in float32 for "wide", else rounded to `format` at each addition."""
    to = FLOAT32 if across == "wide" else format
    if across in ("pairs", "halves"):
        level = parts
        while level.shape[0] > 1:
            half = (level.shape[0] + 1) // 2
            a, b = (level[:half], level[half:]) if across == "halves" else (level[::2], level[1::2])
            level = np.concatenate([round_to(a[: b.shape[0]] + b, to), a[b.shape[0] :]])
        total = level[0]
    else:
        order = parts[::-1] if across == "reversed" else parts
        total = order[0]
        for part in order[1:]:
            total = round_to(total + part, to)
    return np.asarray(total)


def running_sum(
    size: int, format: Format, through: Format | None, taken: Taken, accumulator: Format, *, products_rounded: bool
) -> Replayed:
    """A running sum rounded to `format` after every `size` terms; where size is 1 it is certain everywhere."""
    products = taken.left if taken.right is None else taken.left * taken.right
    if products_rounded:
        products = round_to(products, format)
    count, terms = products.shape
    edges = np.arange(0, terms, size)
    sums = (products if size == 1 else np.add.reduceat(products, edges, axis=1)).T
    total, certain = np.zeros(count), np.ones(count, bool)
    slack = np.zeros(sums.shape)
    if size > 1:
        squares = np.add.reduceat(np.square(products), edges, axis=1).T
        slack = _SIGMAS * sum_sigma(sums, squares, size, accumulator)
    for one, off in zip(sums, slack, strict=True):
        whole = total + one
        if through is not None:
            whole = round_to(whole, through)
        total = round_to(whole, format)
        if size > 1:
            certain &= _settled(whole, total, off, format)
    return Replayed(total, certain)


def _settled(exact: Array, rounded: Array, slack: Array, format: Format) -> NDArray[np.bool_]:
    """Whether everything within `slack` of an exact number rounds to the same."""
    low, high = interval(np.where(np.isfinite(rounded), rounded, 0.0), format)
    return np.asarray((exact - slack > low) & (exact + slack < high))
