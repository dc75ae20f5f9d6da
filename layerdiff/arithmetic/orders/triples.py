"""`find_tree_of_triples`: the summation tree of a sum that takes no negative terms, such as the denominator of a softmax.

No mask can cancel there. What rounding shows instead is which two of three terms meet first: beside a term of 1, two terms of 0.4 of
its last digit are lost one by one, and make a digit where they are added to each other before. Such triples determine a tree. It is
found as quicksort sorts: two terms divide all others into those below on either side of the node where the two meet, its further
children, and what is outside; each part is divided again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.orders.probing import ProbeError, sizes_under
from layerdiff.arithmetic.orders.tree import Tree

Ints = NDArray[np.int64]
Together = Callable[[Ints], NDArray[np.bool_]]
"""Triples of shape (q, 3) to shape (q,): whether the second and the third are added to each other before the first comes in."""

MOST_TRIPLES: Final = 4_000_000
_CHECKS: Final = 64
_WIDE: Final = 64
_DEEP: Final = 300
_WIDER: Final = (
    "All terms meet in one addition, as far as a probe can see: the accumulator is wider than the terms. Its order "
    "cannot be seen, and hardly "
    "matters."
)


@dataclass
class _Part:
    """Terms whose tree is to be found, one of them perhaps standing for a subtree found already."""

    members: Ints
    depth: int
    pair: tuple[int, int] = (-1, -1)
    left: int = -1
    right: int = -1
    further: int = -1
    """The further children of the node where the pair meets, with the first of the pair standing for that node."""
    outside: int = -1
    """What is outside that node, with the first of the pair standing for it."""


def find_tree_of_triples(together: Together, terms: int) -> Tree:
    """The tree over `terms` terms, asked for in triples.

    Raises ProbeError where no digit is ever made or lost (a wider accumulator), or the answers change, or belong to no tree.
    """
    if terms < 1:
        raise ProbeError("A sum without terms has no order.")
    random = np.random.default_rng(0)
    parts = [_Part(np.arange(terms), 0)]
    level, asked = [0], 0
    while level:
        cuts = []
        for number in level:
            part = parts[number]
            i, k = (
                (int(part.members[at]) for at in random.choice(len(part.members), 2, replace=False)) if len(part.members) > 1 else (-1, -1)
            )
            part.pair = (i, k)
            cuts.append(part.members[(part.members != i) & (part.members != k)] if i >= 0 else part.members[:0])
        triples = np.concatenate([_three(parts[n].pair, others) for n, others in zip(level, cuts, strict=True)])
        asked += len(triples)
        if asked > MOST_TRIPLES:
            raise ProbeError(f"More than {MOST_TRIPLES:,} triples would be needed for this tree of {terms:,} terms. Probe fewer terms.")
        answers = together(triples) if len(triples) else np.zeros(0, np.bool_)
        if level == [0] and len(triples) and not np.any(answers):
            raise ProbeError(
                "No two terms are seen to meet before a third: the sum's last digit does not show in the result, or its accumulator is not "
                "the float32 that was assumed."
            )
        following: list[int] = []
        at = 0
        for number, others in zip(level, cuts, strict=True):
            count = len(others)
            one, two, three = answers[at : at + 3 * count].reshape(3, count)
            at += 3 * count
            following += _divided(parts, number, others, (one, two, three))
        level = following
    nodes: list[tuple[int, ...]] = []
    if terms > 1:
        _emit(parts, 0, {}, nodes, terms)
    tree = Tree(terms, tuple(nodes)).canonical
    if terms > 2 and len(nodes) == 1:
        raise ProbeError(_WIDER)
    _check(together, tree, random)
    return tree


def _three(pair: tuple[int, int], others: Ints) -> Ints:
    i, k = pair
    ones = np.ones(len(others), np.int64)
    return np.concatenate(
        [
            np.stack(columns, axis=1)
            for columns in ((others, i * ones, k * ones), (k * ones, i * ones, others), (i * ones, k * ones, others))
        ]
    )


def _divided(parts: list[_Part], number: int, others: Ints, answers: tuple[NDArray[np.bool_], ...]) -> list[int]:
    part = parts[number]
    if len(part.members) < 2:
        return []
    i, k = part.pair
    outside, with_i, with_k = answers
    votes = outside.astype(np.int64) + with_i + with_k
    if np.any(votes == 2):
        raise ProbeError(
            f"The triples belong to no tree: of terms {i}, {k} and {others[votes == 2][0]} two pairs are added first. "
            f"The order may change from "
            "call to call, or between the rows that were probed at once."
        )
    further = (votes == 0) | (votes == 3)
    if np.count_nonzero(further) > _WIDE and np.all(further):
        raise ProbeError(_WIDER)
    if part.depth > _DEEP:
        raise ProbeError("The triples belong to no tree: dividing them does not come to an end.")
    made: list[int] = []

    def add(members: Ints) -> int:
        parts.append(_Part(members, part.depth + 1))
        made.append(len(parts) - 1)
        return len(parts) - 1

    one = votes == 1
    part.left, part.right = add(np.append(others[one & with_i], i)), add(np.append(others[one & with_k], k))
    if np.any(further):
        part.further = add(np.append(others[further], i))
    if np.any(one & outside):
        part.outside = add(np.append(others[one & outside], i))
    return made


def _emit(parts: list[_Part], number: int, stands_for: dict[int, int], nodes: list[tuple[int, ...]], terms: int) -> int:
    """The node of a part; `stands_for` has the nodes for which terms stand."""
    children = _top(parts, number, stands_for, nodes, terms)
    if len(children) == 1:
        return children[0]
    nodes.append(children)
    return terms + len(nodes) - 1


def _top(parts: list[_Part], number: int, stands_for: dict[int, int], nodes: list[tuple[int, ...]], terms: int) -> tuple[int, ...]:
    """The children of the uppermost node of a part; of a part of one term that term alone."""
    part = parts[number]
    if part.left < 0:
        term = int(part.members[0])
        return (stands_for.get(term, term),)
    i = part.pair[0]
    before = stands_for.get(i)
    left = _emit(parts, part.left, stands_for, nodes, terms)
    children: tuple[int, ...] = (left, _emit(parts, part.right, stands_for, nodes, terms))
    if part.further >= 0:
        stands_for[i] = left
        children = (*_top(parts, part.further, stands_for, nodes, terms), children[1])
    if part.outside >= 0:
        nodes.append(children)
        stands_for[i] = terms + len(nodes) - 1
        children = _top(parts, part.outside, stands_for, nodes, terms)
    _restore(stands_for, i, before)
    return children


def _restore(stands_for: dict[int, int], term: int, before: int | None) -> None:
    if before is None:
        stands_for.pop(term, None)
    else:
        stands_for[term] = before


def _check(together: Together, tree: Tree, random: np.random.Generator) -> None:
    """Hold the tree against triples that were not chosen by it, and each of them against a second call."""
    if tree.leaves < 3:
        return
    triples = np.stack([random.choice(tree.leaves, 3, replace=False) for _ in range(_CHECKS)])
    found, again = together(triples), together(triples)
    if np.any(found != again):
        raise ProbeError(
            "There is no fixed tree: the same terms were added in another order in the next call (atomic additions, or a race). Ask the "
            "backend for its deterministic kernels and probe those."
        )
    inner = sizes_under(tree, triples[:, 1:])
    outer = sizes_under(tree, triples[:, :2])
    third = sizes_under(tree, triples[:, [0, 2]])
    alike = (inner == outer) & (inner == third)  # all three meet in one addition: a digit may be made or not
    wrong = np.flatnonzero(~alike & (found != ((inner < outer) & (inner < third))))
    if wrong.size:
        raise ProbeError(
            f"The triples belong to no one tree: terms {triples[wrong[0]].tolist()} are added otherwise than the tree "
            f"found says. The rows that "
            "were probed at once may be added differently: probe one at a time (rows=1)."
        )
