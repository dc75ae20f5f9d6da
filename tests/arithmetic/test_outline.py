"""Trees as phrases; an outline holds the whole tree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.arithmetic.orders.outline import describe, outline
from layerdiff.arithmetic.orders.parting import partings
from layerdiff.arithmetic.orders.parts import How, Part, unfolded
from layerdiff.arithmetic.orders.tree import Tree, chain, pairs
from tests.arithmetic.trees import Nodes, at_random, backward, blocks, built, fused, lanes, pairwise, sequential


def swapped(leaves: int) -> Tree:
    """1, 0, 3, 2, 5, 4, ..."""
    return built(leaves, lambda nodes, n: chain([k ^ 1 for k in range(n)], nodes, n))


def lanes_in_blocks(nodes: Nodes, n: int) -> None:
    chain(
        [pairs([chain(range(b + lane, b + 64, 8), nodes, n) for lane in range(8)], nodes, n, apart=True) for b in range(0, n, 64)], nodes, n
    )


PHRASES = [
    (Tree(1, ()), "one term"),
    (sequential(64), "one chain of 64"),
    (backward(64), "one chain of 64, last term first"),
    (pairwise(1000), "1000 terms added in pairs of neighbours"),
    (pairwise(1024, apart=True), "1024 terms added in pairs of halves"),
    (blocks(1024, 192), "5 chains of 192 and one of 64, added in order"),
    (blocks(256, 128), "2 chains of 128, added in order"),
    (blocks(4096, 128, in_pairs=True), "32 chains of 128, added in pairs of neighbours"),
    (lanes(256, 8), "8 lanes of 32, added in pairs of halves"),
    (lanes(256, 16, in_order=True), "16 lanes of 16, added in order"),
    (fused(60, 8), "7 fused additions of 8 and one of 4, added in order"),
    (built(5, lambda nodes, n: nodes.append((0, 1, 2, 3, 4))), "5 terms added at once"),
    (built(65, lambda nodes, n: chain([64, *range(64)], nodes, n)), "one chain of 65, term 64 first"),
    (built(5, lambda nodes, n: chain([2, 3, 4, 0, 1], nodes, n)), "one chain of 5, around from term 2 up"),
    (built(4, lambda nodes, n: chain([2, 1, 0, 3], nodes, n)), "one chain of 4, around from term 2 down"),
    (swapped(64), "one chain of 64, each two of 64 the other way round"),
    (built(256, lanes_in_blocks), "4 sums of 64 (8 lanes of 8, added in pairs of halves), added in order"),
    (at_random(200, 1), "200 terms in no regular order, at most 15 additions each"),
]


@pytest.mark.parametrize(("tree", "phrase"), PHRASES, ids=[phrase for _, phrase in PHRASES])
def test_a_phrase_for_a_tree(tree: Tree, phrase: str) -> None:
    assert phrase == describe(tree)


def rebuilt(part: Part, nodes: Nodes, leaves: int) -> int:
    """The tree that an outline says, from its parts alone."""
    if part.how is How.TERM:
        return part.first
    items = unfolded(part)
    if part.how is How.CHAIN:
        total: list[int] = []
        for item in items:
            added = [rebuilt(one, nodes, leaves) for one in unfolded(item)] if item.how is How.JOINED else [rebuilt(item, nodes, leaves)]
            total += added
            if len(total) > 1:
                nodes.append(tuple(total))
                total = [leaves + len(nodes) - 1]
        return total[0]
    numbers = [rebuilt(item, nodes, leaves) for item in items]
    if part.how is How.FUSED:
        nodes.append(tuple(numbers))
        return leaves + len(nodes) - 1
    assert part.how in (How.PAIRS, How.HALVES)
    return pairs(numbers, nodes, leaves, apart=part.how is How.HALVES)


def again(tree: Tree) -> Tree:
    part = outline(tree)
    assert (tree.leaves, tree.height) == (part.terms, part.height)
    nodes: Nodes = []
    rebuilt(part, nodes, tree.leaves)
    return Tree(tree.leaves, tuple(nodes)).canonical


@pytest.mark.parametrize("tree", [tree for tree, _ in PHRASES], ids=[phrase for _, phrase in PHRASES])
def test_an_outline_holds_the_whole_tree(tree: Tree) -> None:
    assert tree == again(tree)


@settings(max_examples=150, deadline=None)
@given(leaves=st.integers(1, 60), seed=st.integers(0, 10**6), widest=st.sampled_from([2, 2, 4]))
def test_an_outline_of_any_tree_holds_it_whole(leaves: int, seed: int, widest: int) -> None:
    tree = at_random(leaves, seed, widest=widest)
    assert tree == again(tree)


@settings(max_examples=60, deadline=None)
@given(leaves=st.integers(2, 300), size=st.integers(1, 40), in_pairs=st.booleans())
def test_an_outline_of_blocks_holds_them(leaves: int, size: int, in_pairs: bool) -> None:
    tree = blocks(leaves, size, in_pairs=in_pairs)
    assert tree == again(tree)


def test_the_same_order_parts_nowhere() -> None:
    found = partings(blocks(100, 16), blocks(100, 16))
    assert (True, 99, 99, 99) == (found.same, found.shared, found.reference_sums, found.target_sums)


def test_where_two_orders_part() -> None:
    # chains of 8, added in order and in pairs: alike but for the sums of several chains
    found = partings(blocks(64, 8), blocks(64, 8, in_pairs=True))
    assert not found.same
    # 7 in each of the 8 chains, the first two and the first four chains' sums are in both: 8 * 7 + 2, and the whole
    assert (59, 63, 63) == (found.shared, found.reference_sums, found.target_sums)
    assert tuple(range(64)) == found.found[0].terms
    assert blocks(64, 8) == found.found[0].reference
    # and inside: the first four chains, as a chain and in pairs
    assert [tuple(range(32))] == [one.terms for one in found.found[1:]]
    assert pairwise(4) == partings(sequential(4), pairwise(4)).found[0].target


def test_trees_of_other_sizes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="4 terms against 5"):
        partings(sequential(4), sequential(5))
