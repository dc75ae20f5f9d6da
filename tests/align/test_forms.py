"""Shapes that are forms of one thing."""

from __future__ import annotations

import pytest

from layerdiff.align.forms import Shape, canonical, leading_of, same_form


@pytest.mark.parametrize(
    ("one", "other", "expected", "leading"),
    [
        ((2, 20, 64), (2, 20, 64), True, ()),
        ((1, 20, 64), (20, 64), True, ()),
        ((20,), (1, 20), True, ()),
        ((2, 20, 64), (40, 64), True, (2, 20)),
        ((40,), (2, 20), True, (2, 20)),
        ((2, 3, 20, 64), (6, 20, 64), True, (2, 3)),
        ((2, 1, 20, 64), (40, 64), True, (2, 20)),
        ((1, 1), (), True, ()),
        ((2, 20, 64), (20, 2, 64), False, ()),
        ((2, 20, 64), (2, 1280), False, ()),
        ((64, 2, 20), (64, 40), False, ()),
        ((2, 20, 64), (39, 64), False, ()),
        ((4, 16), (16, 4), False, ()),
        ((2, 0), (0,), True, (2, 0)),
        ((3,), (), False, ()),
    ],
)
def test_forms_of_one_thing(one: Shape, other: Shape, expected: bool, leading: Shape) -> None:
    assert (expected, expected) == (same_form(one, other), same_form(other, one))
    assert leading == leading_of(one, other) == leading_of(other, one)


def test_one_shape_for_all_forms() -> None:
    assert (40, 64) == canonical((2, 20, 64), (2, 20)) == canonical((40, 64), (2, 20)) == canonical((2, 1, 20, 64), (2, 20))
    assert (20, 2, 64) == canonical((20, 2, 64), (2, 20))
    assert (20, 64) == canonical((1, 20, 64), ())
