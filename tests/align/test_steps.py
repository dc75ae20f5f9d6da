"""Steps are paired at their common end."""

from __future__ import annotations

import pytest

from layerdiff.align.steps import NOT_RECORDED, every_step, pair_steps


def paired(reference: str, target: str) -> list[tuple[int, int]]:
    return list(pair_steps(list(enumerate(reference.split())), list(enumerate(target.split())), "").pairs)


@pytest.mark.parametrize(
    ("reference", "target", "expected"),
    [
        ("8 1 1", "8 1 1", [(0, 0), (1, 1), (2, 2)]),
        ("4 8 1 1", "8 1 1", [(1, 0), (2, 1), (3, 2)]),
        ("8 1 1", "2 2 8 1 1", [(0, 2), (1, 3), (2, 4)]),
        ("4 8 1", "5 8 1", [(1, 1), (2, 2)]),
        ("8 8 8", "8", [(2, 0)]),
        ("8 1 1", "8 1 1 1", [(0, 0), (1, 1), (2, 2)]),  # went on decoding
        ("4 8 1 1", "8 1 1 1", [(2, 2), (3, 3)]),  # equally many steps: the suffix
        ("4 8 1 1 1", "8 1 1 1 1", [(2, 2), (3, 3), (4, 4)]),
        ("4 8", "5 9", [(0, 0), (1, 1)]),  # nothing in common, equally many
        ("4 8", "5 9 7", []),
        ("4 8", "4 8 7", [(0, 0), (1, 1)]),
        ("", "8", []),
        ("", "", []),
    ],
)
def test_pairs(reference: str, target: str, expected: list[tuple[int, int]]) -> None:
    assert expected == paired(reference, target)


def test_what_is_left_out_is_said() -> None:
    found = pair_steps([(0, "1x4"), (1, "1x2"), (2, "1x8")], [(0, "1x8")], "draft")
    assert ("2 steps of draft of the reference are outside the compared steps, the first of them step 0 (1x4)",) == found.remarks
    found = pair_steps([(0, "1x4")], [(0, "1x8")], "")
    assert ("no step has the same input shapes in both runs; as there are equally many, they are paired by position",) == found.remarks
    found = pair_steps([(0, "1x4")], [], "")
    assert "no step has the same input shapes in both runs (1 in the reference, 0 in the target): none is compared" == found.remarks[0]


def test_numbers_of_steps_are_kept() -> None:
    assert ((5, 7),) == pair_steps([(3, "1x4"), (5, "1x8")], [(7, "1x8")], "").pairs
    assert (NOT_RECORDED, "1x8", NOT_RECORDED, "1x1") == every_step([(1, "1x8"), (3, "1x1")])


def test_names_of_arguments_do_not_matter_where_sizes_agree() -> None:
    reference = [(0, "in.input_ids 1x4"), (1, "in.input_ids 1x8, in.mask 1x1x8x8")]
    assert ((1, 0),) == pair_steps(reference, [(0, "in.mask 1x1x8x8, in[0] 1x8")], "").pairs


def test_steps_of_another_rank_are_taken_where_shapes_do_not_tell() -> None:
    hidden = [(step, "in[0] 1x8x64") for step in range(3)]
    found = pair_steps([(0, "in[0] 1x8"), (1, "in[0] 1x8")], hidden, "", [(0, 1), (1, 2)])
    assert (((0, 1), (1, 2)), False) == (found.pairs, found.told)
    assert pair_steps([(0, "in[0] 1x8")], [(0, "in[0] 1x8")], "", [(0, 1)]).told  # where they do, nobody is asked
