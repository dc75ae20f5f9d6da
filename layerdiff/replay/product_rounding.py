"""`product_rounding`: whether a product is rounded before it is added, told by a product whose last digit would be lost.

x = 1 + d is chosen so that x * x needs more digits than its format has. Beside minus its rounding only the lost digit is left: it is
there where the product was added whole, and zero where it was rounded first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from layerdiff.arithmetic.formats import format_named
from layerdiff.arithmetic.orders.probe import Products
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.replay.summing import Multiplied, Summing

_TESTED_NODES: Final = 24


def product_rounding(summing: Summing, tree: Tree, row: int, column: int, dtype: str) -> Products:
    """How products enter the sum: 1 + d times itself beside minus its rounding, at nodes that take in a term."""
    format = format_named(dtype)
    assert format is not None
    digits = format.significand_bits
    x = 1.0 + 2.0 ** -((digits + 1) // 2)
    rounded = 1.0 + 2.0 * (x - 1.0)
    products = summing.terms - _has_bias(summing)
    meeting = [(k, j) for k, j in _meeting(tree) if max(k, j) < products]
    if not meeting:
        return "unknown"

    def sum_of(one: float, factor: float, other: float, k: int, j: int) -> float:
        values = np.zeros((1, summing.terms))
        values[0, k], values[0, j] = one, other
        return summing.with_factor(values, row, column, k, factor)

    k, j = meeting[0]
    if sum_of(x, 1.0, -1.0, k, j) != x - 1.0:
        return "truncated"
    kept = [
        max(sum_of(x, x, -rounded, k, j), sum_of(x, x, -rounded, j, k) if both else 0.0) > 0 for (k, j), both in _pairs_of(meeting, tree)
    ]
    if all(kept):
        return "fused" if digits >= 24 else "exact"
    return "mixed" if any(kept) else "rounded"


def _has_bias(summing: Summing) -> bool:
    return isinstance(summing, Multiplied) and summing.has_bias


def _pairs_of(meeting: list[tuple[int, int]], tree: Tree) -> Iterator[tuple[tuple[int, int], bool]]:
    """The pairs, and whether both of each are terms of their own there: which of two is rounded is then nobody's to know."""
    siblings = {frozenset(children) for children in tree.nodes if len(children) == 2}
    for pair in meeting:
        yield pair, frozenset(pair) in siblings


def _meeting(tree: Tree) -> list[tuple[int, int]]:
    """Terms that enter a sum by themselves, each with a term of that sum; a few from all over the tree."""
    found = []
    for children in tree.nodes:
        single = next((child for child in children if child < tree.leaves), None)
        if single is not None:
            single = max(child for child in children if child < tree.leaves)
            other = next(child for child in children if child != single)
            found.append((single, tree.first[other]))
    step = max(1, -(-len(found) // _TESTED_NODES))
    return found[::step]
