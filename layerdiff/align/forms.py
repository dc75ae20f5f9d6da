"""Whether two shapes are forms of one thing: an engine has the tokens of a batch in one dimension, where a model has two."""

from __future__ import annotations

import math

Shape = tuple[int, ...]


def same_form(one: Shape, other: Shape) -> bool:
    """Whether values of these shapes hold the same elements in the same row-major order, by their shapes alone.

    They are equal but for dimensions of size 1, and for leading dimensions that one of them has as their product: [2, 20, 64]
    and [40, 64], or [1, 20] and [20]. Other ways to the same number of elements, a transposed one among them, are not.
    """
    if one == other:
        return True
    short, long = sorted((without_ones(one), without_ones(other)), key=len)
    if short == long:
        return True
    if not short:
        return False
    leading = len(long) - len(short) + 1
    return long[leading:] == short[1:] and math.prod(long[:leading]) == short[0]


def is_turned(one: Shape, other: Shape) -> bool:
    """Whether two shapes are the same but for the order of the first two dimensions: one run has the positions before the requests."""
    return len(one) > 2 and 1 < one[0] != one[1] > 1 and other == (one[1], one[0], *one[2:])


def leading_of(one: Shape, other: Shape) -> Shape:
    """The leading dimensions of one of two forms that the other has as one: (2, 20) of [2, 20, 64] and [40, 64]; none where it has none."""
    short, long = sorted((without_ones(one), without_ones(other)), key=len)
    return long[: len(long) - len(short) + 1] if len(long) > len(short) and same_form(one, other) else ()


def canonical(shape: Shape, tokens: Shape) -> Shape:
    """One shape for all forms: without dimensions of size 1, and with the leading `tokens` as one."""
    plain = without_ones(shape)
    if len(tokens) > 1 and plain[: len(tokens)] == tokens:
        return (math.prod(tokens), *plain[len(tokens) :])
    return plain


def without_ones(shape: Shape) -> Shape:
    """A shape without dimensions of size 1."""
    return tuple(size for size in shape if size != 1)
