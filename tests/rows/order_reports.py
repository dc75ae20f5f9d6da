"""Reports of reduction-order analysis as they come out of the judge, made by hand: every verdict, and two traces together."""

from __future__ import annotations

import math
from typing import Final

from layerdiff.arithmetic.orders.analysis import Analysis, Fit, Hypothesis, OrderReport, Profile, TermRange, Test, Word
from layerdiff.arithmetic.orders.tree import Tree, chain

SITE: Final = "model.layers.0.mlp.down_proj/aten.mm.default#0"
MM: Final = "aten.mm.default"
BF16: Final = "[512, 4096] bf16 · [4096, 1024] bf16 -> [512, 1024] bf16"
FP32: Final = "[64, 1024] fp32 · [1024, 64] fp32 -> [64, 64] fp32"
NOTHING: Final = "Nothing needs doing: both are right, and a batch-invariant mode would make them the same bits."
LADDER: Final = (
    ("2", "no NaN or Inf that arithmetic does not make"),
    ("3", "the exact result, correctly rounded"),
    ("4", "error over sigma"),
    ("5", "orders at the declared accumulator, bit by bit"),
    ("6", "less precision, bit by bit"),
    ("7", "structure tests and fits"),
    ("8", "inside the deterministic bound of any order"),
)


def ladder(*asked: tuple[str, bool | None, float | None, float | None, str], decided: str) -> tuple[Test, ...]:
    """The ladder with what was asked: rung, whether it holds, measured, allowed, statement."""
    known = {rung: (holds, measured, allowed, said) for rung, holds, measured, allowed, said in asked}
    tests = []
    for rung, name in LADDER:
        holds, measured, allowed, said = known.get(rung, (None, None, None, ""))
        outcome = "not asked" if holds is None else "holds" if holds else "fails"
        tests.append(Test(rung, name, measured, allowed, outcome, rung == decided, said))  # type: ignore[arg-type]
    return tuple(tests)


def bell(total: int, width: float, center: float = 0.0) -> tuple[tuple[float, int], ...]:
    """Counts of a normal z in 49 bins from -12 to 12."""

    def below(z: float) -> float:
        return 0.5 * (1 + math.erf((z - center) / width / math.sqrt(2)))

    edges = [-12 + i * 24 / 49 for i in range(49)]
    return tuple((edge, round(total * (below(edge + 24 / 49) - below(edge)))) for edge in edges)


def stretches(share: float, noise: float, first: int, last: int) -> tuple[TermRange, ...]:
    """64 stretches of 4096 terms: `share` from `first` to `last`, nearly none elsewhere."""
    starts = range(0, 4096, 64)
    return tuple(TermRange(k, k + 64, share if first <= k < last else noise * math.sin(k) / 2, noise) for k in starts)


def chain_of_blocks(terms: int, size: int) -> Tree:
    """Blocks of `size` in chains, their sums in a chain."""
    nodes: list[tuple[int, ...]] = []
    sums = [chain(range(first, min(first + size, terms)), nodes, terms) for first in range(0, terms, size)]
    chain(sums, nodes, terms)
    return Tree(terms, tuple(nodes))


def split_k(side: str = "") -> Analysis:
    """split-K 4 among bf16 results: the runner-up misses 34 of the 2,735 that tell orders apart."""
    best = (
        Hypothesis("split-K 4", ("blocks of 1024",), "fp32", "declared", 2735, 2735, True),
        Hypothesis("split-K 4, parts in a tree", (), "fp32", "declared", 2701, 2735, False),
        Hypothesis("split-K 4, blocks of 64", (), "fp32", "declared", 61, 64, False),
        Hypothesis("split-K 4", (), "fused units of 16 products, 24 fractional bits", "unit", 55, 64, False),
        Hypothesis("split-K 8", (), "fp32", "declared", 52, 64, False),
        Hypothesis("blocks of 512", (), "fp32", "declared", 50, 64, False),
        Hypothesis("sequential", (), "fp32", "declared", 41, 64, False),
    )
    rest = tuple(Hypothesis(f"{2 + i} lanes added in order", (), "fp32", "declared", 38 - i, 64, False) for i in range(6))
    said = "split-K 4 makes every one of 2735 results that tell orders apart; the next candidate misses 34."
    return Analysis(
        SITE, MM, side, BF16, 4096, 512 * 1024, 512 * 1024, "all", "float32", "assumed", "order-exact", None, said,
        tests=ladder(
            ("2", True, 0.0, 0.0, "0 results are not finite"),
            ("3", False, 57, 0, "57 of 524,288 results are not the exact one, correctly rounded"),
            ("4", True, 0.43, 12.0, "zrms 0.0131 of 1.5, zmax 0.43 of 12"),
            ("5", True, 0.0, 1e-4, "split-K 4 makes all 2735 of 2735 results that tell orders apart; the next misses 34"),
            ("8", True, 3e-5, 1.0, "0 results lie outside it; the worst at 3e-05 of it"),
            decided="5",
        ),
        zrms=0.0131, zmax=0.43, chain=212.0, slope=-1.3e-9, slope_t=-0.7, histogram=bell(512 * 1024, 0.3), informative=2735,
        hypotheses=best + rest, tried=("185 × fp32", "36 × fused units of 4 to 32 products"),
        ranges=stretches(0.0, 2.2e-6, 0, 0),
        profiles=(
            Profile("row", tuple(1 / 64 + 0.002 * math.sin(i) for i in range(64)), False, "spread evenly over the rows"),
            Profile("column", tuple(1 / 64 + 0.003 * math.cos(2 * i) for i in range(64)), False, "spread evenly over the columns"),
        ),
        tree=chain_of_blocks(4096, 1024), advice=(NOTHING,),
    )  # fmt: skip


def own_mm(side: str = "") -> Analysis:
    """torch's own fp32 mm at K = 1024: five blocks of 192 and one of 64, in one chain each, with fused multiply-add."""
    best = (
        Hypothesis("probed tree of torch.mm", ("blocks of 192",), "fp32, fused multiply-add", "declared", 4096, 4096, True),
        Hypothesis("blocks of 192", (), "fp32, products rounded", "declared", 18, 64, False),
        Hypothesis("blocks of 256", (), "fp32, fused multiply-add", "declared", 9, 64, False),
    )
    return Analysis(
        "fc/aten.mm.default#0", MM, side, FP32, 1024, 4096, 4096, "all", "float32", "assumed", "order-exact", None,
        "The probed tree of torch.mm makes every one of 4096 results.",
        tests=ladder(
            ("2", True, 0.0, 0.0, "0 results are not finite"),
            ("3", False, 3911, 0, "3911 of 4096 results are not the exact one, correctly rounded"),
            ("4", True, 0.48, 1.5, "zrms 0.48 of 1.5, zmax 2.1 of 12"),
            ("5", True, 0.0, 1e-4, "probed tree of torch.mm makes all 4096 of 4096 results that tell orders apart"),
            decided="5",
        ),
        zrms=0.48, zmax=2.1, chain=236.0, slope=2e-9, slope_t=0.4, histogram=bell(4096, 0.48), informative=4096,
        hypotheses=best, tried=("1 probed tree", "185 × fp32, fused multiply-add", "185 × fp32, products rounded"),
        tree=chain_of_blocks(1024, 192),
    )  # fmt: skip


def dropped_split(side: str = "") -> Analysis:
    """The second of four parts never arrives: c is -1 from term 1024 to 2047."""
    rows = tuple(1 / 64 for _ in range(64))
    columns = tuple(0.9 if i == 17 else 0.1 / 63 for i in range(64))
    wide = tuple((-12 + i * 24 / 49, 260_000 if i in (0, 48) else 120 + 3 * i) for i in range(49))
    return Analysis(
        SITE, MM, side, BF16, 4096, 512 * 1024, 512 * 1024, "all", "float32", "the device file", "defect", "k-range-missing",
        "Terms [1024, 2048) of 4096 are missing (part 1 of 4, counted from 0: a split, or a rank's shard).",
        tests=ladder(
            ("2", True, 0.0, 0.0, "0 results are not finite"),
            ("3", False, 521_034, 0, "521,034 of 524,288 results are not the exact one, correctly rounded"),
            ("4", False, 3.7e5, 1.5, "zrms 3.7e+05 of 1.5, zmax 1.2e+06 of 12"),
            ("5", False, 0.9375, 1e-4, "the best, split-K 4, fp32, makes 4 of 64"),
            ("6", False, 0.953125, 1e-4, "the best, 4 partial sums rounded to bf16, makes 3 of 64"),
            ("7", True, -0.998, 0.006, "c is -0.998 over [1024, 2048), where noise makes 0.006"),
            ("8", False, 31.5, 1.0, "410000 results lie outside it; the worst at 31.5 of it"),
            decided="7",
        ),
        zrms=3.7e5, zmax=1.2e6, chain=2.4e14, slope=-0.251, slope_t=-90.1, histogram=wide, informative=2735,
        hypotheses=(
            Hypothesis("split-K 4", (), "fp32", "declared", 4, 64, False),
            Hypothesis("sequential", (), "fp32", "declared", 3, 64, False),
            Hypothesis("4 partial sums rounded to bf16", (), "", "lower", 3, 64, False),
        ),
        tried=("185 × fp32", "36 × fused units", "40 × bf16-partials"),
        ranges=stretches(-0.998, 0.0055, 1024, 2048),
        profiles=(
            Profile("row", rows, False, "spread evenly over the rows"),
            Profile("column", columns, True, "columns 272 to 287 hold 90% of it"),
        ),
        advice=("Look at how the parts of a split-K are added: part 1 of 4 is left out (a wait, an offset, an overwritten buffer).",),
    )  # fmt: skip


def bf16_partials(side: str = "") -> Analysis:
    """Four partial sums rounded to bf16 before they are added."""
    hypotheses = (
        Hypothesis("4 partial sums rounded to bf16, added in order", (), "", "lower", 16384, 16384, True),
        Hypothesis("4 partial sums rounded to bf16, added pairwise", (), "", "lower", 52, 64, False),
        Hypothesis("split-K 4", (), "fp32", "declared", 40, 64, False),
    )
    return Analysis(
        SITE, MM, side, BF16, 4096, 512 * 1024, 512 * 1024, "all", "float32", "assumed", "precision", "bf16-partials",
        "4 partial sums rounded to bf16 make every one of 16,384 results.",
        tests=ladder(
            ("2", True, 0.0, 0.0, "0 results are not finite"),
            ("3", False, 171_000, 0, "171,000 of 524,288 results are not the exact one, correctly rounded"),
            ("4", False, 7.7e3, 1.5, "zrms 7.7e+03 of 1.5, zmax 2.1e+04 of 12"),
            ("5", False, 0.375, 1e-4, "the best, split-K 4, fp32, makes 40 of 64"),
            ("6", True, 0.0, 1e-4, "4 partial sums rounded to bf16, added in order, make all 16384 of 16384 results"),
            decided="6",
        ),
        zrms=7.7e3, zmax=2.1e4, chain=1.4e9, histogram=bell(300_000, 9.0), informative=2735, hypotheses=hypotheses,
        tried=("185 × fp32", "36 × fused units", "40 × bf16-partials", "18 × bf16-accumulator"),
        advice=("torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False keeps partial sums in fp32.",),
    )  # fmt: skip


def no_order(side: str = "") -> Analysis:
    """Within sigma, and no tested order makes it."""
    hypotheses = tuple(
        Hypothesis(f"blocks of {size}", (), "fp32", "declared", 30 - i, 64, False) for i, size in enumerate((96, 64, 32, 16))
    )
    return Analysis(
        SITE, MM, side, BF16, 4096, 512 * 1024, 65_536, "64 of 512 rows, evenly spaced", "float32", "assumed", "order-consistent", None,
        "No tested order makes these bits, and the error is within what any order makes: zrms 0.11 of 1.5.",
        tests=ladder(
            ("2", True, 0.0, 0.0, "0 results are not finite"),
            ("3", False, 57, 0, "57 of 65,536 results are not the exact one, correctly rounded"),
            ("4", True, 4.9, 12.0, "zrms 0.11 of 1.5, zmax 4.9 of 12"),
            ("5", False, 0.53125, 1e-4, "the best, blocks of 96, fp32, makes 30 of 64"),
            decided="4",
        ),
        zrms=0.11, zmax=4.9, chain=31.0, slope=1e-9, slope_t=0.2, histogram=bell(65_536, 0.5), informative=640,
        hypotheses=hypotheses, tried=("185 × fp32", "36 × fused units"),
        advice=("`layerdiff probe` on the device finds the order of this kernel; hand it over with --tree.",),
    )  # fmt: skip


def too_few(side: str = "") -> Analysis:
    """Eight results tell orders apart: many orders make all of them, and that says nothing."""
    return Analysis(
        "lm_head/aten.mm.default#0", MM, side, "[4, 512] bf16 · [512, 256] bf16 -> [4, 256] bf16", 512, 1024, 1024, "all",
        "float32", "assumed", "order-consistent", None, "Too few results to name the order: 8 of 1024 tell orders apart, 20 are needed.",
        tests=ladder(
            ("2", True, 0.0, 0.0, "0 results are not finite"),
            ("3", False, 1, 0, "1 of 1024 results is not the exact one, correctly rounded"),
            ("4", True, 0.5, 12.0, "zrms 0.02 of 1.5, zmax 0.5 of 12"),
            ("5", False, 0.0, 1e-4, "too few results tell orders apart: 8 of 1024, 20 are needed"),
            decided="4",
        ),
        zrms=0.02, zmax=0.5, histogram=bell(1024, 0.1), informative=8,
        hypotheses=(
            Hypothesis("pairwise", ("in halves",), "fp32", "declared", 8, 8, False),
            Hypothesis("sequential", (), "fp32", "declared", 6, 8, False),
        ),
        tried=("120 × fp32",),
    )  # fmt: skip


def not_valid(side: str = "") -> Analysis:
    """A bf16 accumulator at K = 4096: no statistics hold, no order was found."""
    return Analysis(
        SITE, MM, side, BF16, 4096, 512 * 1024, 512 * 1024, "all", "bfloat16", "the device file", "not-comparable", None,
        "statistics not valid: K times u of bf16 is 16, and no tested order makes these bits.",
        tests=ladder(
            ("3", False, 400_000, 0, "400,000 of 524,288 results are not the exact one, correctly rounded"),
            ("4", None, None, None, "4096 terms times the unit of bfloat16 is 16, over 0.25: not valid"),
            ("5", False, 0.96875, 1e-4, "the best, sequential, bf16, makes 2 of 64"),
            decided="4",
        ),
        informative=500_000, hypotheses=(Hypothesis("sequential", (), "bf16", "declared", 2, 64, False),), tried=("185 × bf16",),
    )  # fmt: skip


def broken(side: str = "") -> Analysis:
    """Results that are not finite, from an operator whose name tries to write on the screen."""
    return Analysis(
        "model.\x1b[2J[bold]|<b>/vendor.mm#0", "vendor.mm\u202e", side, BF16, 4096, 8, 8, "all", "float32", "assumed", "broken", "overflow",
        "3 of 8 results are inf where the exact result is finite.",
        tests=ladder(("2", False, 3.0, 0.0, "3 results are not finite"), decided="2"),
        zrms=math.inf, zmax=math.inf,
    )  # fmt: skip


def attention(side: str = "") -> Analysis:
    """A fused attention: a class of ways that holds, and its scale fitted."""
    ways = (
        Hypothesis(
            "online softmax, tiles of 64", ("online softmax, tiles of 128",), "probabilities in bf16", "variant", 32_700, 32_768, True
        ),
        Hypothesis("one softmax", (), "probabilities in fp32", "variant", 30_100, 32_768, False),
    )
    return Analysis(
        "layers.0.self_attn/aten._scaled_dot_product_flash_attention.default#0", "aten._scaled_dot_product_flash_attention.default", side,
        "[1, 4, 128, 64] bf16 · [1, 4, 128, 64] bf16 · [1, 4, 128, 64] bf16 -> [1, 4, 128, 64] bf16", 128, 32_768, 32_768, "all",
        "float32", "assumed", "order-consistent", None, "128 additions at float32 make this error: zrms 0.484 of 1.5, zmax 3.41 of 12.",
        tests=ladder(("4", True, 0.484, 1.5, "zrms 0.484 of 1.5, zmax 3.41 of 12"), decided="4"),
        zrms=0.484, zmax=3.41, chain=25.0, hypotheses=ways,
        computed="online softmax in tiles of 64 or 128, probabilities in bf16: these results do not tell the tiles apart.",
        fits=(Fit("softmax scale", 0.124998, 2.1e-6, 0.125, True), Fit("temperature", 1.02, 0.001, 1.0, False)),
        advice=(NOTHING,),
    )  # fmt: skip


def single(analysis: Analysis) -> OrderReport:
    """What `layerdiff order TRACE SITE` says."""
    return OrderReport((analysis,), analysis.verdict, analysis.statement, advice=analysis.advice)


def pair(reference: Analysis, target: Analysis, verdict: Word, statement: str, **more: tuple[str, ...]) -> OrderReport:
    """What `layerdiff order REFERENCE TARGET SITE` says."""
    return OrderReport((reference, target), verdict, statement, **more)


def sequential(side: str = "reference") -> Analysis:
    """One chain, among bf16 results."""
    found = split_k(side)
    hypotheses = (
        Hypothesis("sequential", (), "fp32", "declared", 2735, 2735, True),
        Hypothesis("split-K 4", (), "fp32", "declared", 41, 64, False),
    )
    fields = {name: getattr(found, name) for name in Analysis.__dataclass_fields__}
    said = "sequential makes every one of 2735 results that tell orders apart; the next candidate misses 23."
    return Analysis(**fields | {"hypotheses": hypotheses, "statement": said, "tree": chain_of_blocks(4096, 4096)})


def other_order() -> OrderReport:
    """The reference in one chain, the target in four parts."""
    said = "The same products in another order: the reference adds them one after the other, the target in 4 parts."
    return pair(sequential(), split_k("target"), "order-exact", said, advice=(NOTHING,))


def defect_against_right() -> OrderReport:
    """The reference is right, the target leaves a part out; the reference makes its sum in two calls."""
    said = "The reference's sum is right in its own order; the target leaves out terms [1024, 2048) of 4096."
    target = dropped_split("target")
    composed = ("the reference adds it up in two calls: aten.mm.default#0, then aten.add.Tensor#1",)
    return pair(sequential(), target, "defect", said, composed=composed, advice=target.advice)


SINGLES: Final = {
    "split_k": split_k,
    "own_mm": own_mm,
    "dropped_split": dropped_split,
    "bf16_partials": bf16_partials,
    "no_order": no_order,
    "too_few": too_few,
    "not_valid": not_valid,
    "broken": broken,
    "attention": attention,
}
PAIRS: Final = {"other_order": other_order, "defect_against_right": defect_against_right}


def all_reports() -> dict[str, OrderReport]:
    """Every report, by name."""
    return {name: single(made()) for name, made in SINGLES.items()} | {name: made() for name, made in PAIRS.items()}
