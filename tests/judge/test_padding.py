"""Which elements belong to padded positions, and that they count for nothing but their NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff.judge.programs.padding import padded_positions, without_padding
from layerdiff.judge.programs.reading import Reading
from layerdiff.record.recorder import Recorder
from layerdiff.replay.recorded import Recorded
from tests.programs import opened

PADDED = np.array([[False, False, False], [True, False, False]])
"""Two rows of three keys; the first key of the second row is padding."""


def excused(shape: tuple[int, ...]) -> np.ndarray:
    """The elements of a difference of ones that padding takes away."""
    return without_padding(np.zeros(shape), np.ones(shape), PADDED) == 1


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 2, 5)])
def test_positions_in_the_second_axis(shape: tuple[int, ...]) -> None:
    expected = np.zeros(shape, bool)
    expected[1, 0] = True
    assert expected.tolist() == excused(shape).tolist()


@pytest.mark.parametrize("heads", [2, 4])
def test_positions_behind_the_heads(heads: int) -> None:
    expected = np.zeros((2, heads, 3, 5), bool)
    expected[1, :, 0] = True
    assert expected.tolist() == excused((2, heads, 3, 5)).tolist()


def test_positions_and_rows_in_one_axis() -> None:
    expected = np.zeros((6, 5), bool)
    expected[3] = True
    assert expected.tolist() == excused((6, 5)).tolist()


def test_a_decoding_step_has_the_last_positions() -> None:
    assert not excused((2, 1, 5)).any()  # one position tells nothing, and is never padding
    expected = np.zeros((2, 2, 5), bool)
    assert expected.tolist() == excused((2, 2, 5)).tolist()  # keys 1 and 2: no padding among them


@pytest.mark.parametrize("shape", [(5,), (7, 5), (3, 3, 5)])
def test_other_shapes_are_left_alone(shape: tuple[int, ...]) -> None:
    assert not excused(shape).any()


def test_what_is_not_finite_stays() -> None:
    reference, target = np.zeros((2, 3, 2)), np.zeros((2, 3, 2))
    target[1, 0, 0] = np.nan
    assert 0.0 == without_padding(reference, target, PADDED)[1, 0, 0]
    assert np.array_equal(reference, without_padding(reference, target, None))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize(
    ("mask", "expected"), [([[1, 1, 1], [0, 1, 1]], PADDED.tolist()), ([[1, 1, 1], [1, 1, 1]], None), ([[[[1, 0, 0]]]], None), (None, None)]
)
def test_the_mask_of_the_root_tells_for_all_modules_inside(tmp_path: Path, mask: object, expected: object) -> None:
    with Recorder(tmp_path / "t.h5", model := Masked(), operators=True), torch.no_grad():
        model(torch.ones(2, 3, 4), attention_mask=None if mask is None else torch.tensor(mask))
    runs = opened(tmp_path / "t.h5", tmp_path / "t.h5").map(Recorded)
    inner = next(call for call in range(len(runs.target.file.calls)) if runs.target.file.site(call) == "inner")
    found = padded_positions(runs.target, inner, Reading(runs))
    assert expected == (None if found is None else found.tolist())
