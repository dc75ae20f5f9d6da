"""Orders: layouts and their trees, bits against sums done one addition at a time, and the race on kernels with a known truth."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, round_to
from layerdiff.arithmetic.orders.cascade import cascade, cascades
from layerdiff.arithmetic.orders.order import Order, block_lanes, blocks, lanes, orders, sequential, split, split_blocks
from layerdiff.arithmetic.orders.ranks import rank_sum
from layerdiff.arithmetic.orders.replaying import Arithmetic, Unit, replay
from layerdiff.arithmetic.orders.summing import Taken
from layerdiff.arithmetic.orders.tree import Tree, TreeError, from_json
from tests.arithmetic.orders import BUGS, ORDERS, chain, data, narrow_chain
from tests.evaluate.orders import added, analysed, fused_chain, halves, in_parts, ranks, ring

F32 = np.float32


def taken(count: int, terms: int, seed: int = 0, *, start: bool = False) -> Taken:
    random = np.random.default_rng(seed)
    left, right = (random.standard_normal((count, terms)).astype(F32).astype(float) for _ in range(2))
    return Taken(left, right, random.standard_normal(count).astype(F32).astype(float) if start else None)


def by_hand(tree: Tree, numbers: list[F32]) -> F32:
    """A tree over float32 numbers, one addition at a time."""
    sums = list(numbers)
    for a, b in tree.nodes:
        sums.append(F32(sums[a] + sums[b]))
    return sums[-1]


@pytest.mark.parametrize("terms", [16, 50, 257])
def test_a_layout_adds_what_its_tree_says(terms: int) -> None:
    some = taken(3, terms)
    plain = Taken(some.left, None, None)
    for order in orders(terms):
        tree = order.tree()
        made = replay(order, Arithmetic(FLOAT32, fused=False), plain)
        assert [by_hand(tree, [F32(x) for x in row]) for row in some.left] == made.tolist(), order.name
        assert made.tolist() == replay(tree, Arithmetic(FLOAT32, fused=False), plain).tolist(), order.name


def test_names_of_one_order_are_one_order() -> None:
    known = {order.name: order for order in orders(256)}
    assert "blocks of 64" in known["split-K 4"].also
    assert len({order.tree().canonical.nodes for order in orders(256)}) == len(orders(256))
    assert sequential(8).key == blocks(8, 8).key != lanes(8, 2).key


def test_trees_of_known_orders_are_written_out() -> None:
    assert ((0, 1), (4, 2), (5, 3)) == sequential(4).tree().nodes
    assert ((0, 1), (2, 3), (4, 5)) == split(4, 2).tree().canonical.nodes
    assert ((0, 2), (1, 3), (4, 5)) == lanes(4, 2).tree().canonical.nodes
    assert 7 == sequential(8).tree().height
    assert 3 == Order("pairwise", np.arange(8), ("pairs",)).tree().height
    assert 256 // 4 // 32 - 1 + 31 + 3 == split_blocks(256, 4, 32).tree().height


@pytest.mark.parametrize(
    "data",
    [
        {"leaves": 3, "nodes": [[0, 1]]},
        {"leaves": 3, "nodes": [[0, 1], [0, 2]]},
        {"leaves": 2, "nodes": [[0, 2]]},
        {"leaves": 2, "nodes": [[0]]},
        {"leaves": 1 << 40, "nodes": []},
        {"leaves": 2, "nodes": [[0, -1]]},
        {"leaves": 2, "nodes": [[0, True]]},
        {"nodes": []},
        [],
    ],
)
def test_what_is_no_tree_is_refused(data) -> None:
    with pytest.raises(TreeError):
        from_json(data)


def test_a_fused_multiply_add_rounds_once() -> None:
    a = F32(1 + 2**-12)  # its square needs 25 bits
    some = Taken(np.array([[1.0, a]]), np.array([[-1.0, a]]), None)
    exact = float(a) * float(a) - 1.0
    assert [exact] == replay(sequential(2), Arithmetic(FLOAT32), some).tolist()
    assert [float(F32(a * a) - F32(1.0))] == replay(sequential(2), Arithmetic(FLOAT32, fused=False), some).tolist() != [exact]


def test_a_start_goes_where_it_is_said_to() -> None:
    some = taken(64, 12, start=True)
    products = [[float(F32(p)) for p in row] for row in some.left * some.right]

    def chained(numbers: list[float]) -> float:
        total = F32(numbers[0])
        for x in numbers[1:]:
            total = F32(total + F32(x))
        return float(total)

    inside = [chained([s, *row]) for s, row in zip(some.start, products, strict=True)]
    outside = [chained([s, *(chained(row[i : i + 4]) for i in (0, 4, 8))]) for s, row in zip(some.start, products, strict=True)]
    assert inside == replay(sequential(12), Arithmetic(FLOAT32, fused=False, begin="inside"), some).tolist()
    assert outside == replay(blocks(12, 4), Arithmetic(FLOAT32, fused=False, begin="outside"), some).tolist()


def test_a_fused_unit_cuts_what_it_aligns_and_what_it_hands_on() -> None:
    # 2^0 and three terms of 3 * 2^-26: with 25 fractional bits each is cut to 2^-25, and the sum, to 24 bits, to 1.
    some = Taken(np.array([[1.0, 3.0, 3.0, 3.0]]), np.array([[1.0, 2.0**-26, 2.0**-26, 2.0**-26]]), None)
    assert [1.0] == replay(sequential(4), Arithmetic(FLOAT32, unit=Unit(4, 25)), some).tolist()
    wide = Taken(np.array([[1.0, 3.0, 3.0, 3.0]]), np.array([[1.0, 2.0**-24, 2.0**-24, 2.0**-24]]), None)
    # three terms of 3 * 2^-24 are exact to 25 bits: 1 + 9 * 2^-24, cut to 24 bits, is 1 + 4 * 2^-23
    assert [1.0 + 4 * 2.0**-23] == replay(sequential(4), Arithmetic(FLOAT32, unit=Unit(4, 25)), wide).tolist()


def test_lanes_inside_blocks_are_laid_out_by_lane() -> None:
    order = block_lanes(16, 8, 4, "chain")
    assert [[[0, 4], [1, 5], [2, 6], [3, 7]], [[8, 12], [9, 13], [10, 14], [11, 15]]] == order.layout.tolist()


def test_a_cascade_hands_its_first_level_up_every_sixteen_terms() -> None:
    tree = cascade(40)
    sizes = tree.sizes[40:]
    assert [*range(2, 17), *range(2, 17), 32, *range(2, 9), 40] == list(sizes)
    assert {"a cascade", "a cascade in 4 lanes, 4 at a time"} <= {name for name, _ in cascades(100)}


def test_a_ring_is_found_chunk_by_chunk_and_a_tree_as_a_whole() -> None:
    random = np.random.default_rng(3)
    parts = round_to(random.standard_normal((4, 4096)), BFLOAT16)
    found = rank_sum(parts, ring(parts), BFLOAT16)
    assert () == found.ways
    assert [1024, 2048, 3072, 4096] == pytest.approx([one.last for one in found.stretches], abs=12)
    assert ["in a ring from rank 1 in bf16", "in a ring from rank 2 in bf16", "in a ring from rank 3 in bf16", "in rank order in bf16"] == [
        one.ways[0] for one in found.stretches
    ]
    assert ("by recursive halving in bf16",) == rank_sum(parts, halves(parts), BFLOAT16).ways
    wide = round_to(added(list(parts), FLOAT32), BFLOAT16)
    assert "in rank order in fp32" in rank_sum(parts, wide, BFLOAT16).ways
    assert not rank_sum(parts, round_to(parts[:3].sum(0), BFLOAT16), BFLOAT16).explained


@pytest.mark.parametrize("kind", ["gauss", "positive"])
@pytest.mark.parametrize(
    ("truth", "kernel"),
    [
        ("sequential", fused_chain),
        ("split-K 4", ORDERS["split-4"]),
        ("8 lanes added pairwise", ORDERS["lanes-8"]),
        ("blocks of 96", lambda x, w: added(in_parts(x, w, 96), FLOAT32)),
    ],
)
def test_the_order_of_an_fp32_product_is_named(truth: str, kernel, kind: str) -> None:
    x, w = data(kind, 24, 24, 384, FLOAT32, seed=5)
    found = analysed(x, w, kernel(x, w), FLOAT32)
    assert ("order-exact", 1.0) == (found.verdict, found.winners[0].share)
    assert truth in {name for one in found.winners for name in (one.name, *one.also)}
    assert found.runner_up is not None and found.runner_up.share < 0.9
    assert found.tree is not None and found.tree.leaves == 384


def test_the_order_of_a_bf16_result_needs_many_results_and_says_so() -> None:
    x, w = data("gauss", 512, 256, 256, BFLOAT16, seed=7)
    y = ORDERS["split-4"](x, w)
    found = analysed(x, w, y, BFLOAT16)
    assert "order-exact" == found.verdict and "split-K 4" in {name for one in found.winners for name in (one.name, *one.also)}
    few = analysed(x[:16], w[:, :16], y[:16, :16], BFLOAT16)
    assert few.verdict in ("identical", "order-consistent") and few.informative < 20
    assert "too few results tell orders apart" in next(test.statement for test in few.tests if test.rung == "5")


@pytest.mark.parametrize(
    ("cause", "name", "kernel"),
    [
        ("bf16-accumulator", "a running sum in bf16", narrow_chain),
        ("bf16-partials", "4 partial sums in bf16, added in fp32", BUGS["bf16 partials"]),
        ("bf16-partials", "4 partial sums in bf16, added in halves in bf16", lambda x, w: halves(ranks(x, w, 4)).reshape(len(x), -1)),
        ("bf16-partials", "4 partial sums in bf16, added in a ring in 4 chunks", lambda x, w: ring(ranks(x, w, 4)).reshape(len(x), -1)),
    ],
)
def test_less_precision_is_reproduced(cause: str, name: str, kernel) -> None:
    x, w = data("outliers", 48, 32, 256, BFLOAT16, seed=9)
    found = analysed(x, w, kernel(x, w), BFLOAT16)
    assert ("precision", cause) == (found.verdict, found.cause)
    assert name in [one.name for one in found.winners]
    assert "6" == next(test.rung for test in found.tests if test.decided)


def test_one_wrong_result_is_not_hidden_by_an_order_that_makes_the_others() -> None:
    x, w = data("gauss", 256, 128, 128, FLOAT32, seed=2)
    y = fused_chain(x, w)
    y[200, 77] += 3e-3 * np.abs(y).max()
    assert analysed(x, w, y, FLOAT32).verdict in ("defect", "unexplained")
    narrow = round_to(BUGS["bf16 partials"](x, w), FLOAT16)
    narrow[100, 5] += np.abs(narrow).max()
    assert analysed(x, w, narrow, FLOAT16).verdict in ("defect", "unexplained")


@pytest.mark.parametrize("kind", ["gauss", "positive", "relu", "outliers"])
@pytest.mark.parametrize(("sign", "cause"), [(-1, "k-range-missing"), (1, "k-range-doubled")])
def test_a_split_that_is_missing_or_doubled_is_found_with_its_place(kind: str, sign: int, cause: str) -> None:
    x, w = data(kind, 64, 48, 256, FLOAT32, seed=4)
    found = analysed(x, w, chain(x, w) + sign * chain(x[:, 64:128], w[64:128]), FLOAT32)
    assert ("defect", cause, [[64, 128]]) == (found.verdict, found.cause, found.evidence["ranges"])
    assert (1, 4) == (found.evidence["part"], found.evidence["parts"])


def test_terms_in_no_equal_part_are_found_too() -> None:
    x, w = data("positive", 64, 48, 256, FLOAT32, seed=4)
    found = analysed(x, w, chain(x, w) - chain(x[:, 70:101], w[70:101]), FLOAT32)
    assert ("k-range-missing", [[70, 101]]) == (found.cause, found.evidence["ranges"]) and "part" not in found.evidence


def test_a_part_with_a_factor_of_its_own_is_found_with_the_factor() -> None:
    x, w = data("gauss", 64, 48, 256, FLOAT32, seed=4)
    found = analysed(x, w, chain(x, w) + 0.25 * chain(x[:, 192:], w[192:]), FLOAT32)
    assert ("k-range-scaled", [[192, 256]]) == (found.cause, found.evidence["ranges"])
    assert 1.25 == pytest.approx(found.evidence["factor"], rel=1e-5)


def test_a_tree_of_a_probe_is_tried_by_its_name() -> None:
    random = np.random.default_rng(1)
    nodes: list[tuple[int, int]] = []
    level = list(range(96))
    while len(level) > 1:  # a random tree that no grid has
        i, j = sorted(random.choice(len(level), 2, replace=False))
        nodes.append((level[i], level[j]))
        level = [x for at, x in enumerate(level) if at not in (i, j)] + [96 + len(nodes) - 1]
    tree = Tree(96, tuple(nodes))
    x, w = data("gauss", 16, 16, 96, FLOAT32, seed=1)
    y = np.array(
        [[by_hand(tree, [F32(F32(a) * F32(b)) for a, b in zip(x[i], w[:, j], strict=True)]) for j in range(16)] for i in range(16)]
    )
    from layerdiff.arithmetic.contracts.matmul import product_spread
    from layerdiff.arithmetic.orders.examine import Sum, examine
    from layerdiff.arithmetic.orders.summing import Product, of_product

    product = Product(x, w)
    summing = of_product(product, y.shape)
    assert summing is not None
    one = Sum("mm", "", summing, y.astype(float), x @ w, product_spread(x, w, x @ w, FLOAT32), FLOAT32, FLOAT32, product=product)
    assert () == examine(one).winners
    assert ["my kernel"] == [won.name for won in examine(one, (("my kernel", tree),)).winners]
