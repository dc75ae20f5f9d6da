"""Cascades: chains whose sums are handed up a level every few terms, as torch's CPU kernels add (ATen/native/cpu/SumKernel.cpp).

A row is read by vectors of so many numbers, `unroll` of them at a time into accumulators of their own; those are added in order,
then the lanes of the vector, and what did not fill a vector comes before both.
"""

from __future__ import annotations

import math
from typing import Final

from layerdiff.arithmetic.orders.tree import Tree, chain

_LEVELS: Final = 4
_LEAST: Final = 4


def cascade(terms: int, lanes: int = 1, unroll: int = 1) -> Tree:
    """The tree of a cascade over `terms`, read by vectors of `lanes`, `unroll` vectors at a time."""
    nodes: list[tuple[int, ...]] = []
    vectors = terms // lanes
    per = vectors // unroll
    ends = []
    for lane in range(lanes):
        parts = [_levels([(step * unroll + part) * lanes + lane for step in range(per)], nodes, terms) for part in range(unroll)]
        for vector in range(per * unroll, vectors):
            parts[0] = _sum(parts[0], vector * lanes + lane, nodes, terms)
        ends.append(_in_order(parts, nodes, terms))
    tail = _in_order(list(range(vectors * lanes, terms)), nodes, terms)
    _in_order([tail, *ends], nodes, terms)
    return Tree(terms, tuple(nodes))


def _levels(numbers: list[int], nodes: list[tuple[int, ...]], terms: int) -> int | None:
    """One accumulator: its first level is handed up every 2^p terms, the second every 2^2p, and so on."""
    size = len(numbers)
    if size == 0:
        return None
    power = max(_LEAST, math.ceil(math.log2(size) / _LEVELS) if size > 1 else 0)
    step = 1 << power
    sums: list[int | None] = [None] * _LEVELS
    done = 0
    while done + step <= size:
        for number in numbers[done : done + step]:
            sums[0] = _sum(sums[0], number, nodes, terms)
        done += step
        for level in range(1, _LEVELS):
            sums[level] = _sum(sums[level], sums[level - 1], nodes, terms)
            sums[level - 1] = None
            if done & ((step - 1) << (level * power)):
                break
    for number in numbers[done:]:
        sums[0] = _sum(sums[0], number, nodes, terms)
    return _in_order(sums, nodes, terms)


def _sum(a: int | None, b: int | None, nodes: list[tuple[int, ...]], terms: int) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return chain([a, b], nodes, terms)


def _in_order(numbers: list[int | None] | list[int], nodes: list[tuple[int, ...]], terms: int) -> int | None:
    there = [number for number in numbers if number is not None]
    return chain(there, nodes, terms) if there else None


KINDS: Final = ((1, 1), (1, 4), (4, 4), (8, 4), (16, 4), (32, 4), (8, 1), (16, 1), (32, 1))
"""Lanes and unrolling: columns, rows without vectors, vectors of 128 to 512 bits, 16-bit numbers widened by pairs of vectors."""


def cascades(terms: int) -> list[tuple[str, Tree]]:
    """The cascades that are tried, by name; those that coincide once."""
    found: dict[Tree, str] = {}
    for lanes, unroll in KINDS:
        if lanes * unroll < terms:
            name = "a cascade" if lanes == unroll == 1 else f"a cascade in {lanes} lanes, {unroll} at a time"
            found.setdefault(cascade(terms, lanes, unroll).canonical, name)
    return [(name, tree) for tree, name in found.items()]
