"""Trees found from nothing but sums, against the trees that made them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, round_to
from layerdiff.arithmetic.orders.probing import ProbeError, Scale, find_tree, random_pairs, scale_for, sizes_under, tree_of_sizes
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.arithmetic.orders.triples import find_tree_of_triples
from tests.arithmetic.trees import adds_as, at_random, backward, blocks, fused, lanes, pairwise, sequential

KNOWN = {
    "sequential": sequential(257),
    "backward": backward(257),
    "pairwise": pairwise(257),
    "halves": pairwise(256, apart=True),
    "8 lanes": lanes(260, 8),
    "16 lanes in order": lanes(256, 16, in_order=True),
    "blocks of 32": blocks(250, 32),
    "blocks in pairs": blocks(256, 32, in_pairs=True),
    "split-K 4": blocks(256, 64),
    "fused 4": fused(130, 4),
    "fused 8": fused(256, 8),
    "fused 16": fused(250, 16),
    "two terms": sequential(2),
    "one term": Tree(1, ()),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("rows", [1, 64])
def test_a_known_tree_is_found(name: str, rows: int) -> None:
    tree = KNOWN[name]
    assert tree == find_tree(adds_as(tree), tree.leaves, scale_for("float32"), rows=rows)


@settings(max_examples=60, deadline=None)
@given(leaves=st.integers(1, 90), seed=st.integers(0, 10**6), widest=st.sampled_from([2, 2, 3, 5, 9]))
def test_a_random_tree_is_found(leaves: int, seed: int, widest: int) -> None:
    tree = at_random(leaves, seed, widest=widest)
    assert tree == find_tree(adds_as(tree), leaves, scale_for("float32"), rows=16)


@pytest.mark.parametrize(
    ("tree", "most"), [(sequential(1024), 1200), (backward(1024), 2300), (blocks(1024, 192), 2100), (pairwise(256), 1400)]
)
def test_few_probes_are_needed(tree: Tree, most: int) -> None:
    """All pairs of 1024 terms would be half a million."""
    probes, sums = 0, adds_as(tree)

    def counting(values: np.ndarray) -> np.ndarray:
        nonlocal probes
        probes += len(values)
        return sums(values)

    assert tree == find_tree(counting, tree.leaves, scale_for("float32"), rows=64)
    assert probes < most


@pytest.mark.parametrize("name", ["sequential", "blocks of 32", "pairwise", "fused 8"])
def test_a_bfloat16_result_counts_to_256_and_serves_for_more_terms(name: str) -> None:
    tree = {"sequential": sequential(600), "blocks of 32": blocks(700, 32), "pairwise": pairwise(513), "fused 8": fused(600, 8)}[name]
    sums = adds_as(tree)
    assert tree == find_tree(lambda values: round_to(sums(values), BFLOAT16), tree.leaves, scale_for("bfloat16"), rows=64)


def test_an_accumulator_of_bfloat16_is_found_out_and_probed_all_the_same() -> None:
    tree = blocks(600, 100)
    assert tree == find_tree(adds_as(tree, BFLOAT16), 600, scale_for("bfloat16", "float32"), rows=64)


@pytest.mark.parametrize("accumulator", [FLOAT32, FLOAT16])
def test_float16(accumulator: object) -> None:
    """Its smallest number beside 2^15: lost in an accumulator of 24 bits, and in one of 11."""
    tree, seen = lanes(512, 8), []
    sums = adds_as(tree, accumulator)  # type: ignore[arg-type]

    def narrow(values: np.ndarray) -> np.ndarray:
        seen.append(values)
        return round_to(sums(values), FLOAT16)

    assert tree == find_tree(narrow, 512, scale_for("float16"), rows=64)
    for values in seen[:10]:
        assert np.array_equal(values, round_to(values, FLOAT16))


def test_a_mean_of_float16() -> None:
    tree = blocks(300, 64)
    sums = adds_as(tree)
    mean = scale_for("float16", factor=300.0)
    assert tree == find_tree(lambda values: round_to(sums(values) / 300.0, FLOAT16), 300, mean, rows=64)


def test_float64() -> None:
    tree = blocks(200, 48)
    assert tree == find_tree(adds_as(tree, FLOAT64), 200, scale_for("float64"), rows=8)


def refused(sums: Callable[[np.ndarray], np.ndarray], terms: int = 40, scale: Scale | None = None) -> str:
    with pytest.raises(ProbeError) as refusal:
        find_tree(sums, terms, scale or scale_for("float32"), rows=8)
    return str(refusal.value)


def test_an_order_that_changes_from_call_to_call_is_no_tree() -> None:
    trees = iter(range(10**6))
    assert "There is no fixed tree" in refused(lambda values: adds_as(at_random(40, next(trees)))(values))


def test_an_exact_accumulator_has_no_order_to_see() -> None:
    from math import fsum

    assert "Nothing is lost beside" in refused(lambda values: np.asarray([fsum(row) for row in values]))


def test_float64_behind_float16_is_too_wide_to_see() -> None:
    assert "Nothing is lost beside 32768" in refused(lambda values: values.sum(axis=1), scale=scale_for("float16"))


def test_what_is_no_sum_is_refused() -> None:
    assert "no plain sum" in refused(lambda values: values.sum(axis=1) * 1.5)
    assert "no plain sum" in refused(lambda values: values.max(axis=1))


def test_small_numbers_taken_for_zero() -> None:
    tree = sequential(40)
    flushed = refused(lambda values: adds_as(tree)(np.where(np.abs(values) < 2.0**-14, 0.0, values)), scale=scale_for("float16"))
    assert "takes numbers that small for zero" in flushed


def test_rows_that_are_added_differently() -> None:
    """Odd rows of a call in another order than even ones."""
    one, other = adds_as(sequential(40)), adds_as(pairwise(40))

    def mixed(values: np.ndarray) -> np.ndarray:
        odd = np.arange(len(values)) % 2 == 1
        return np.where(odd, other(values), one(values))

    with pytest.raises(ProbeError, match="rows=1"):
        find_tree(mixed, 40, scale_for("float32"), rows=8)
    assert sequential(40) == find_tree(mixed, 40, scale_for("float32"), rows=1)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int32", "bool", "nonsense"])
def test_dtypes_that_cannot_be_probed(dtype: str) -> None:
    with pytest.raises(ProbeError, match=f"A sum of {dtype} cannot be probed"):
        scale_for(dtype)


def test_too_many_probes() -> None:
    with pytest.raises(ProbeError, match="More than 100 probes"):
        find_tree(adds_as(sequential(200)), 200, scale_for("float32"), most_probes=100)


def test_sizes_under_common_ancestors() -> None:
    # ((0 + 1) + (2 + 3)) + 4
    tree = Tree(5, ((0, 1), (2, 3), (5, 6), (7, 4)))
    assert [2, 4, 4, 5, 2] == sizes_under(tree, np.asarray([[0, 1], [1, 2], [3, 0], [4, 2], [3, 2]])).tolist()


def test_random_pairs_are_of_two_terms() -> None:
    for terms in (2, 3, 1000):
        pairs = random_pairs(terms, 500, 3)
        assert not np.any(pairs[:, 0] == pairs[:, 1])
        assert 0 <= pairs.min() and pairs.max() < terms


@settings(max_examples=40, deadline=None)
@given(leaves=st.integers(2, 24), seed=st.integers(0, 10**6), widest=st.sampled_from([2, 4]))
def test_a_tree_from_all_sizes(leaves: int, seed: int, widest: int) -> None:
    tree = at_random(leaves, seed, widest=widest)
    pairs = np.argwhere(np.ones((leaves, leaves), bool) & ~np.eye(leaves, dtype=bool))
    sizes = np.ones((leaves, leaves), np.int64)
    sizes[pairs[:, 0], pairs[:, 1]] = sizes_under(tree, pairs)
    assert tree == tree_of_sizes(sizes)


def test_sizes_that_belong_to_no_tree() -> None:
    with pytest.raises(ProbeError, match="no tree"):
        tree_of_sizes(np.full((4, 4), 2))
    with pytest.raises(ProbeError, match="no tree"):
        tree_of_sizes(np.asarray([[1, 2, 3], [2, 1, 2], [3, 2, 1]]))


def by_rounding(tree: Tree, *, cut: bool = True) -> Callable[[np.ndarray], np.ndarray]:
    """Which of two of three terms meet first, from sums of positive terms in fp32."""
    sums = adds_as(tree, cut=cut)

    def together(triples: np.ndarray) -> np.ndarray:
        values = np.zeros((len(triples), tree.leaves))
        at = np.arange(len(triples))
        values[at, triples[:, 0]] = 1.0
        values[at[:, None], triples[:, 1:]] = 0.4 * 2.0**-23
        found: np.ndarray = sums(values) > 1.0
        return found

    return together


@pytest.mark.parametrize("name", ["sequential", "backward", "pairwise", "8 lanes", "blocks of 32", "two terms", "one term"])
def test_a_known_tree_is_found_from_triples(name: str) -> None:
    tree = KNOWN[name]
    assert tree == find_tree_of_triples(by_rounding(tree), tree.leaves)


@settings(max_examples=40, deadline=None)
@given(leaves=st.integers(3, 60), seed=st.integers(0, 10**6))
def test_a_random_tree_is_found_from_triples(leaves: int, seed: int) -> None:
    tree = at_random(leaves, seed)
    assert tree == find_tree_of_triples(by_rounding(tree), leaves)


def test_fused_nodes_are_found_from_triples() -> None:
    tree = fused(64, 8)
    assert tree == find_tree_of_triples(by_rounding(tree, cut=False), 64)


def test_triples_that_show_nothing() -> None:
    with pytest.raises(ProbeError, match="last digit does not show"):
        find_tree_of_triples(lambda triples: np.zeros(len(triples), bool), 20)
    with pytest.raises(ProbeError, match="accumulator is wider"):
        find_tree_of_triples(lambda triples: np.ones(len(triples), bool), 20)


def test_triples_that_change() -> None:
    draw = np.random.default_rng(0)
    with pytest.raises(ProbeError):
        find_tree_of_triples(lambda triples: draw.random(len(triples)) < 0.4, 60)
