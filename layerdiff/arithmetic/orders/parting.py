"""`parting`: where two summation trees over the same terms part: the sums of the same terms that they cut in different ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerdiff.arithmetic.orders.tree import Tree


@dataclass(frozen=True)
class Parting:
    """A sum that both trees form, of other parts each.

    Attributes:
        terms: the terms that it holds, ascending.
        reference, target: how each tree adds them, over terms numbered 0 .. len(terms) - 1 in the same order.
    """

    terms: tuple[int, ...]
    reference: Tree
    target: Tree


@dataclass(frozen=True)
class Partings:
    """What two trees have in common.

    Attributes:
        shared: partial sums of the same terms, the whole sum among them.
        reference_sums, target_sums: partial sums of each.
        found: where they part, the sum of most terms first, those inside another (but the whole sum) left out; none where they are the
            same order.
    """

    shared: int
    reference_sums: int
    target_sums: int
    found: tuple[Parting, ...]

    @property
    def same(self) -> bool:
        """Whether both are the same order."""
        return not self.found


def partings(reference: Tree, target: Tree, *, most: int = 16) -> Partings:
    """Compare two trees of as many terms; at most `most` places are returned, the largest.

    Raises ValueError where the numbers of terms differ.
    """
    if reference.leaves != target.leaves:
        raise ValueError(f"{reference.leaves} terms against {target.leaves}")
    names = _names(reference.leaves)
    of_reference, of_target = _sums(reference, names), _sums(target, names)
    by_name = {name: i for i, name in enumerate(of_target)}
    shared = [(i, by_name[name]) for i, name in enumerate(of_reference) if i >= reference.leaves and name in by_name]
    apart = []
    for i, j in shared:
        mine = {of_reference[child] for child in reference.nodes[i - reference.leaves]}
        if mine != {of_target[child] for child in target.nodes[j - target.leaves]}:
            apart.append((i, j))
    apart.sort(key=lambda one: (-reference.sizes[one[0]], reference.first[one[0]]))
    found: list[Parting] = []
    covered: set[int] = set()
    for i, j in apart:
        if reference.first[i] in covered or len(found) >= most:
            continue
        terms = _terms(reference, i)
        if len(terms) < reference.leaves:
            covered.update(terms)
        found.append(Parting(terms, subtree(reference, i), subtree(target, j)))
    return Partings(len(shared), len(reference.nodes), len(target.nodes), tuple(found))


def _names(leaves: int) -> list[int]:
    """A random 128-bit number a term: sums of different terms have different sums of them, but for one case in 2^100."""
    raw = np.random.default_rng(20_481).integers(0, 1 << 63, (leaves, 2), dtype=np.int64)
    return [(int(high) << 63) | int(low) for high, low in raw.tolist()]


def _sums(tree: Tree, names: list[int]) -> list[int]:
    found = list(names)
    for children in tree.nodes:
        found.append(sum(found[child] for child in children))
    return found


def _terms(tree: Tree, number: int) -> tuple[int, ...]:
    found: list[int] = []
    waiting = [number]
    while waiting:
        one = waiting.pop()
        if one < tree.leaves:
            found.append(one)
        else:
            waiting += tree.nodes[one - tree.leaves]
    return tuple(sorted(found))


def subtree(tree: Tree, number: int) -> Tree:
    """The tree of one partial sum, its terms numbered from 0 in their order."""
    new = {term: i for i, term in enumerate(_terms(tree, number))}
    count = len(new)
    nodes: list[tuple[int, ...]] = []
    inside: set[int] = set()
    waiting = [number] if number >= tree.leaves else []
    while waiting:
        one = waiting.pop()
        inside.add(one)
        waiting += [child for child in tree.nodes[one - tree.leaves] if child >= tree.leaves]
    for one in sorted(inside):
        nodes.append(tuple(new[child] for child in tree.nodes[one - tree.leaves]))
        new[one] = count + len(nodes) - 1
    return Tree(count, tuple(nodes)).canonical
