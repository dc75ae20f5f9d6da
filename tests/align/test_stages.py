"""Stages of a pipeline: which ranks are one, and what a chain of stages that count from zero has as numbers."""

from __future__ import annotations

import pytest

from layerdiff.align.global_numbers import Print
from layerdiff.align.stages import chained_offsets, levels, stages


@pytest.mark.parametrize(
    ("ran", "found"),
    [
        ([["layers.0.mlp", "norm"], ["layers.0.mlp", "norm"]], [0, 0]),
        ([["layers.0", "layers.1", "rotary"], ["layers.2", "rotary"]], [0, 1]),
        ([["layers.0"], ["layers.1"], ["layers.0"], ["layers.1"]], [0, 1, 0, 1]),
        ([["layers.0"], ["layers.1"], ["layers.0", "layers.1"]], [0, 0, 0]),
        ([["layers.0", "layers.1"], ["layers.0", "layers.3"]], [0, 1]),  # the second has a layer of the first in place of its own
        ([["embed"], ["layers.0"], ["layers.1"]], [0, 1, 2]),
        ([["layers.0.experts.0"], ["layers.0.experts.1"]], [0, 0]),
        ([], []),
    ],
)
def test_ranks_that_run_a_layer_together_are_one_stage(ran: list[list[str]], found: list[int]) -> None:
    assert found == stages(ran)


def test_a_model_without_numbered_layers_has_one_stage() -> None:
    assert [0, 0, 0] == stages([["", "a", "b"], ["", "a"], [""]])


# a pipeline whose stages all count from zero


def prints_of(*layers: int) -> dict[str, Print]:
    """The weights of some layers of the model, by the numbers that their stage gives them."""
    return {f"layers.{own}.norm": ((layer, 0), "float32", (8,)) for own, layer in enumerate(layers)}


def test_stages_that_count_from_zero_follow_each_other() -> None:
    chain = [prints_of(0, 1), prints_of(2, 3, 4), prints_of(5)]
    assert [{}, {"layers": {0: 2}}, {"layers": {0: 5}}] == chained_offsets(chain)


def test_stages_that_count_globally_are_left_alone() -> None:
    chain = [prints_of(0, 1), {"layers.2.norm": ((2, 0), "float32", (8,))}]
    assert [{}, {}] == chained_offsets(chain)


def test_ranks_that_hold_the_same_layers_are_no_stages() -> None:
    assert [{}, {}] == chained_offsets([prints_of(0, 1), prints_of(0, 1)])


def test_levels_by_who_hands_on_to_whom() -> None:
    assert [0, 1, 2] == levels([0, 1, 2], [(0, 1), (1, 2), (2, 1), (1, 0)])  # gradients come back
    assert [0, 0, 1, 1] == levels([0, 1, 2, 3], [(0, 2), (1, 3)])
    assert [0, 0] == levels([0, 1], [])
