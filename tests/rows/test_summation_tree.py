"""Trees drawn: what is said, and that it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layerdiff.arithmetic.orders.tree import Tree, chain, pairs
from layerdiff.rows.order.probe import probe_lines, side_by_side
from layerdiff.rows.order.summation_tree import tree_lines
from tests.arithmetic.test_probe_file import PROBE
from tests.arithmetic.trees import at_random, backward, blocks, built, fused, lanes, pairwise, sequential


def drawn(tree: Tree, width: int = 80) -> str:
    return "\n".join(line.plain for line in tree_lines(tree, width))


def test_chains_with_a_ruler() -> None:
    assert (
        drawn(blocks(1024, 192))
        == """\
1024 terms: 5 chains of 192 and one of 64, added in order
at most 196 additions between a term and the sum

0             192           384           576           768             1023
├──────A──────┼──────B──────┼──────C──────┼──────D──────┼──────E──────┼─F──┤
sum = ((((A + B) + C) + D) + E) + F

sum of 1024: 6 parts added in order
├─ 5 × chain of 192             0–191, 192–383, … 768–959
└─ chain of 64                  960–1023"""
    )


def test_lanes_with_their_letters() -> None:
    assert (
        drawn(lanes(4096, 8))
        == """\
4096 terms: 8 lanes of 512, added in pairs of halves
at most 514 additions between a term and the sum

terms ABCDEFGH ABCDEFGH ABCDEFGH ABCDEFGH ABCDEFGH ABCDEFGH …
sum = ((A + E) + (C + G)) + ((B + F) + (D + H))

sum of 4096: 8 parts added in pairs of halves
└─ 8 × chain of 512             0, 8, … 4088; 1, 9, … 4089; … 7, 15, … 4095"""
    )


@pytest.mark.parametrize(
    ("tree", "formula"),
    [
        (sequential(4096), "(((t0 + t1) + t2) + …) + t4095"),
        (backward(4096), "(((t4095 + t4094) + t4093) + …) + t0"),
        (pairwise(4096), "(((t0 + t1) + (t2 + t3)) + ((t4 + t5) + (t6 + t7))) + …"),
        (pairwise(4, apart=True), "(t0 + t2) + (t1 + t3)"),
        (blocks(4096, 128, in_pairs=True), "(((P1 + P2) + (P3 + P4)) + ((P5 + P6) + (P7 + P8))) + …"),
        (fused(24, 8), "round(round(round(A) + B) + C)"),
        (built(3, lambda nodes, n: nodes.append((0, 1, 2))), "t0 ⊕ t1 ⊕ t2, rounded once"),
    ],
)
def test_formulas(tree: Tree, formula: str) -> None:
    assert f"sum = {formula}" in drawn(tree).split("\n")


LARGE = {
    "lanes": lanes(4096, 16),
    "blocks": blocks(4096, 192),
    "small blocks": blocks(4096, 16),
    "split-K": blocks(4096, 1024),
    "pairwise": pairwise(4096),
    "fused": fused(4096, 16),
    "random": at_random(4096, 3),
    "wide": at_random(2000, 3, widest=9),
    "lanes in blocks": built(
        4096,
        lambda nodes, n: chain(
            [pairs([chain(range(b + lane, b + 256, 8), nodes, n) for lane in range(8)], nodes, n) for b in range(0, n, 256)], nodes, n
        ),
    ),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("width", [24, 120])
def test_a_large_tree_fits(name: str, width: int) -> None:
    lines = tree_lines(LARGE[name], width)
    assert max(line.width for line in lines) <= width
    assert len(lines) <= 40


def test_a_probe_says_what_and_where() -> None:
    text = [line.plain for line in probe_lines(PROBE)]
    assert text[:6] == [
        "mm [64, 100] [100, 64] float32",
        "x86_64 AVX512 (cpu), torch 2.13.0, 2 threads",
        "6 of 4096 outputs are added in orders that are not shown",
        "products are added in one rounding (FMA)",
        "40 calls, 900 probes, 0.125 s",
        "",
    ]
    assert "4000 of 4096 outputs, such as [0, 0]" in text
    assert "90 of 4096 outputs, such as [63, 0]" in text
    assert "one chain of 100" in text
    assert text[-1] == "6 outputs at the border: no tree"


def test_names_of_a_probe_are_made_visible() -> None:
    strange = replace(PROBE, operator="a\x1b[31mb", device_name="x\u202ey", notes=("\x07",))
    text = "".join(line.plain for line in probe_lines(strange))
    assert text.isprintable()


def test_two_probes_side_by_side() -> None:
    other = replace(PROBE, trees=(replace(PROBE.trees[0], tree=sequential(100)),))
    lines = side_by_side(PROBE, other)
    assert max(line.width for line in lines) <= 80
    text = [line.plain for line in lines]
    # blocks of 32, 32, 32, 4: the first chain is in both (31 sums); then only the sums of the first 64, 96 and all terms
    assert "≠ another order: 34 partial sums in common, of 99 and 99" in text
    assert "they part at the sum of terms 0–99" in text
    assert "  first  3 chains of 32 and one of 4, added in order" in text
    assert "  second one chain of 100" in text
    assert "= the same order" == side_by_side(PROBE, PROBE)[-1].plain


def test_probes_of_other_sizes_side_by_side() -> None:
    other = replace(PROBE, trees=(replace(PROBE.trees[0], tree=sequential(50)),))
    assert "Sums of 100 and of 50 terms: no order in common." == side_by_side(PROBE, other)[-1].plain
