"""A sum replayed in one order, bit for bit, for many results at once.

Products of operands of 24 bits or fewer are exact in float64, and so is a sum in float64 up to its last rounding: a fused multiply-add
in float32 is emulated by both and one more rounding, which is wrong only where the first rounding makes a tie (below 2^-28 a step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT32, FLOAT64, Format, round_to, truncate_to
from layerdiff.arithmetic.orders.order import ABSENT, How, Order
from layerdiff.arithmetic.orders.summing import Taken
from layerdiff.arithmetic.orders.tree import Tree

Array = NDArray[np.float64]
Begin = Literal["none", "inside", "outside"]
AT_ONCE: Final = 1 << 21
"""Products that are laid out at once."""


class Unit(NamedTuple):
    """A unit that adds `width` products and the running sum at once: all are aligned to the largest exponent, cut to `bits` fractional
    bits, added exactly, and the sum is cut to the accumulator's format (MMA-Sim, Xie et al. 2025, arXiv 2511.10909)."""

    width: int
    bits: int


@dataclass(frozen=True)
class Arithmetic:
    """How each addition is done.

    Attributes:
        format: what every partial sum is rounded to.
        fused: whether a product enters its addition unrounded (a fused multiply-add), or is rounded to `format` first.
        operands: a format that the operands are cut or rounded to before they are multiplied; None for as they are.
        through: a format that each sum is rounded to before it is rounded to `format`; None for none.
        unit: the fused unit; None for one addition at a time.
        begin: where the sum begins with what is added to the whole: inside the first chain, or outside, before the sums of the first
            step are added; "none" leaves it out.
    """

    format: Format
    fused: bool = True
    operands: Callable[[Array], Array] | None = None
    through: Format | None = None
    unit: Unit | None = None
    begin: Begin = "none"

    def rounded(self, x: Array) -> Array:
        """One rounding of a sum."""
        if self.through is not None:
            x = round_to(x, self.through)
        return round_to(x, self.format)


def replay(order: Order | Tree, arithmetic: Arithmetic, taken: Taken) -> Array:
    """The sums, in the accumulator's format, float64 [m]."""
    left, right = taken.left, taken.right
    if arithmetic.operands is not None:
        left, right = arithmetic.operands(left), None if right is None else arithmetic.operands(right)
    count, terms = left.shape
    start = taken.start if arithmetic.begin != "none" else None
    made = np.empty(count)
    step = max(1, AT_ONCE // max(terms, 1))
    for begin in range(0, count, step):
        here = slice(begin, begin + step)
        some = Taken(left[here], None if right is None else right[here], None if start is None else start[here])
        made[here] = _replay(order, arithmetic, some)
    return made


def _replay(order: Order | Tree, arithmetic: Arithmetic, taken: Taken) -> Array:
    with np.errstate(all="ignore"):
        if isinstance(order, Tree):
            return _tree(order, arithmetic, taken)
        if arithmetic.unit is not None:
            return _units(order, arithmetic, arithmetic.unit, taken)
        return _layout(order, arithmetic, taken)


def _products(taken: Taken) -> Array:
    """[K + 1, m]: the products, and a row of zeros that absent terms point to."""
    left = taken.left if taken.right is None else taken.left * taken.right
    return np.concatenate([left.T, np.zeros((1, left.shape[0]))])


def _layout(order: Order, arithmetic: Arithmetic, taken: Taken) -> Array:
    products = _products(taken)
    native = arithmetic.format is FLOAT32 and arithmetic.through is None
    if not arithmetic.fused:
        products = products.astype(np.float32) if native else arithmetic.rounded(products)
    layout = order.layout
    absent = bool(np.any(layout == ABSENT))
    layout = np.moveaxis(layout, -1, 0)
    if not absent and layout.ndim == 1 and np.array_equal(layout, np.arange(layout.size)):
        laid: NDArray[Any] = products[:-1]
    else:
        laid = products[layout]  # ABSENT is the last row
    begin = taken.start if arithmetic.begin == "inside" or not order.steps[1:] else None
    first: How
    first, *others = order.steps
    if first == "chain":
        level = _chain(laid, arithmetic, begin, native)
    else:
        level = _in_tree(arithmetic.rounded(laid) if not native else laid.astype(np.float32), first, arithmetic, native)
        if begin is not None:
            at = (0,) * (level.ndim - 1)
            level[at] = arithmetic.rounded(level[at].astype(np.float64) + begin)
    begin = taken.start if arithmetic.begin == "outside" else None
    for how in others:
        level = np.moveaxis(level, level.ndim - 2, 0)
        level = _chain(level, arithmetic, begin, native) if how == "chain" else _in_tree(level, how, arithmetic, native)
        begin = None
    return level.astype(np.float64)


def _chain(laid: NDArray[Any], arithmetic: Arithmetic, begin: Array | None, native: bool) -> NDArray[Any]:
    """The sums along the first axis, in order; the numbers of float64 are taken unrounded."""
    head: NDArray[Any] = laid[0].astype(np.float64)
    if begin is not None:
        head[(0,) * (head.ndim - 1)] += arithmetic.rounded(begin)
    if native:
        running = head.astype(np.float32)
        if laid.dtype == np.float32:
            for row in laid[1:]:
                running += row
            return running
        exact = np.empty(running.shape)
        for row in laid[1:]:
            np.add(running, row, out=exact)
            np.copyto(running, exact, casting="same_kind")
        return running
    total = arithmetic.rounded(head)
    for row in laid[1:]:
        total = arithmetic.rounded(total + row)
    return total


def _in_tree(level: NDArray[Any], how: How, arithmetic: Arithmetic, native: bool) -> NDArray[Any]:
    """The sums along the first axis, neighbours first, or i and i + half."""
    while level.shape[0] > 1:
        half = (level.shape[0] + 1) // 2
        below = level.shape[0] - half
        a, b = (level[:half], level[half:]) if how == "halves" else (level[::2], level[1::2])
        above = a.copy()
        if native:
            above[:below] += b
        else:
            above[:below] = arithmetic.rounded(above[:below] + b)
        level = above
    return np.array(level[0])


def _tree(tree: Tree, arithmetic: Arithmetic, taken: Taken) -> Array:
    products = _products(taken)
    leaves = tree.leaves
    sums: list[Array | None] = []

    def number(child: int, *, unrounded: bool) -> Array:
        if child >= leaves:
            found = sums[child - leaves]
            assert found is not None
            sums[child - leaves] = None  # each is added once
            return found
        return products[child] if unrounded and arithmetic.fused else arithmetic.rounded(products[child])

    for children in tree.nodes:
        if len(children) > 2:
            sums.append(_at_once([number(child, unrounded=True) for child in children], arithmetic))
            continue
        one, other = children if children[1] < leaves else children[::-1]  # of two products the first is rounded, the other fused
        both = number(one, unrounded=False) + number(other, unrounded=True)
        sums.append(arithmetic.rounded(both))
    total = sums[-1] if sums else arithmetic.rounded(products[0])
    assert total is not None
    if taken.start is not None:
        total = arithmetic.rounded(total + taken.start)
    return total


def _at_once(numbers: list[Array], arithmetic: Arithmetic) -> Array:
    """One fused addition of several numbers, by the unit where one is known, else exact and rounded once."""
    if arithmetic.unit is None:
        return arithmetic.rounded(np.sum(numbers, axis=0))
    stack = np.stack(numbers)
    return truncate_to(_aligned(stack, np.max(_exponents(stack), axis=0), arithmetic.unit.bits), arithmetic.format)


def _exponents(x: Array) -> NDArray[np.int64]:
    """floor(log2(abs(x))); far below everything for zero."""
    return np.where(x == 0, -5000, np.frexp(x)[1] - 1)


def _aligned(numbers: Array, largest: NDArray[np.int64], bits: int) -> Array:
    """The sum over the first axis of numbers cut to `bits` fractional bits below the largest exponent; exact."""
    quantum = np.ldexp(1.0, np.maximum(largest - bits, -1074))
    return np.asarray(np.trunc(numbers / quantum).sum(0) * quantum)


def _units(order: Order, arithmetic: Arithmetic, unit: Unit, taken: Taken) -> Array:
    """The chains of the first step in a fused unit; further steps one addition at a time, rounded to nearest."""
    products = _products(taken)
    left, right = taken.left, taken.right
    scale = _exponents(left) + (0 if right is None else _exponents(right))  # a product's exponent before it is normalised
    exponents = np.concatenate([scale.T, np.full((1, left.shape[0]), -10000)])
    layout = order.layout
    length = -(-layout.shape[-1] // unit.width) * unit.width
    wide = np.full((*layout.shape[:-1], length), ABSENT, np.intp)
    wide[..., : layout.shape[-1]] = layout
    groups = np.moveaxis(wide.reshape(*layout.shape[:-1], -1, unit.width), (-2, -1), (0, 1))
    total = np.zeros((*layout.shape[:-1], left.shape[0]))
    if taken.start is not None:
        total[(0,) * (total.ndim - 1)] = arithmetic.rounded(taken.start)
    for group in groups:
        at_once = np.concatenate([products[group], total[None]])
        largest = np.maximum(np.max(exponents[group], axis=0), _exponents(total))
        total = truncate_to(_aligned(at_once, largest, unit.bits), arithmetic.format)
    level: NDArray[Any] = total
    after = Arithmetic(FLOAT64 if arithmetic.format is FLOAT64 else FLOAT32)
    for how in order.steps[1:]:
        level = np.moveaxis(level, level.ndim - 2, 0)
        level = _chain(level, after, None, False) if how == "chain" else _in_tree(level, how, after, False)
    return level.astype(np.float64)


class Replayed(NamedTuple):
    """Sums made by a hypothesis, and where it is certain of them: [m] and [m]."""

    values: Array
    certain: NDArray[np.bool_]
