"""Which elements belong to padded positions, and that they count for nothing but their NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff.compare import compare_traces
from layerdiff.judge.programs.padding import dead_elements, padded_positions, without_padding
from layerdiff.judge.programs.reading import Reading
from layerdiff.record.recorder import Recorder
from layerdiff.replay.recorded import Recorded
from tests.programs import opened, origins, random, seeded

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


def test_dead_tokens_in_a_cache() -> None:
    """Tokens of a step, and what a cache of theirs has of them: the last positions, behind the heads."""
    dead = np.array([False, False, True, False])
    for positions in (2, 5):
        found = dead_elements((2, 3, positions, 4), dead)
        expected = np.zeros((2, 3, positions, 4), bool)
        expected[1, :, -2] = True
        assert found is not None and found.tolist() == expected.tolist()
    assert dead_elements((3, 3, 5, 4), dead) is None


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


class Attention(nn.Module):
    """Of a batch that is padded on the left: what a padded query sees is hidden by the lowest number, all of it."""

    def __init__(self, scores: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.scores = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), scores

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & (attention_mask == 1)[:, None, :]
        hidden = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        return (self.scores(self.q(x), self.k(x)) + hidden).softmax(-1) @ self.v(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("scores", "found"),
    [
        (lambda q, k: ((q.bfloat16() @ k.bfloat16().mT) / 4).to(q.dtype), True),
        (lambda q, k: torch.einsum("bqd,bkd->bqk", q / 4, k), False),
    ],
    ids=["in bf16", "by einsum"],
)
def test_where_all_is_hidden_rounding_excuses_nothing(
    tmp_path: Path, scores: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, *, found: bool
) -> None:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :4] = 0
    paths = tmp_path / "r.h5", tmp_path / "t.h5"
    for path, way, kept in zip(paths, (lambda q, k: q @ k.mT / 4, scores), (torch.float32, dtype), strict=True):
        with torch.no_grad(), Recorder(path, model := seeded(Attention(way)).to(kept), operators=True):
            model(random(2, 12, 16).to(kept), attention_mask=mask)
    expected = [("/aten._to_copy.default#0", "precision", "lower-precision")] if found and dtype == torch.float32 else []
    assert expected == origins(compare_traces(*paths))
