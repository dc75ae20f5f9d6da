"""Ids that ranks count for themselves: which experts they name, and when they name none, or two."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.align.placement import Placement
from layerdiff.judge.pairs.expert_ids import NOBODY, maps_used, placed_by_experts, placed_on_both_sides
from layerdiff.sides import Both

HELD = (np.array([0, 1]), np.array([2, 3]))
CHOSEN = np.array([[0, 2], [3, 1], [2, 1], [1, 3], [0, 3]])


def local(own: np.ndarray, absent: int) -> np.ndarray:
    """Ids of one rank: its own from zero on."""
    counted = np.full(4, absent)
    counted[own] = np.arange(own.size)
    return np.asarray(counted[CHOSEN])


def test_each_choice_is_named_by_the_rank_that_holds_it() -> None:
    parts = [local(HELD[0], -1), local(HELD[1], 7)]
    placement = placed_by_experts(CHOSEN, parts, HELD)
    assert placement is not None
    assert np.array_equal(CHOSEN, placement.joined(parts, CHOSEN.shape))
    assert all(np.array_equal(part, placement.part(CHOSEN, rank)) for rank, part in enumerate(parts))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32, np.int32, np.uint64])
def test_ids_of_any_whole_numbers(dtype: type) -> None:
    parts = [local(own, 7).astype(dtype) for own in HELD]
    placement = placed_by_experts(CHOSEN.astype(dtype), parts, HELD)
    assert placement is not None
    assert np.array_equal(CHOSEN, placement.joined(parts, CHOSEN.shape))
    assert all(np.array_equal(part, placement.part(CHOSEN.astype(dtype), rank)) for rank, part in enumerate(parts))


@pytest.mark.parametrize("other", [-1, 4, 1 << 40])
def test_a_choice_of_an_expert_that_nobody_holds_is_no_id(other: int) -> None:
    chosen = CHOSEN.copy()
    chosen[0, 0] = other
    assert placed_by_experts(chosen, [local(own, -1) for own in HELD], HELD) is None


def test_choices_of_nobody_and_of_two_are_not_put_together() -> None:
    both = [local(HELD[0], -1), local(HELD[0], -1)]
    assert placed_by_experts(CHOSEN, both, HELD) is None
    assert placed_by_experts(CHOSEN, [both[0], np.full_like(CHOSEN, -1)], HELD) is None


def test_choices_that_are_mostly_others_are_not_the_references() -> None:
    ahead = [local(np.array([1, 2]), -1), local(np.array([3, 0]), -1)]
    assert placed_by_experts(CHOSEN, ahead, HELD) is None


def test_the_map_that_made_ids_is_told_from_them() -> None:
    first, second = maps_used(CHOSEN, [local(HELD[0], -1), local(HELD[1], -1)], 5)
    assert [0, 1, -1, -1, NOBODY] == first.tolist()
    assert [-1, -1, 0, 1, NOBODY] == second.tolist()


def placed(our_parts: list[np.ndarray], parts: list[np.ndarray]) -> Both[Placement] | None:
    return placed_on_both_sides(Both(our_parts, parts), Both(list(HELD[: len(our_parts)]), list(HELD)))


def test_ids_of_either_side_or_of_both_are_the_models() -> None:
    locals_ = [local(HELD[0], -1), local(HELD[1], 4)]
    for ours, theirs in ((locals_, locals_), (locals_, [CHOSEN, CHOSEN]), ([CHOSEN, CHOSEN], locals_), ([CHOSEN], locals_)):
        found = placed(ours, theirs)
        assert found is not None
        assert np.array_equal(CHOSEN, found.reference.joined(ours, CHOSEN.shape))
        assert np.array_equal(CHOSEN, found.target.joined(theirs, CHOSEN.shape))


def test_ids_of_the_reference_that_name_nobody_are_not_put_together() -> None:
    assert placed([local(HELD[0], -1), local(HELD[1], -1) - 1], [CHOSEN, CHOSEN]) is None


def test_a_wrong_map_of_the_target_leaves_the_ids_of_the_reference() -> None:
    found = placed([local(HELD[0], -1), local(HELD[1], -1)], [local(np.array([1, 2]), -1), local(np.array([3, 0]), -1)])
    assert found is not None
    assert found.reference.numbers and not found.target.numbers
    assert found.target.error > 0.5


def test_ranks_that_cut_weights_hold_the_experts_of_their_group() -> None:
    rows = Placement("sharded", "rows", 1, (np.arange(3), np.arange(3, 6)))
    experts = Placement("sharded", "experts", 0, HELD)
    grid = Placement("nested", "grid", 0, groups=((0, 1), (2, 3)), outer=experts, inner=rows)
    assert [[0, 1], [0, 1], [2, 3], [2, 3]] == [grid.held_along(0, 4, rank).tolist() for rank in range(4)]
    assert [[0, 1, 2], [3, 4, 5]] * 2 == [grid.held_along(1, 6, rank).tolist() for rank in range(4)]
    across = Placement("nested", "grid", 1, groups=((0, 2), (1, 3)), outer=rows, inner=experts)
    assert [[0, 1], [0, 1], [2, 3], [2, 3]] == [across.held_along(0, 4, rank).tolist() for rank in range(4)]
