"""Summation orders: emulated kernels with a known truth, what is missing or scaled, and harmless orders that nobody tries.

The truth is emulated here one addition at a time, by code that shares nothing with what identifies it; a fused multiply-add is done in
extended precision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from layerdiff.arithmetic.contracts.matmul import product_spread
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT32, Format, round_to
from layerdiff.arithmetic.orders.analysis import Analysis
from layerdiff.arithmetic.orders.examine import Sum, examine
from layerdiff.arithmetic.orders.summing import Product, of_product
from tests.arithmetic.orders import BUGS, ORDERS, chain, data, int8_weights, narrow_chain, tree

Matrix = np.ndarray
KINDS = ("gauss", "relu", "positive", "outliers")
_HARMLESS = ("identical", "order-exact", "order-consistent")


def analysed(x: Matrix, w: Matrix, y: Matrix, format: Format, accumulator: Format = FLOAT32) -> Analysis:
    """A product and what a kernel made of it."""
    exact = x @ w
    product = Product(x, w)
    summing = of_product(product, y.shape)
    assert summing is not None
    spread = product_spread(x, w, exact, accumulator)
    return examine(Sum("mm", "", summing, round_to(y, format), exact, spread, format, accumulator, product=product))


def fused_chain(x: Matrix, w: Matrix, begin: int = 0, end: int | None = None) -> Matrix:
    """One fp32 chain of fused multiply-adds."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    left, right = x.astype(np.longdouble), w.astype(np.longdouble)
    for k in range(begin, x.shape[1] if end is None else end):
        total = (left[:, k : k + 1] * right[k] + total).astype(np.float32)
    return total.astype(np.float64)


def in_parts(x: Matrix, w: Matrix, size: int) -> list[Matrix]:
    """Fused chains over ranges of `size` terms."""
    return [fused_chain(x, w, begin, min(begin + size, x.shape[1])) for begin in range(0, x.shape[1], size)]


def added(parts: list[Matrix], format: Format) -> Matrix:
    """In order, each sum rounded."""
    total = parts[0]
    for part in parts[1:]:
        total = round_to(total + part, format)
    return total


def ranks(x: Matrix, w: Matrix, count: int) -> Matrix:
    """What each of `count` ranks puts in: bf16, flattened [P, n]."""
    return np.stack([round_to(part, BFLOAT16).reshape(-1) for part in in_parts(x, w, x.shape[1] // count)])


def ring(parts: Matrix) -> Matrix:
    """A ring in bf16: chunk c is added from rank c + 1 on."""
    count, size = parts.shape
    made = np.empty(size)
    edges = np.linspace(0, size, count + 1).astype(int)
    for c in range(count):
        here = slice(edges[c], edges[c + 1])
        made[here] = added([parts[(c + 1 + i) % count, here] for i in range(count)], BFLOAT16)
    return made


def halves(parts: Matrix) -> Matrix:
    """Recursive halving in bf16."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = round_to(parts[:half] + parts[half:], BFLOAT16)
    return parts[0]


class Trial(NamedTuple):
    """One kernel with a known truth: what must be among the names that hold."""

    name: str
    rows: int
    columns: int
    inside: Format
    outside: Format
    kernel: Callable[[Matrix, Matrix], Matrix]
    truth: str
    terms: tuple[int, ...] = (256, 1024, 4096)


def _shaped(parts: Callable[[Matrix], Matrix], count: int) -> Callable[[Matrix, Matrix], Matrix]:
    return lambda x, w: parts(ranks(x, w, count)).reshape(x.shape[0], w.shape[1])


TRIALS = (
    Trial("sequential", 32, 32, FLOAT32, FLOAT32, chain, "sequential"),
    Trial("sequential, fused", 32, 32, FLOAT32, FLOAT32, fused_chain, "sequential"),
    Trial("reversed", 32, 32, FLOAT32, FLOAT32, ORDERS["reversed"], "reversed"),
    Trial("pairwise", 32, 32, FLOAT32, FLOAT32, ORDERS["pairwise"], "pairwise", (256, 1024)),
    Trial("split-K 4", 32, 32, FLOAT32, FLOAT32, ORDERS["split-4"], "split-K 4"),
    Trial("split-K 4, fused", 32, 32, FLOAT32, FLOAT32, lambda x, w: added(in_parts(x, w, x.shape[1] // 4), FLOAT32), "split-K 4"),
    Trial(
        "split-K 8 in a tree", 32, 32, FLOAT32, FLOAT32, lambda x, w: tree(in_parts(x, w, x.shape[1] // 8)), "split-K 8, parts in a tree"
    ),
    Trial("blocks of 64, fused", 32, 32, FLOAT32, FLOAT32, lambda x, w: added(in_parts(x, w, 64), FLOAT32), "blocks of 64"),
    Trial("blocks of 192, fused", 32, 32, FLOAT32, FLOAT32, lambda x, w: added(in_parts(x, w, 192), FLOAT32), "blocks of 192"),
    Trial("8 lanes in a tree", 32, 32, FLOAT32, FLOAT32, ORDERS["lanes-8"], "8 lanes added pairwise"),
    Trial("bf16 operands, blocks of 64", 32, 32, BFLOAT16, FLOAT32, lambda x, w: added(in_parts(x, w, 64), FLOAT32), "blocks of 64"),
    Trial("bf16 accumulator", 32, 32, BFLOAT16, BFLOAT16, narrow_chain, "a running sum in bf16"),
    Trial("4 bf16 partial sums, wide", 64, 32, BFLOAT16, BFLOAT16, BUGS["bf16 partials"], "4 partial sums in bf16, added in fp32"),
    Trial("4 ranks, ring in bf16", 64, 32, BFLOAT16, BFLOAT16, _shaped(ring, 4), "4 partial sums in bf16, added in a ring in 4 chunks"),
    Trial("4 ranks, halving in bf16", 64, 32, BFLOAT16, BFLOAT16, _shaped(halves, 4), "4 partial sums in bf16, added in halves in bf16"),
)
LARGE = (
    Trial(
        "split-K 4 to bf16",
        512,
        256,
        BFLOAT16,
        BFLOAT16,
        lambda x, w: added(in_parts(x, w, x.shape[1] // 4), FLOAT32),
        "split-K 4",
        (1024,),
    ),
    Trial("blocks of 64 to bf16", 512, 256, BFLOAT16, BFLOAT16, lambda x, w: added(in_parts(x, w, 64), FLOAT32), "blocks of 64", (1024,)),
)


def identified(quick: bool) -> Iterator[tuple[str, bool, str]]:
    """(trial, right, what was said): every order with every kind of data."""
    for trial in (*TRIALS, *(LARGE[:1] if quick else LARGE)):
        for terms in trial.terms[:1] if quick else trial.terms:
            for kind in KINDS[:2] if quick else KINDS:
                x, w = data(kind, trial.rows, trial.columns, terms, trial.inside, seed=terms + len(trial.name))
                found = analysed(x, w, trial.kernel(x, w), trial.outside)
                names = {name for one in found.winners for name in (one.name, *one.also)}
                share = min((one.share for one in found.winners), default=0.0)
                said = f"{found.verdict}: {', '.join(sorted(names)) or found.statement}"
                yield f"{trial.name}, {kind}, K {terms}", trial.truth in names and share >= 1 - 1e-4, said


def attributed(quick: bool) -> Iterator[tuple[str, bool, str]]:
    """(trial, right, what was said): ranges that are missing or doubled, small factors, int8 weights against a bf16 accumulator."""
    for seed in range(1 if quick else 4):
        for kind in KINDS:
            for format in (FLOAT32, BFLOAT16):
                x, w = data(kind, 128, 64, 1024, format, seed)
                for parts in (4, 8):
                    size, at = 1024 // parts, (seed + parts) % parts
                    here = slice(at * size, (at + 1) * size)
                    part = x[:, here] @ w[here]
                    for cause, y in (("k-range-missing", x @ w - part), ("k-range-doubled", x @ w + part)):
                        found = analysed(x, w, round_to(y, FLOAT32), format)
                        right = found.cause == cause and found.evidence.get("ranges") == [[here.start, here.stop]]
                        yield f"{cause} {at} of {parts}, {kind}, {format.name}", right, f"{found.cause} {found.evidence.get('ranges')}"
                found = analysed(x, w, chain(x, w) * 1.0001, format)
                yield (
                    f"factor 1 + 1e-4, {kind}, {format.name}",
                    found.verdict in ("defect", "unexplained"),
                    f"{found.verdict} {found.cause}",
                )
            x, w = data(kind, 128, 128, 512, BFLOAT16, seed)
            found = analysed(x, w, chain(x, int8_weights(w)), FLOAT32)
            yield f"int8 weights, {kind}", found.cause in ("int8-weights", "weight-side"), f"{found.verdict} {found.cause}"
            found = analysed(x, w, narrow_chain(x, w), FLOAT32)
            yield f"bf16 accumulator, {kind}", found.cause == "bf16-accumulator", f"{found.verdict} {found.cause}"


def harmless(count: int) -> Iterator[tuple[str, bool, str]]:
    """(trial, right, what was said): random orders, and torch's kernels at several shapes and thread counts. None may be convicted."""
    random = np.random.default_rng(0)
    threads = torch.get_num_threads()
    try:
        for number in range(count):
            kind = KINDS[number % 4]
            terms = int(random.choice([64, 100, 256, 768, 1024, 2048]))
            rows, columns = int(random.integers(16, 64)), int(random.integers(16, 64))
            inside = (FLOAT32, BFLOAT16)[number // 4 % 2]
            outside = FLOAT32 if inside is FLOAT32 else (FLOAT32, BFLOAT16)[number // 8 % 2]
            x, w = data(kind, rows, columns, terms, inside, seed=number)
            way = number % 3
            if way == 0:
                name, y = "shuffled chain", chain(x, w, random.permutation(terms))
            elif way == 1:
                name, y = "random tree", _random_tree(x, w, random)
            else:
                torch.set_num_threads(int(random.choice([1, 2, 4])))
                name = f"torch, {torch.get_num_threads()} threads"
                left, right = torch.from_numpy(x), torch.from_numpy(w)
                dtype = torch.float32 if outside is FLOAT32 else torch.bfloat16
                y = (left.to(dtype) @ right.to(dtype)).double().numpy()
            found = analysed(x, w, y, outside)
            yield (
                f"{name}, {kind}, K {terms}, {inside.name} to {outside.name}",
                found.verdict in _HARMLESS,
                f"{found.verdict}: {found.statement}",
            )
    finally:
        torch.set_num_threads(threads)


def _random_tree(x: Matrix, w: Matrix, random: np.random.Generator) -> Matrix:
    """A random binary tree over chains of random lengths, in fp32."""
    edges = np.sort(random.choice(np.arange(1, x.shape[1]), size=min(x.shape[1] - 1, int(random.integers(1, 24))), replace=False))
    parts = [part.astype(np.float32) for part in (chain(a, b) for a, b in zip(np.split(x, edges, 1), np.split(w, edges, 0), strict=True))]
    while len(parts) > 1:
        i, j = random.choice(len(parts), 2, replace=False)
        both = parts[i] + parts[j]
        parts = [part for k, part in enumerate(parts) if k not in (i, j)] + [both]
    return parts[0].astype(np.float64)


def orders(quick: bool) -> list[str]:
    """All three tables. Returns what is wrong."""
    wrong: list[str] = []
    print("\n## Orders\n\n| trials | right | of | seconds |\n| --- | ---: | ---: | ---: |")
    for name, trials in (
        ("order or its class named", identified(quick)),
        ("range, factor or side named", attributed(quick)),
        ("harmless order not convicted", harmless(100 if quick else 1000)),
    ):
        begin = time.perf_counter()
        done = list(trials)
        wrong += [f"{trial}: {said}" for trial, right, said in done if not right]
        print(f"| {name} | {sum(right for _, right, _ in done)} | {len(done)} | {time.perf_counter() - begin:.0f} |", flush=True)
    return wrong
