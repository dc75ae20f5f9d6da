"""Summation trees with a known order, and callables that add in it."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from layerdiff.arithmetic.formats import FLOAT32, Format, round_to
from layerdiff.arithmetic.orders.tree import Tree, chain, pairs

Nodes = list[tuple[int, ...]]


def built(leaves: int, build: Callable[[Nodes, int], object]) -> Tree:
    nodes: Nodes = []
    build(nodes, leaves)
    return Tree(leaves, tuple(nodes)).canonical


def sequential(leaves: int) -> Tree:
    return built(leaves, lambda nodes, n: chain(range(n), nodes, n))


def backward(leaves: int) -> Tree:
    return built(leaves, lambda nodes, n: chain(range(n)[::-1], nodes, n))


def pairwise(leaves: int, *, apart: bool = False) -> Tree:
    return built(leaves, lambda nodes, n: pairs(range(n), nodes, n, apart=apart))


def lanes(leaves: int, count: int, *, in_order: bool = False) -> Tree:
    def build(nodes: Nodes, n: int) -> None:
        parts = [chain(range(lane, n, count), nodes, n) for lane in range(count)]
        chain(parts, nodes, n) if in_order else pairs(parts, nodes, n, apart=True)

    return built(leaves, build)


def blocks(leaves: int, size: int, *, in_pairs: bool = False) -> Tree:
    def build(nodes: Nodes, n: int) -> None:
        parts = [chain(range(begin, min(begin + size, n)), nodes, n) for begin in range(0, n, size)]
        pairs(parts, nodes, n) if in_pairs else chain(parts, nodes, n)

    return built(leaves, build)


def fused(leaves: int, size: int) -> Tree:
    """Additions of `size` terms and the sum so far, at once."""

    def build(nodes: Nodes, n: int) -> None:
        total: tuple[int, ...] = ()
        for begin in range(0, n, size):
            added = (*total, *range(begin, min(begin + size, n)))
            if len(added) > 1:
                nodes.append(added)
                total = (n + len(nodes) - 1,)
            else:
                total = added

    return built(leaves, build)


def at_random(leaves: int, seed: int, *, widest: int = 2) -> Tree:
    def build(nodes: Nodes, n: int) -> None:
        draw = random.Random(seed)
        numbers = list(range(n))
        while len(numbers) > 1:
            count = min(len(numbers), draw.randint(2, widest))
            nodes.append(tuple(numbers.pop(draw.randrange(len(numbers))) for _ in range(count)))
            numbers.append(n + len(nodes) - 1)

    return built(leaves, build)


def adds_as(tree: Tree, format: Format = FLOAT32, *, cut: bool = True) -> Callable[[np.ndarray], np.ndarray]:
    """Sums of the rows of a matrix in this order, each addition rounded to `format`.

    More than two at once are added exactly and rounded once; with `cut` each is cut below the last digit of the largest before, as
    tensor cores do.
    """

    def add(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return one + other if format is FLOAT32 else round_to(one + other, format)

    def at_once(together: np.ndarray) -> np.ndarray:
        if cut:
            step = np.ldexp(1.0, np.frexp(np.abs(together).max(axis=0))[1] - format.significand_bits)
            together = np.trunc(together / step) * step
        return round_to(together.sum(axis=0), format).astype(np.float32 if format is FLOAT32 else np.float64)

    def sums(values: np.ndarray) -> np.ndarray:
        known = list(values.T.astype(np.float32)) if format is FLOAT32 else list(round_to(values.T, format))
        for children in tree.nodes:
            if len(children) == 2:
                known.append(add(known[children[0]], known[children[1]]))
            else:
                known.append(at_once(np.stack([known[child] for child in children]).astype(np.float64)))
        return np.asarray(known[-1], np.float64)

    return sums
