"""The weights that the reference's programs read: the ranks', put together, so that a weight that differs is not taken for a program.

Weights are held against each other by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.constants import viewed, whole_constants
from layerdiff.judge.placed import Part
from layerdiff.judge.teams.crossings import Crossing
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both

Array = NDArray[Any]


class Weights:
    """The weights of a comparison; `known`: by file and value of the reference, how the ranks hold each."""

    def __init__(
        self, runs: Both[Sequence[Recorded]], known: Mapping[Part, Crossing | None], contents: Callable[[Recorded, int], Array]
    ) -> None:
        self._runs, self._known, self._contents = runs, known, contents

    def contents(self, file: int, weight: tuple[str, int], value: int) -> Array:
        """What the reference's program reads at `value`, which lies in the weight (its name, and the whole value). Raises CannotReplay."""
        name, whole = weight
        run = self._runs.reference[file]
        if (file, whole) in self._known:
            crossing = self._known[file, whole]
            if crossing is None:
                raise CannotReplay(f"how the ranks hold {name} is not known")
            ours, theirs = crossing.held
            logical = theirs.joined([self._contents(self._runs.target[one], part) for one, part in theirs.parts])
            own = ours.divided(logical)[[part[0] for part in ours.parts].index(file)]
            return viewed(run, np.ascontiguousarray(own), whole, value)
        for one, names in zip(self._runs.target, self._named, strict=True):
            there = names.get(name)
            if there is not None and one.file.shape(there) == run.file.shape(whole):
                return viewed(run, self._contents(one, there), whole, value)
        return self._contents(run, value)

    @cached_property
    def _named(self) -> list[dict[str, int]]:
        return [whole_constants(run) for run in self._runs.target]
