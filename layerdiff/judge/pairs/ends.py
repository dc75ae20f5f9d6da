"""`ends_of_steps`: the tokens of steps of which a root makes results alone: the last of each piece, or as many as there are results.

A step that verifies a draft makes logits of all that it tries, and of a prompt those of its last token, or of a draft behind it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from layerdiff.judge.pairs.requests import Given


@dataclass(frozen=True)
class Piece:
    """What a step has of a request that the other run has, too: its first place and its last one; `goes_on`: behind its prompt."""

    first: int
    last: int
    goes_on: bool


def behind(step: Given, pieces: Sequence[Piece]) -> list[int]:
    """How many tokens a step has behind each of some pieces that go on with it, and that the other run has not."""
    width = step.ids.shape[1]
    if step.is_row:
        ends = _ends(step, pieces)
        return [next(end for end in ends if end >= one.last) - one.last for one in pieces]
    return [int(np.count_nonzero(step.counts[one.last // width, one.last % width + 1 :])) for one in pieces]


def ends_of_steps(steps: Sequence[tuple[Given, Sequence[Piece]]]) -> list[list[int]]:
    """The places of each step."""
    if all(_results(step) == step.ids.size for step, _ in steps):
        return [next(_ways(step, pieces)) for step, pieces in steps]
    return [_that_many(step, pieces) for step, pieces in steps]


def _that_many(step: Given, pieces: Sequence[Piece]) -> list[int]:
    """As many as there are results; the last of each piece where no way fits."""
    ways = list(_ways(step, pieces))
    return next((way for way in ways if len(way) == _results(step)), ways[0])


def _results(step: Given) -> int:
    return step.results or step.ids.size


def _ways(step: Given, pieces: Sequence[Piece]) -> Iterator[list[int]]:
    requests, width = step.ids.shape
    if not step.is_row:
        places = [np.flatnonzero(counts) for counts in step.counts]
        yield [row * width + (int(own[-1]) if own.size else width - 1) for row, own in enumerate(places)]
    else:
        ends = _ends(step, pieces)
        yield sorted({*_cuts(step), *(one.last for one in pieces), width - 1})
        yield ends
        begins, going_on = [0, *(end + 1 for end in ends[:-1])], {one.first for one in pieces if one.goes_on}
        yield [place for begin, end in zip(begins, ends, strict=True) for place in range(begin if begin in going_on else end, end + 1)]
        if len(ends) > 1:
            return
    count = _results(step) // requests
    yield [row * width + place for row in range(requests) for place in range(width - count, width)]


def _cuts(step: Given) -> list[int]:
    """The places of a row behind which another piece begins by positions."""
    firsts = step.firsts(0)
    return [] if firsts is None else np.flatnonzero(np.diff(firsts) != 1).tolist()


def _ends(step: Given, pieces: Sequence[Piece]) -> list[int]:
    """The last place of each piece of a row, with all that it tries."""
    return sorted({*_cuts(step), *(one.first - 1 for one in pieces if one.first), step.ids.shape[1] - 1})
