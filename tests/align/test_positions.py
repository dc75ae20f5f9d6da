"""Values of two calls side by side: by role and position, and what one run hands over by name, the other by place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from layerdiff.align.forms import Shape
from layerdiff.align.positions import Position, pair_positions
from layerdiff.sides import Both

NAMED: list[Position] = [(0, "in.hidden_states"), (0, "in.cos"), (0, "in.sin"), (1, "out")]


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(34, 64), (17, 8), (17, 8), (34, 64)], [(3, 3), (0, 0)]),  # two of one form: which is which is not known
        ([(2, 17, 64), (1, 17, 16), (17, 8), (2, 17, 64)], [(3, 3), (0, 0), (1, 1), (2, 2)]),
        ([(5, 64), (17, 8), (17, 8), (2, 17, 64)], [(3, 3)]),
    ],
)
def test_what_is_handed_over_by_place_is_known_by_its_form(shapes: list[Shape], found: list[tuple[int, int]]) -> None:
    ours: list[Shape] = [(2, 17, 64), (1, 17, 16), (1, 17, 8), (2, 17, 64)]
    if shapes[1] == (17, 8):
        ours[1] = (1, 17, 8)
    placed: list[Position] = [(0, "in[0]"), (0, "in[1]"), (0, "in[2]"), (1, "out")]
    both: Both[Sequence[Shape]] = Both(ours, shapes)
    assert found == pair_positions(NAMED, placed, both)[0]


def test_other_names_are_other_values() -> None:
    named: list[Position] = [(0, "in.query"), (0, "in.key"), (1, "out")]
    other: list[Position] = [(0, "in.key_states"), (0, "in.mask"), (1, "out")]
    shapes: list[Shape] = [(2, 8), (3, 8), (2, 8)]
    both: Both[Sequence[Shape]] = Both(shapes, shapes)
    assert ([(2, 2)], [0, 1], [0, 1]) == pair_positions(named, other, both)


NAMES: list[Position] = [(0, "in.hidden_states"), (0, "in.position_ids"), (1, "out")]
PLACES: list[Position] = [(0, "in[0]"), (0, "in[1]"), (0, "in[2]"), (1, "out")]
KINDS: Both[Sequence[str]] = Both(["float", "integer", "float"], ["float", "boolean", "integer", "float"])


@pytest.mark.parametrize(
    ("hidden", "inside", "found"),
    [
        ((2, 17, 64), False, [(2, 3), (0, 0), (1, 2)]),  # a mask is no ids, though it has their form
        ((2, 17, 64), True, [(2, 3), (0, 0)]),  # whole numbers that modules hand on may be slots
        ((17, 2, 64), True, [(2, 3), (0, 0)]),  # positions before requests
        ((6, 2, 32), True, [(2, 3)]),
        ((6, 2, 64), True, [(2, 3)]),
    ],
)
def test_what_is_of_another_kind_is_another_value(hidden: Shape, inside: bool, found: list[tuple[int, int]]) -> None:
    ours: list[Shape] = [(2, 17, 64), (2, 17), (2, 17, 64)]
    theirs: list[Shape] = [hidden, (2, 17), (2, 17), (2, 17, 64)]
    both: Both[Sequence[Shape]] = Both(ours, theirs)
    assert found == pair_positions(NAMES, PLACES, both, KINDS, inside=inside)[0]


@pytest.mark.parametrize(("part", "is_one"), [((2, 9, 64), True), ((9, 2, 64), True), ((2, 18, 16), True), ((2, 5, 64), False)])
def test_a_part_that_a_rank_has_is_known_by_its_form(part: Shape, is_one: bool) -> None:
    both: Both[Sequence[Shape]] = Both([(2, 18, 64), (3, 8)], [part, (5, 8), (7, 8)])
    found = pair_positions([(0, "in.hidden_states"), (0, "in.other")], [(0, "in[0]"), (0, "in[1]"), (0, "in[2]")], both)[0]
    assert ([(0, 0)] if is_one else []) == found


def test_what_has_the_form_goes_before_what_may_be_a_part_of_it() -> None:
    ours: list[Position] = [(0, "in.hidden_states"), (0, "in.position_embeddings[0]"), (0, "in.position_embeddings[1]")]
    theirs: list[Position] = [(0, "in[0]"), (0, "in[1]"), (0, "in[2]")]
    both: Both[Sequence[Shape]] = Both([(2, 10, 32), (1, 10, 8), (1, 10, 8)], [(2, 10, 32), (2, 10, 4), (2, 10, 4)])
    assert [(0, 0)] == pair_positions(ours, theirs, both)[0]


@pytest.mark.parametrize(
    ("beside", "shapes", "found"),
    [
        (("out[0]", "out[1]"), [(2, 10, 32), (2, 4, 10, 10)], [(0, 0)]),  # weights of attention
        (("out.logits", "out.cache.layers[0].keys"), [(2, 10, 32), (2, 1, 10, 16)], [(0, 0)]),
        (("out[0]", "out[1]"), [(2, 4, 10, 10), (20, 32)], [(1, 0)]),
        (("out[0]", "out[1]"), [(2, 10, 32), (2, 10, 32)], []),  # a residual handed along: which of them is not known
        (("out[0]", "out[1]"), [(2, 10, 33), (2, 4, 10, 10)], []),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_result_alone_is_the_one_of_its_form(
    beside: tuple[str, str], shapes: list[Shape], found: list[tuple[int, int]], turned: bool
) -> None:
    several: list[Position] = [(1, name) for name in beside]
    alone: list[Position] = [(1, "out")]
    if turned:
        assert [(j, i) for i, j in found] == pair_positions(alone, several, Both([(2, 10, 32)], shapes))[0]
    else:
        assert found == pair_positions(several, alone, Both(shapes, [(2, 10, 32)]))[0]
