"""`Order`: in which order terms are added: they are laid out on axes, and one axis after the other is added up.

Most orders that kernels use are two or three such steps: chains over blocks, blocks in order; interleaved lanes, lanes in a tree.
A layout is padded with absent terms, which add zero and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.orders.tree import Tree, chain, pairs

How = Literal["chain", "pairs", "halves"]
ABSENT: Final = -1


@dataclass(frozen=True, eq=False)
class Order:
    """An order of K terms.

    Attributes:
        name: `split-K 4`.
        layout: the terms by number, -1 for an absent one; the last axis is added first.
        steps: how each axis is added, from the last to the first: "chain" in order, "pairs" neighbours in a tree, "halves" i and
            i + half in a tree.
    """

    name: str
    layout: NDArray[np.intp]
    steps: tuple[How, ...]
    also: tuple[str, ...] = ()
    """Other names of the same order."""

    @property
    def terms(self) -> int:
        """K."""
        return int(self.layout.max()) + 1

    def tree(self) -> Tree:
        """The summation tree."""
        leaves = self.terms
        nodes: list[tuple[int, ...]] = []
        level: NDArray[np.intp] = self.layout
        for how in self.steps:
            rows = level.reshape(-1, level.shape[-1]).tolist()
            made = [_added([number for number in row if number != ABSENT], how, nodes, leaves) for row in rows]
            level = np.asarray(made, np.intp).reshape(level.shape[:-1])
        return Tree(leaves, tuple(nodes))

    def rearranged(self, sequence: NDArray[np.intp]) -> Order:
        """The same order of terms that come in another sequence."""
        return replace(self, layout=np.where(self.layout == ABSENT, ABSENT, sequence[self.layout]), also=())

    @cached_property
    def key(self) -> int:
        """Equal for orders that are the same: a hash that commutes and does not associate, added up in this order."""
        leaves = np.append(np.random.default_rng(self.terms).integers(1, 1 << 63, self.terms, np.uint64), np.uint64(0))
        level = leaves[self.layout]
        for how in self.steps:
            level = np.moveaxis(level, -1, 0)
            if how == "chain":
                total = level[0]
                for row in level[1:]:
                    total = _hashed(total, row)
                level = total
            while level.ndim and how != "chain" and level.shape[0] > 1:
                half = (level.shape[0] + 1) // 2
                a, b = (level[:half], level[half:]) if how == "halves" else (level[::2], level[1::2])
                level = np.concatenate([_hashed(a[: b.shape[0]], b), a[b.shape[0] :]])
            level = level if how == "chain" else level[0]
        return int(level)


def _hashed(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A sum of two hashes that depends on both and not on their order; zero is absent, and adds nothing."""
    with np.errstate(over="ignore"):
        both = a + b
        mixed = (both ^ (both >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.where((a == 0) | (b == 0), both, mixed ^ (mixed >> np.uint64(32)))


def _added(numbers: list[int], how: How, nodes: list[tuple[int, ...]], leaves: int) -> int:
    if not numbers:
        return ABSENT
    if how == "chain":
        return chain(numbers, nodes, leaves)
    return pairs(numbers, nodes, leaves, apart=how == "halves")


def _padded(terms: int, size: int) -> NDArray[np.intp]:
    count = -(-terms // size)
    flat = np.full(count * size, ABSENT, np.intp)
    flat[:terms] = np.arange(terms)
    return flat.reshape(count, size)


def sequential(terms: int) -> Order:
    """((0 + 1) + 2) + ..."""
    return Order("sequential", np.arange(terms), ("chain",))


def backwards(terms: int) -> Order:
    """From the last term to the first."""
    return Order("reversed", np.arange(terms)[::-1].copy(), ("chain",))


def blocks(terms: int, size: int, within: How = "chain", across: How = "chain") -> Order:
    """Blocks of `size` terms one after the other, each added up by itself."""
    ending = {"chain": "", "pairs": ", blocks in a tree", "halves": ", blocks in a tree of halves"}[across]
    inner = {"chain": "", "pairs": " pairwise", "halves": " in halves"}[within]
    return Order(f"blocks of {size}{inner}{ending}", _padded(terms, size), (within, across))


def split(terms: int, parts: int, across: How = "chain") -> Order:
    """`parts` chains over equal ranges (the last may be shorter)."""
    ending = "" if across == "chain" else ", parts in a tree"
    return Order(f"split-K {parts}{ending}", _padded(terms, -(-terms // parts)), ("chain", across))


def lanes(terms: int, count: int, across: How = "chain") -> Order:
    """`count` interleaved chains: term k in lane k mod count."""
    ending = {"chain": "in order", "pairs": "pairwise", "halves": "in halves"}[across]
    return Order(f"{count} lanes added {ending}", _padded(terms, count).T.copy(), ("chain", across))


def split_blocks(terms: int, parts: int, size: int) -> Order:
    """`parts` equal ranges, each in blocks of `size`."""
    length = -(-terms // parts)
    ranges = _padded(terms, length)
    per = -(-length // size)
    wide = np.full((ranges.shape[0], per * size), ABSENT, np.intp)
    wide[:, :length] = ranges
    return Order(f"split-K {parts}, blocks of {size}", wide.reshape(-1, per, size), ("chain", "chain", "chain"))


def block_lanes(terms: int, size: int, count: int, across: How) -> Order:
    """Blocks of `size`, each in `count` interleaved lanes."""
    rows = _padded(terms, size)
    ending = {"chain": "in order", "pairs": "pairwise", "halves": "in halves"}[across]
    laid = rows.reshape(rows.shape[0], size // count, count).swapaxes(1, 2).copy()
    return Order(f"blocks of {size}, {count} lanes added {ending}", laid, ("chain", across, "chain"))


def lane_blocks(terms: int, count: int, size: int, across: How) -> Order:
    """`count` interleaved lanes, each in blocks of `size` terms of its own."""
    ending = {"chain": "in order", "pairs": "pairwise", "halves": "in halves"}[across]
    per_lane = _padded(terms, count).T
    length = -(-per_lane.shape[1] // size) * size
    wide = np.full((count, length), ABSENT, np.intp)
    wide[:, : per_lane.shape[1]] = per_lane
    return Order(f"{count} lanes in blocks of {size}, added {ending}", wide.reshape(count, -1, size), ("chain", "chain", across))


BLOCKS: Final = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
SPLITS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LANES: Final = (2, 4, 8, 16, 32, 64)
ACROSS: Final[tuple[How, ...]] = ("chain", "pairs", "halves")


def _all(terms: int) -> Iterator[Order]:
    yield sequential(terms)
    yield backwards(terms)
    yield Order("pairwise", np.arange(terms), ("pairs",))
    yield Order("in halves", np.arange(terms), ("halves",))
    for parts in SPLITS:
        if parts < terms:
            yield split(terms, parts)
            yield split(terms, parts, "pairs")
    for size in BLOCKS:
        if size < terms:
            yield blocks(terms, size)
            yield blocks(terms, size, across="pairs")
            yield blocks(terms, size, within="pairs")
    for count in LANES:
        if count < terms:
            for across in ACROSS:
                yield lanes(terms, count, across)
    for parts in (2, 4, 8, 16):
        for size in BLOCKS[1:]:
            if parts * size < terms:
                yield split_blocks(terms, parts, size)
    for size in (32, 64, 128, 256, 512):
        for count in (4, 8, 16):
            if count < size < terms:
                for across in ACROSS:
                    yield block_lanes(terms, size, count, across)
    for count in (4, 8, 16, 32):
        for size in (4, 8, 16, 32, 64, 128):
            if count * size < terms:
                yield lane_blocks(terms, count, size, "chain")
                yield lane_blocks(terms, count, size, "pairs")


@lru_cache(maxsize=8)
def orders(terms: int) -> tuple[Order, ...]:
    """The orders that are tried for a sum of `terms`: those that coincide once, by all of their names."""
    found: dict[int, Order] = {}
    for order in _all(terms):
        known = found.get(order.key)
        if known is None:
            found[order.key] = order
        elif order.name not in (known.name, *known.also):
            found[order.key] = replace(known, also=(*known.also, order.name))
    return tuple(found.values())
