"""Places of a dimension as runs: short for every regular reading, whole, and refused where a file holds something else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdiff.align.runs import MOST_RUNS, Run, read_runs, runs_of, text_of


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.intp)


@pytest.mark.parametrize(
    ("held", "runs"),
    [
        (places(4, 5, 6, 7), [(4, 4, 1)]),
        (places(1, 5, 9, 13), [(1, 4, 4)]),
        (places(0, 1, 6, 7), [(0, 2, 1), (6, 2, 1)]),
        (places(0, 1, 4, 5, 8, 9), [(0, 2, 1), (4, 2, 1), (8, 2, 1)]),
        (places(3, 2, 1, 0), [(3, 4, -1)]),
        (places(6, 7, -1, -1), [(6, 2, 1), (-1, 2, 0)]),
        (places(2, 1, 0, -1), [(2, 3, -1), (-1, 1, 1)]),
        (places(7), [(7, 1, 1)]),
        (places(), []),
    ],
)
def test_regular_readings_are_few_runs(held: np.ndarray, runs: list[tuple[int, int, int]]) -> None:
    assert tuple(Run(*run) for run in runs) == runs_of(held)


def test_a_strided_part_of_any_size_is_one_run() -> None:
    assert (Run(3, 1 << 16, 8),) == runs_of(np.arange(3, 8 << 16, 8, dtype=np.intp))


def test_an_order_of_its_own_is_left_out_beyond_64_runs() -> None:
    pairs = np.arange(2 * MOST_RUNS, dtype=np.intp).reshape(MOST_RUNS, 2) * np.array([1, 1]) + 5 * np.arange(MOST_RUNS)[:, None]
    assert MOST_RUNS == len(runs_of(pairs.reshape(-1)) or ())
    assert runs_of(np.append(pairs.reshape(-1), [0, 1])) is None
    assert text_of(None) is None


@given(st.lists(st.integers(-1, 9), max_size=40))
def test_runs_say_every_place_in_its_order(held: list[int]) -> None:
    runs = runs_of(np.array(held, np.intp))
    assert runs is not None
    assert held == [run.start + i * run.step for run in runs for i in range(run.places)]
    assert runs == read_runs(text_of(runs))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "[[0,4]]",
        "[[0,4,1.0]]",
        "[[0,true,1]]",
        "[[-2,1,1]]",
        "[[0,0,1]]",
        "[[2,4,-1]]",
        "[[-1,4,1]]",
        f"[[0,{1 << 62},1]]",
        f"[[0,4,{1 << 61}]]",
        "[" * 100_000,
        "[" + ",".join(["[0,1,1]"] * 65) + "]",
        "nonsense",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_runs(text)
