"""The weights that the reference's programs read: the ranks', put together, so that a weight that differs is not taken for a program.

Weights are held against each other by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import refilled
from layerdiff.align.placements import infer
from layerdiff.arithmetic.formats import Format, format_named, round_to
from layerdiff.judge.pairs.placed import Part
from layerdiff.judge.programs.constants import read_weight, viewed, whole_constants
from layerdiff.judge.teams.crossings import Crossing
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.replay.weights import Weight
from layerdiff.sides import Both

Array = NDArray[Any]


class Weights:
    """The weights of a comparison; `known`: by file and value of the reference, how the ranks hold each."""

    def __init__(
        self, runs: Both[Sequence[Recorded]], known: Mapping[Part, Crossing | None], contents: Callable[[Recorded, int], Array]
    ) -> None:
        self._runs, self._known, self._contents = runs, known, contents

    def contents(self, file: int, weight: Weight, value: int) -> Array:
        """What the reference's program reads at `value`, which lies in the weight. Raises CannotReplay."""
        name, whole, place = weight
        run = self._runs.reference[file]
        if (file, whole) in self._known:
            crossing = self._known[file, whole]
            if crossing is None:
                raise CannotReplay(f"how the ranks hold {name} is not known")
            ours, theirs = crossing.held
            logical = theirs.joined([self._contents(self._runs.target[one], part) for one, part in theirs.parts])
            at = [part[0] for part in ours.parts].index(file)
            own = ours.divided(logical)[at]
            if ours.is_filled:  # with what the reference filled it up with
                own = refilled(ours.placement, [own], [self._contents(run, whole)], [at])[0]
            return viewed(run, np.ascontiguousarray(own), whole, place)
        parts = [(one, names[name]) for one, names in zip(self._runs.target, self._named, strict=True) if name in names]
        for one, there in parts:
            if one.file.shape(there) == run.file.shape(whole):
                return viewed(run, self._contents(one, there), whole, place)
        if not parts:
            if run.file.dtype_name(whole) not in self._dtypes:  # rounded, nobody knows where: in compiled code, say
                raise CannotReplay(f"the ranks recorded no {name}")
            rounded = self._rounded.get(run.file.dtype_name(whole))
            own = read_weight(run, value, self._contents)
            return own if rounded is None else round_to(own, rounded)  # under another name, as one with others
        if len(self._runs.reference) > 1:
            raise CannotReplay(f"how the ranks hold {name} is not known")
        # No call has it as its own: what computes with a weight of another module, which is never called.
        own, held = self._contents(run, whole), [self._contents(one, there) for one, there in parts]
        placement = infer(own, held)
        if placement.kind == "unknown" or not placement.fits or not placement.covers(own.shape):
            raise CannotReplay(f"how the ranks hold {name} is not known")
        return viewed(run, np.ascontiguousarray(placement.joined(held, own.shape)), whole, place)

    @cached_property
    def _dtypes(self) -> set[str]:
        return {run.file.dtype_name(value) for run, names in zip(self._runs.target, self._named, strict=True) for value in names.values()}

    @cached_property
    def _rounded(self) -> dict[str, Format]:
        """By dtype of the reference's weights the coarser one that the ranks have most of them in, where they have."""
        votes: dict[str, Counter[str]] = {}
        for (file, whole), crossing in self._known.items():
            if crossing is not None:
                there, part = crossing.held.target.parts[0]
                own = self._runs.reference[file].file.dtype_name(whole)
                votes.setdefault(own, Counter())[self._runs.target[there].file.dtype_name(part)] += 1
        found = {}
        for own, counted in votes.items():
            formats = format_named(own), format_named(counted.most_common(1)[0][0])
            if formats[0] is not None and formats[1] is not None and formats[1].unit > formats[0].unit:
                found[own] = formats[1]
        return found

    @cached_property
    def _named(self) -> list[dict[str, int]]:
        return [whole_constants(run) for run in self._runs.target]
