"""Requests: the tokens of each, told from the ids, masks and positions that steps are given, and where another run has them.

A step has a batch of requests, with padding, or pieces of requests in a row: prompts that begin, parts of them, single tokens of requests
that go on. Of a row the positions say where a piece begins, and how many tokens of its request there were before; which request it is, what
the other run has there. Requests that have begun alike are the same until they part. Of a request whose beginning lay in a cache before
anything was recorded a run has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_MOST_REQUESTS: Final = 1 << 12
_FEWEST: Final = 4
"""Tokens that tell a request whose beginning was not recorded."""


@dataclass(frozen=True)
class Given:
    """What one step is given.

    Attributes:
        ids: shape (requests, positions).
        counts: the same shape: where there is a token.
        before: how many tokens of each request there were before, by an attention mask or a cache; None where nothing says so.
        positions: the same shape as `ids`: how many tokens came before each; None where nothing says so.
    """

    ids: Array
    counts: NDArray[np.bool_]
    before: NDArray[np.int64] | None
    positions: Array | None

    @property
    def is_row(self) -> bool:
        """Whether it may hold pieces of several requests, one after the other."""
        return len(self.ids) == 1 and self.before is None

    def firsts(self, request: int) -> NDArray[np.int64] | None:
        """By place of a request how many of its tokens came before."""
        if self.before is not None:
            return np.asarray(self.before[request] + np.cumsum(self.counts[request]) - self.counts[request])
        return None if self.positions is None else np.asarray(self.positions[request])


@dataclass
class Request:
    """One request.

    Attributes:
        ids: its tokens.
        at: the step, and the place in it, where each is.
        then: what it goes on with in place of what the other run goes on with; None where nothing tells.
        lacks: whether it may go on with a token of which nothing tells whose it is.
        begins: how many tokens it had before the first of these.
    """

    ids: list[int] = field(default_factory=list)
    at: list[tuple[int, int]] = field(default_factory=list)
    then: int | None = None
    lacks: bool = False
    begins: int = 0

    @property
    def length(self) -> int:
        """How many tokens it has until now."""
        return self.begins + len(self.ids)

    @property
    def prompt(self) -> int:
        """How many tokens it has before the first that is given alone."""
        steps = [step for step, _ in self.at]
        alone = (i for i in range(1, len(steps)) if steps[i - 1] != steps[i] != (steps[i + 1] if i + 1 < len(steps) else -1))
        return next(alone, len(steps))


def requests_of(steps: Sequence[Given]) -> list[Request] | None:
    """The requests of a run, by what it is given alone; None where that does not tell which one a piece goes on with."""
    found: list[Request] = []
    last: list[Request] = []
    for number, step in enumerate(steps):
        now: list[Request] = []
        for row, places, first in _pieces(step):
            same = last[row] if not step.is_row and len(last) == len(step.ids) else last[0] if len(last) == 1 and row == 0 else None
            request = _going_on(found, now, same, first, single=len(places) == 1)
            if request is None:
                return None
            if not request.at:
                found.append(request)
            width = step.ids.shape[1]
            request.ids += step.ids[row, places].tolist()
            request.at += [(number, row * width + place) for place in places]
            now.append(request)
        last = now
        if len(found) > _MOST_REQUESTS:
            return None
    return found


def _pieces(step: Given) -> Iterator[tuple[int, list[int], int | None]]:
    """The row, places and number of tokens before of each piece."""
    for row in range(len(step.ids)):
        places, firsts = np.flatnonzero(step.counts[row]), step.firsts(row)
        if not places.size:
            yield row, [], None
            continue
        cuts = np.diff(firsts[places]) != 1 if step.is_row and firsts is not None else np.zeros(0, bool)
        for piece in np.split(places, np.flatnonzero(cuts) + 1):
            yield row, piece.tolist(), None if firsts is None else int(firsts[piece[0]])


def _going_on(found: Sequence[Request], now: Sequence[Request], same: Request | None, first: int | None, *, single: bool) -> Request | None:
    """The request that a piece goes on with, a new one where none came before; None where it may be several."""
    if same is not None and any(same is one for one in now):
        same = None
    if same is not None and (first == len(same.ids) or (first is None and single)):
        return same
    if not first:
        return Request()
    fitting = [one for one in found if len(one.ids) == first and not any(one is other for other in now)]
    return fitting[0] if len(fitting) == 1 else None


def where_they_are(known: Sequence[Request], steps: Sequence[Given]) -> tuple[list[Request], int]:
    """The requests that are `known` from their first token on, one for each, as far as other steps have them; and how many tokens go on
    with nothing.

    Tokens of other requests go on with such.
    """
    found = [Request() for _ in known]
    others: list[int] = []
    lost = 0
    for number, step in enumerate(steps):
        used: set[int] = set()
        width = step.ids.shape[1]
        for row, ids in enumerate(step.ids):
            places, firsts, at = np.flatnonzero(step.counts[row]), step.firsts(row), 0
            while at < places.size:
                first = None if firsts is None else int(firsts[places[at]])
                chosen, count = _longest(known, found, used, ids[places[at:]], first, None if firsts is None else firsts[places[at:]])
                again = _again(found, used, ids[places], first) if not count and not at else None
                if again is not None:
                    chosen, count = again, places.size
                    found[chosen] = Request()
                if not count and first is not None:
                    if first == 0:
                        others.append(1)
                    elif first in others:
                        others[others.index(first)] += 1
                    else:
                        lost += 1
                        _note(known, found, used, first, int(ids[places[at]]))
                if count:
                    used.add(chosen)
                    one = found[chosen]
                    one.ids += ids[places[at : at + count]].tolist()
                    one.at += [(number, row * width + place) for place in places[at : at + count].tolist()]
                if not step.is_row or (firsts is None and not count):
                    break  # what follows is of the same request, or of one that nothing tells
                at += count or 1
    return [Request() if one.begins and len(one.ids) < _FEWEST else one for one in found], lost


def _again(found: Sequence[Request], used: set[int], ids: Array, first: int | None) -> int | None:
    """The request of which a step has all that one step alone had before: the later one counts, a run warms up first."""
    if first:
        return None
    alone = (number for number, one in enumerate(found) if number not in used and len({step for step, _ in one.at}) == 1)
    return next((number for number in alone if np.array_equal(found[number].ids, ids)), None)


def _note(known: Sequence[Request], found: Sequence[Request], used: set[int], first: int, token: int) -> None:
    """Note a token that a request goes on with otherwise, where it is told which one does."""
    fitting = [
        one
        for number, (one, whole) in enumerate(zip(found, known, strict=True))
        if number not in used and one.length == first < len(whole.ids) and one.then is None
    ]
    if len(fitting) == 1:
        fitting[0].then = token


def _longest(
    known: Sequence[Request], found: list[Request], used: set[int], ids: Array, first: int | None, firsts: Array | None
) -> tuple[int, int]:
    """The request that goes on for longest with the tokens that come, and for how many; none for 0."""
    most = ids.size if firsts is None else int(np.argmin(np.append(np.diff(firsts) == 1, False))) + 1
    best = 0, 0
    for number, request in enumerate(known):
        length = found[number].length
        if number in used or (first is not None and first != length):
            continue
        count = _alike(request.ids[length : length + most], ids)
        if count > best[1]:
            best = number, count
    if best[1] or not first:
        return best
    for number, request in enumerate(known):  # of two that began alike the other one went on so far
        count = _alike(request.ids[first : first + most], ids) if len(request.ids) > first else 0
        for other, one in enumerate(found) if count else ():
            begun = found[number]
            alike = one.ids == request.ids[one.begins : first] and begun.ids == known[other].ids[begun.begins : begun.length]
            if one.length == first and other not in used and alike:
                found[number], found[other] = found[other], found[number]
                if number in used:
                    used.add(other)
                return number, count
    return _begun_before(known, found, used, ids[:most], first)


def _begun_before(known: Sequence[Request], found: Sequence[Request], used: set[int], ids: Array, first: int) -> tuple[int, int]:
    """The request of which tokens are that come after its `first` ones, which nothing has recorded, and for how many; none for 0."""
    best = 0, 0
    for number, (one, whole) in enumerate(zip(found, known, strict=True)):
        count = _alike(whole.ids[first:], ids) if number not in used and not one.ids else 0
        if count > best[1]:
            best = number, count
    if best[1]:
        found[best[0]].begins = first
    return best


def without_beginnings(known: Sequence[Request], found: Sequence[Request]) -> list[Request]:
    """The requests that are `known`, each from where the other run has it on."""
    return [replace(whole, ids=whole.ids[one.begins :], at=whole.at[one.begins :]) for whole, one in zip(known, found, strict=True)]


def _alike(tokens: Sequence[int], ids: Array) -> int:
    """How many tokens are the same from the first one on."""
    count = min(len(tokens), ids.size)
    differs = np.asarray(tokens[:count]) != ids[:count]
    return int(np.argmax(differs)) if differs.any() else count
