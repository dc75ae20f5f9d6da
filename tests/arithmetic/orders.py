"""Products of matrices added up in an accumulator, in many orders: emulated kernels with a known truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT32, Format, round_to

Matrix = np.ndarray


def data(kind: str, rows: int, columns: int, terms: int, format: Format, seed: int) -> tuple[Matrix, Matrix]:
    """Operands on the grid of `format`: gauss, relu (half zero), positive, outliers (some channels 50 times)."""
    random = np.random.default_rng(seed)
    x, w = random.standard_normal((rows, terms)), random.standard_normal((terms, columns)) / np.sqrt(terms)
    if kind == "relu":
        x = np.maximum(x, 0.0)
    elif kind == "positive":
        x, w = np.abs(x), np.abs(w)
    elif kind == "outliers":
        x[:, random.choice(terms, max(1, terms // 64), replace=False)] *= 50.0
    return round_to(x, format), round_to(w, format)


def _products(x: Matrix, w: Matrix, order: np.ndarray) -> list[Matrix]:
    return [np.multiply.outer(x[:, k], w[k]) for k in order]


def chain(x: Matrix, w: Matrix, order: np.ndarray | None = None) -> Matrix:
    """One fp32 chain over K, products rounded."""
    order = np.arange(x.shape[1]) if order is None else order
    left, right = x.astype(np.float32), w.astype(np.float32)
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in order:
        total += left[:, k : k + 1] * right[k]
    return total.astype(np.float64)


def tree(parts: list[Matrix]) -> Matrix:
    """Pairwise in fp32."""
    level = [x.astype(np.float32) for x in parts]
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + ([level[-1]] if len(level) % 2 else [])
    return level[0].astype(np.float64)


def split(parts: int) -> Callable[[Matrix, Matrix], Matrix]:
    """`parts` chains over equal ranges of K, added up in order."""

    def made(x: Matrix, w: Matrix) -> Matrix:
        size = x.shape[1] // parts
        total = np.zeros((x.shape[0], w.shape[1]), np.float32)
        for begin in range(0, x.shape[1], size):
            total += chain(x[:, begin : begin + size], w[begin : begin + size]).astype(np.float32)
        return total.astype(np.float64)

    return made


def lanes(count: int) -> Callable[[Matrix, Matrix], Matrix]:
    """`count` interleaved chains and a tree."""
    return lambda x, w: tree([chain(x[:, i::count], w[i::count]) for i in range(count)])


def pairwise(x: Matrix, w: Matrix) -> Matrix:
    return tree([np.multiply.outer(x[:, k], w[k]) for k in range(x.shape[1])])


def shuffled(seed: int) -> Callable[[Matrix, Matrix], Matrix]:
    return lambda x, w: chain(x, w, np.random.default_rng(seed).permutation(x.shape[1]))


ORDERS: dict[str, Callable[[Matrix, Matrix], Matrix]] = {
    "sequential": chain,
    "reversed": lambda x, w: chain(x, w, np.arange(x.shape[1])[::-1]),
    "pairwise": pairwise,
    "split-2": split(2),
    "split-4": split(4),
    "blocks-32": lambda x, w: split(x.shape[1] // 32)(x, w),
    "lanes-8": lanes(8),
    "shuffled": shuffled(0),
}


def narrow_chain(x: Matrix, w: Matrix, format: Format = BFLOAT16) -> Matrix:
    """One chain over K whose running sum is rounded to `format`."""
    total = np.zeros((x.shape[0], w.shape[1]))
    for k in range(x.shape[1]):
        total = round_to(total + np.multiply.outer(x[:, k], w[k]), format)
    return total


def int8_weights(w: Matrix, group: int = 0) -> Matrix:
    """Symmetric int8, a step for every column (and every `group` of rows)."""
    blocks = w.reshape(-1, group or w.shape[0], w.shape[1])
    step = np.abs(blocks).max(1, keepdims=True) / 127.0
    return (np.rint(blocks / step) * step).reshape(w.shape)


BUGS: dict[str, Callable[[Matrix, Matrix], Matrix]] = {
    "missing an eighth": lambda x, w: chain(x[:, x.shape[1] // 8 :], w[x.shape[1] // 8 :]),
    "missing a term": lambda x, w: chain(x[:, 1:], w[1:]),
    "scale 1.01": lambda x, w: chain(x, w) * 1.01,
    "scale 1 + 1e-4": lambda x, w: chain(x, w) * 1.0001,
    "int8 weights": lambda x, w: chain(x, int8_weights(w)),
    "bf16 weights": lambda x, w: chain(x, round_to(w, BFLOAT16)),
    "bf16 accumulator": narrow_chain,
    "bf16 partials": lambda x, w: sum(
        round_to(chain(x[:, a : a + x.shape[1] // 4], w[a : a + x.shape[1] // 4]), BFLOAT16) for a in range(0, x.shape[1], x.shape[1] // 4)
    ),
}
FP32 = FLOAT32
