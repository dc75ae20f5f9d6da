"""`Part`: a subtree of a summation tree with its repeats folded: how its items are added, and which terms they hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise


class How(Enum):
    """How the items of a part are added."""

    TERM = "term"
    """One term."""
    CHAIN = "in order"
    """One after the other to a running sum."""
    PAIRS = "in pairs"
    """Neighbours, then neighbours of those."""
    HALVES = "in halves"
    """Each of the first half with its partner in the second, then again."""
    FUSED = "at once"
    """All in one addition, rounded once."""
    JOINED = "at once with the running sum"
    """All in one addition with what the chain around them holds, rounded once."""


@dataclass(frozen=True)
class Part:
    """A subtree, folded.

    Attributes:
        how: how the items are added.
        terms: how many terms it holds.
        first: its smallest term.
        runs: what is added, in the order of addition; none for a term.
        height: the most additions that one of its terms goes through.
    """

    how: How
    terms: int
    first: int
    runs: tuple[Run, ...] = ()
    height: int = 0
    shape: int = field(default=0, compare=False, repr=False)

    @property
    def items(self) -> int:
        """How many items are added."""
        return sum(run.count * run.times for run in self.runs)


@dataclass(frozen=True)
class Run:
    """Items of one shape: `count` times `part`, each `step` terms after the one before (before it, where negative).

    All of that `times` times, each time `shift` terms further on.
    """

    part: Part
    count: int
    step: int
    times: int = 1
    shift: int = 0


def unfolded(part: Part) -> list[Part]:
    """The items of a part, each."""
    return [moved(run.part, again * run.shift + i * run.step) for run in part.runs for again in range(run.times) for i in range(run.count)]


def moved(part: Part, by: int) -> Part:
    """The same part, `by` terms further on."""
    if not by:
        return part
    runs = tuple(replace(run, part=moved(run.part, by)) for run in part.runs)
    return Part(part.how, part.terms, part.first + by, runs, part.height, part.shape)


def last_term(part: Part) -> int:
    """The largest term of a part."""
    if not part.runs:
        return part.first
    return max(last_term(run.part) + max(0, run.step * (run.count - 1)) + max(0, run.shift * (run.times - 1)) for run in part.runs)


def is_solid(part: Part) -> bool:
    """Whether a part holds every term from its first to its last."""
    return last_term(part) - part.first + 1 == part.terms


def stride(part: Part) -> int | None:
    """The distance of the terms of a part, where they all have the same."""
    if part.terms < 2:
        return None
    terms = sorted(_terms(part))
    step = terms[1] - terms[0]
    return step if all(b - a == step for a, b in pairwise(terms)) else None


def _terms(part: Part) -> list[int]:
    if not part.runs:
        return [part.first]
    return [
        term + again * run.shift + i * run.step
        for run in part.runs
        for term in _terms(run.part)
        for again in range(run.times)
        for i in range(run.count)
    ]
