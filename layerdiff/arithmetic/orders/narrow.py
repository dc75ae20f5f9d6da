"""Sums of less precision: partial sums that are rounded to 16 bits, and running sums in 16 bits.

What a partial sum is rounded from may have been added in any order: where it lies within a few sigma of the middle between two
numbers, nothing is certain of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT16, FLOAT32, Format, interval, round_to
from layerdiff.arithmetic.orders.order import How
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

    def added(self, parts: Array) -> Array:
        """Rounded parts [P, m] added up."""
        if self.across == "wide":
            return add_up(parts, "chain", FLOAT32)
        if self.across == "reversed":
            return add_up(parts[::-1], "chain", self.format)
        return add_up(parts, self.across, self.format)


def rounded_parts(parts: int, format: Format, accumulator: Format, taken: Taken) -> tuple[Array, NDArray[np.bool_]]:
    """`parts` sums over equal ranges, rounded to `format`: [P, m]; certain where none is near the middle between two numbers: [m]."""
    products = taken.left if taken.right is None else taken.left * taken.right
    size = -(-products.shape[1] // parts)
    edges = np.arange(0, products.shape[1], size)
    sums = np.add.reduceat(products, edges, axis=1)
    squares = np.add.reduceat(np.square(products), edges, axis=1)
    rounded = round_to(sums, format)
    certain = np.all(_settled(sums, rounded, _SIGMAS * sum_sigma(sums, squares, size, accumulator), format), axis=1)
    return rounded.T, certain


def sum_of_partials(how: Partials, accumulator: Format, taken: Taken) -> Replayed:
    """The sums of `how`."""
    parts, certain = rounded_parts(how.parts, how.format, accumulator, taken)
    return Replayed(how.added(parts), certain)


def add_up(parts: Array, how: How, to: Format) -> Array:
    """Parts [P, m] added along the first axis, each sum rounded to `to`."""
    if how == "chain":
        total = parts[0]
        for part in parts[1:]:
            total = round_to(total + part, to)
        return np.asarray(total)
    level = parts
    while level.shape[0] > 1:
        half = (level.shape[0] + 1) // 2
        a, b = (level[:half], level[half:]) if how == "halves" else (level[::2], level[1::2])
        level = np.concatenate([round_to(a[: b.shape[0]] + b, to), a[b.shape[0] :]])
    return np.asarray(level[0])


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
    nearest = _nearest(format)
    for one, off in zip(sums, slack, strict=True):
        whole = total + one
        if through is FLOAT32:
            whole = whole.astype(np.float32).astype(np.float64)
        total = nearest(whole)
        if size > 1:
            certain &= _settled(whole, total, off, format)
    return Replayed(total, certain)


def _nearest(format: Format) -> Callable[[Array], Array]:
    """`round_to` for one format without its care for what lies outside the range of normal numbers, which a chain cannot afford."""
    if format is FLOAT16:
        return lambda x: x.astype(np.float16).astype(np.float64)
    drop = np.int64(53 - format.significand_bits)
    half, one, keep = (np.int64(1) << (drop - 1)) - 1, np.int64(1), ~((np.int64(1) << drop) - 1)

    def nearest(x: Array) -> Array:
        bits = x.view(np.int64)
        rounded: Array = ((bits + half + ((bits >> drop) & one)) & keep).view(np.float64)
        return rounded

    return nearest


def _settled(exact: Array, rounded: Array, slack: Array, format: Format) -> NDArray[np.bool_]:
    """Whether everything within `slack` of an exact number rounds to the same."""
    low, high = interval(np.where(np.isfinite(rounded), rounded, 0.0), format)
    return np.asarray((exact - slack > low) & (exact + slack < high))
