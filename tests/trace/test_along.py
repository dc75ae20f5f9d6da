"""How the values of several steps are one: told by their shapes, put together and taken apart."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.trace.along import Along, InRow, Layout, from_json, in_json, ways

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shapes", "requests", "expected"),
    [
        ([(2, 5, 8), (2, 7, 8)], 2, [((2, 12, 8), Along(1))]),
        ([(10, 8), (14, 8)], 2, [((24, 8), Along(0, 2))]),
        ([(1, 4, 5, 8), (1, 4, 7, 8)], 1, [((1, 4, 12, 8), Along(2))]),
        ([(1, 1, 5, 5), (1, 1, 7, 12)], 1, [((1, 1, 12, 12), Along(2, 1, (5, 12)))]),
        ([(1, 1, 5, 9), (1, 1, 7, 16)], 1, [((1, 1, 12, 16), Along(2, 1, (9, 16)))]),
        ([(1, 5), (1, 12)], 1, [((1, 12), None)]),
        ([(1, 97), (1, 97)], 1, [((1, 97), None)]),
        ([(1, 5, 8), (1, 7, 9)], 1, []),
        ([(3, 8), (9, 8)], 1, []),
        ([(5, 8), (1, 7, 8)], 1, []),
    ],
    ids=["batch", "row", "heads", "mask", "mask-behind", "grown", "alike", "width", "expert", "dims"],
)
def test_shapes_say_how_values_are_one(shapes: list[Shape], requests: int, expected: list[tuple[Shape, Along | None]]) -> None:
    assert expected == [(way.shape, way.along) for way in ways(shapes, Layout(((requests, 5), (requests, 7))))]


def test_where_two_dimensions_may_be_the_tokens_both_are_ways() -> None:
    assert [(1, 8, 4, 8), (1, 4, 8, 8)] == [
        way.shape for way in ways([(1, 4, 4, 8)] * 2, Layout(((1, 4), (1, 4)))) if way.along is not None
    ]


def test_what_is_put_together_comes_apart() -> None:
    whole = np.arange(24 * 3).reshape(24, 3)
    parts = Along(0, 2).parts(whole, [(10, 3), (14, 3)])  # two requests, of 5 and 7 tokens
    assert [*range(5), *range(12, 17)] == (parts[0][:, 0] // 3).tolist()
    assert np.array_equal(whole, Along(0, 2).whole(parts))
    scores = [np.ones((1, 2, 2)), np.ones((1, 1, 3))]
    along = Along(1, 1, (2, 3))
    together = along.whole(scores, fill=-9.0)
    assert [[1, 1, -9], [1, 1, -9], [1, 1, 1]] == together[0].tolist()
    assert all(np.array_equal(one, other) for one, other in zip(scores, along.parts(together, [(1, 2, 2), (1, 1, 3)]), strict=True))


ORDER = (6, 0, 1, 7, 2, 3, 4, 5)
"""Of a step of three tokens of two requests, and one of two of one, as they lie in a row."""
OTHERS = Layout(((2, 3), (1, 2)), ORDER, (2, 1), (2, 0, 1))


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(2, 3, 8), (1, 2, 8)], InRow(1, True, ORDER)),
        ([(6, 8), (2, 8)], InRow(0, False, ORDER)),
        ([(2, 4, 3, 8), (1, 4, 2, 8)], InRow(2, True, ORDER)),
        ([(2, 1, 3, 3), (1, 1, 2, 5)], InRow(2, True, ORDER, (3, 5))),
        ([(2, 97), (1, 97)], InRow(0, False, OTHERS.order_of_ends)),
        ([(2, 1, 97), (1, 1, 97)], InRow(0, False, OTHERS.order_of_ends)),
        ([(2, 4, 7, 8), (1, 4, 7, 8)], None),
        ([(2, 3, 8), (1, 3, 8)], None),
    ],
    ids=["batch", "row", "heads", "mask", "last", "last alone", "cache", "width"],
)
def test_steps_with_other_requests_are_lines_of_a_row(shapes: list[Shape], expected: InRow | None) -> None:
    found = next((way for way in ways(shapes, OTHERS) if way.along is not None), None)
    assert expected == (None if found is None else found.along)
    if found is None or found.along is None:
        return
    how = from_json(in_json(found.along))
    assert how == found.along
    parts = [np.random.default_rng(0).standard_normal(shape) for shape in shapes]
    whole = how.whole(parts, fill=0.0)
    assert found.shape == whole.shape
    assert all(np.array_equal(one, other) for one, other in zip(parts, how.parts(whole, shapes), strict=True))


def test_lines_lie_in_their_order() -> None:
    ids = [np.array([[1, 2, 3], [4, 5, 6]]), np.array([[7, 8]])]
    assert [7, 1, 2, 8, 3, 4, 5, 6] == InRow(1, True, ORDER).whole(ids).tolist()


def test_lines_that_are_not_in_a_row_are_those_of_the_run() -> None:
    how, recorded = InRow(1, True, (2, 0)), np.arange(10, 14).reshape(2, 2, 1)
    (part,) = how.parts(np.array([[7], [5]]), [(2, 2, 1)], [recorded])
    assert [[[5], [11]], [[7], [13]]] == part.tolist()
    assert not how.is_all([(2, 2, 1)]) and InRow(0, False, (1, 0)).is_all([(2, 1)])
