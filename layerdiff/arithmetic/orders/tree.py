"""`Tree`: the summation tree of one sum: which partial sums are added to which.

Addition commutes and does not associate: two trees are the same order where they are equal up to the order of each
node's children. A node of more than two children is one fused addition, of a unit that aligns all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from layerdiff.errors import LayerdiffError

MOST_LEAVES: Final = 1 << 20
"""Terms of a tree that is read from a file."""


class TreeError(LayerdiffError):
    """What was given is no summation tree."""


@dataclass(frozen=True)
class Tree:
    """A summation tree over terms 0 .. leaves - 1.

    Attributes:
        leaves: how many terms, at least 1.
        nodes: the partial sums in an order of evaluation: each the numbers of its children; number n < leaves is a term, number
            leaves + i is nodes[i], i below that of the node itself. The last node is the whole sum; no node where leaves is 1.
    """

    leaves: int
    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Raises TreeError where this is no tree over all terms."""
        used = [0] * (self.leaves + len(self.nodes))
        for i, children in enumerate(self.nodes):
            if len(children) < 2:
                raise TreeError(f"Node {i} of a summation tree has {len(children)} children; it needs two at least.")
            for child in children:
                if not 0 <= child < self.leaves + i:
                    raise TreeError(f"Node {i} of a summation tree adds number {child}, which does not come before it.")
                used[child] += 1
        if self.leaves < 1 or any(count != 1 for count in used[:-1]) or used[-1:] != [0]:
            raise TreeError("A summation tree must add each term and each partial sum once.")

    @cached_property
    def height(self) -> int:
        """The most additions that one term goes through."""
        depth = [0] * (self.leaves + len(self.nodes))
        for i, children in enumerate(self.nodes):
            depth[self.leaves + i] = 1 + max(depth[child] for child in children)
        return depth[-1]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many terms each number holds: 1 for the terms, then one for each node."""
        found = [1] * self.leaves
        for children in self.nodes:
            found.append(sum(found[child] for child in children))
        return tuple(found)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The smallest term of each number."""
        found = list(range(self.leaves))
        for children in self.nodes:
            found.append(min(found[child] for child in children))
        return tuple(found)

    @cached_property
    def canonical(self) -> Tree:
        """The same order, numbered in one way: children by their smallest term, nodes depth first. Equal for equal orders."""
        order: list[int] = []
        stack = [(self.leaves + len(self.nodes) - 1, False)] if self.nodes else []
        while stack:
            number, done = stack.pop()
            if number < self.leaves:
                continue
            if done:
                order.append(number)
                continue
            stack.append((number, True))
            stack += [(child, False) for child in sorted(self.nodes[number - self.leaves], key=self.first.__getitem__, reverse=True)]
        new = {number: self.leaves + i for i, number in enumerate(order)}
        nodes = tuple(
            tuple(new.get(child, child) for child in sorted(self.nodes[number - self.leaves], key=self.first.__getitem__))
            for number in order
        )
        return Tree(self.leaves, nodes)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` reads them."""
        return {"leaves": self.leaves, "nodes": [list(children) for children in self.nodes]}


def from_json(data: Any) -> Tree:
    """A tree from what `to_json` made. Raises TreeError where it is none."""
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list) or type(data.get("leaves")) is not int:
        raise TreeError("A summation tree is an object with `leaves` (a number) and `nodes` (a list of lists of numbers).")
    leaves, nodes = data["leaves"], data["nodes"]
    if not 1 <= leaves <= MOST_LEAVES or len(nodes) >= max(leaves, 2):
        raise TreeError(
            f"A summation tree of {leaves} terms and {len(nodes)} nodes; at most {MOST_LEAVES} terms, and fewer nodes, are read."
        )
    if not all(isinstance(children, list) and all(type(child) is int for child in children) for children in nodes):
        raise TreeError("A node of a summation tree is a list of numbers.")
    return Tree(leaves, tuple(tuple(children) for children in nodes))


def chain(numbers: Sequence[int], nodes: list[tuple[int, ...]], leaves: int) -> int:
    """Add `numbers` in order, appending to `nodes`; returns the number of their sum."""
    total = numbers[0]
    for number in numbers[1:]:
        nodes.append((total, number))
        total = leaves + len(nodes) - 1
    return total


def pairs(numbers: Sequence[int], nodes: list[tuple[int, ...]], leaves: int, *, apart: bool = False) -> int:
    """Add neighbours, then neighbours of those, appending to `nodes`; with `apart` i and i + half instead."""
    level = list(numbers)
    while len(level) > 1:
        half = (len(level) + 1) // 2
        couples = [(i, i + half) for i in range(half)] if apart else [(2 * i, 2 * i + 1) for i in range(half)]
        above = []
        for a, b in couples:
            if b < len(level):
                nodes.append((level[a], level[b]))
                above.append(leaves + len(nodes) - 1)
            else:
                above.append(level[a])
        level = above
    return level[0]
