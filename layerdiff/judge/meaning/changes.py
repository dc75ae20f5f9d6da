"""`Change`: calls of a program that make something else than they would: what the other run's make, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.running import Redone
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]


@dataclass(frozen=True)
class Change:
    """By call, in which way it makes its results."""

    ways: Mapping[int, Redone] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ways)

    def then(self, other: Change) -> Change:
        """Both, the other last."""
        both = {call: _one_after_another(way, other.ways[call]) for call, way in self.ways.items() if call in other.ways}
        return Change({**self.ways, **other.ways, **both})

    def in_part(self, part: float) -> Change:
        """Results that lie a part of the way from what would be made to what is made; whole numbers go all the way."""
        return Change({call: _partly(way, part) for call, way in self.ways.items()})


UNCHANGED: Final = Change()


def instead(results: Mapping[str, Array]) -> Redone:
    """These results, whatever the call is given."""

    def way(_: Arguments, made: Mapping[str, Array]) -> Mapping[str, Array]:
        if results.keys() != made.keys() or any(results[at].shape != made[at].shape for at in made):
            raise CannotReplay("what the other run makes there is of another form")
        return results

    return way


def without(given: Arguments, made: Mapping[str, Array]) -> Mapping[str, Array]:
    """What the call was given goes on in place of what it makes, or zeros where that is of another shape."""
    (result,) = made.values()
    fits = (one for one in given.args if isinstance(one, np.ndarray) and one.dtype.kind == "f" and one.shape == result.shape)
    return {"out": next(fits, np.zeros_like(result))}


def _one_after_another(first: Redone, then: Redone) -> Redone:
    return lambda given, made: then(given, first(given, made))


def _partly(way: Redone, part: float) -> Redone:
    def partly(given: Arguments, made: Mapping[str, Array]) -> Mapping[str, Array]:
        results = way(given, made)
        return {at: made[at] + part * (there - made[at]) if there.dtype.kind == "f" else there for at, there in results.items()}

    return partly
