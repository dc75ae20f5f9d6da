"""Places of a dimension as runs, `[start, places, step]`: short enough to be kept with a comparison, whatever the size of the dimension.

A strided part is one run and a zigzag part two. What would need more than `MOST_RUNS` is left out: it is an order that no
picture shows, and a file must not grow with it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_RUNS: Final = 64
"""Runs of one rank."""
_LARGEST: Final = 1 << 62


class Run(NamedTuple):
    """Places `start`, `start + step`, ...: `places` of them; where `start` is -1, padding that is no place at all."""

    start: int
    places: int
    step: int

    @property
    def last(self) -> int:
        """The last place."""
        return self.start + (self.places - 1) * self.step


def runs_of(positions: NDArray[np.intp]) -> tuple[Run, ...] | None:
    """The places of one rank, shape (n,), as runs in their order; None where they are more than `MOST_RUNS`. Padding is -1."""
    runs: list[Run] = []
    steps = np.diff(positions)
    padding = positions < 0
    # An element of `turns` is the last place of a stretch of one step; to padding and from it there is no step.
    turns = np.flatnonzero((np.diff(steps) != 0) | (padding[2:] != padding[1:-1]) | (padding[1:-1] != padding[:-2])) + 1
    at, size = 0, int(positions.size)
    while at < size:
        if len(runs) == MOST_RUNS:
            return None
        turn = int(np.searchsorted(turns, at + 1))
        end = int(turns[turn]) + 1 if turn < turns.size else size
        step = int(steps[at]) if end - at > 1 else 1
        if end - at == 2 and (padding[at] != padding[at + 1] or (step not in (0, 1) and end < size)):
            end, step = at + 1, 1  # two places alone make no stride: the second may begin a longer run
        runs.append(Run(int(positions[at]), end - at, step))
        at = end
    return tuple(runs)


def text_of(runs: tuple[Run, ...] | None) -> str | None:
    """Runs as JSON text, as a column keeps them."""
    return None if runs is None else json.dumps([list(run) for run in runs], separators=(",", ":"))


def read_runs(text: str | None) -> tuple[Run, ...] | None:
    """The runs of a text; None for None. Raises ValueError where it holds anything else."""
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(found, list) or len(found) > MOST_RUNS:
        raise ValueError(f"runs are a list of at most {MOST_RUNS}")
    return tuple(_run(one) for one in found)


def _run(one: Any) -> Run:
    if not isinstance(one, list) or len(one) != 3 or any(type(number) is not int for number in one):
        raise ValueError("a run is three whole numbers")
    run = Run(*one)
    if not (-1 <= run.start < _LARGEST and 1 <= run.places < _LARGEST and abs(run.step) < _LARGEST):
        raise ValueError("a run begins at -1 or later and has at least one place")
    if run.last != -1 if run.start < 0 else not 0 <= run.last < _LARGEST:
        raise ValueError("a run ends before 0, or too far")
    return run
