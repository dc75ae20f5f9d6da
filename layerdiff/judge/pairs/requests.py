"""Requests: the tokens of each, told from the ids, masks and positions that steps are given, and where another run has them.

A step has a batch of requests, with padding, or pieces of requests in a row: prompts that begin, parts of them, single tokens of requests
that go on. Of a row the positions say where a piece begins, and how many tokens of its request there were before; which request it is, what
the other run has there. Requests that have begun alike are the same until they part. Of a request whose beginning lay in a cache before
anything was recorded a run has the rest.

A run may try tokens and take some of them back: a step that verifies a draft is given it whole, and where it was wrong the next one goes
back to its place. What was taken back is no token of the request. So what follows in a piece on what the other run has of its request is
open until it goes on: behind such tokens it has kept them, and has parted from the other run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_MOST_REQUESTS: Final = 1 << 12
_NOBODY: Final = -1
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
        results: of how many tokens results are handed on; of all for 0.
    """

    ids: Array
    counts: NDArray[np.bool_]
    before: NDArray[np.int64] | None
    positions: Array | None
    results: int = 0

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
        tried: how many it had when it first took some back again, all of a first step; None where it took none back.
        open: what the last step goes on with that the other run has not, and may take back.
    """

    ids: list[int] = field(default_factory=list)
    at: list[tuple[int, int]] = field(default_factory=list)
    then: int | None = None
    lacks: bool = False
    begins: int = 0
    tried: int | None = None
    open: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many tokens it has until now."""
        return self.begins + len(self.ids)

    @property
    def prompt(self) -> int | None:
        """How many tokens it has before the first that is given alone, or tried, no fewer than its prompt has; None where none is."""
        steps = [step for step, _ in self.at]
        alone = (i for i in range(1, len(steps)) if steps[i - 1] != steps[i] != (steps[i + 1] if i + 1 < len(steps) else -1))
        known = [one for one in (next(alone, None), self.tried) if one is not None]
        return min(known, default=None)

    @property
    def last(self) -> int:
        """How many of these it had before the last step."""
        return next((i for i in range(len(self.at), 0, -1) if self.at[i - 1][0] != self.at[-1][0]), 0)

    def may_go_on_at(self, first: int) -> bool:
        """Whether what comes after its `first` tokens may follow: behind all that it has, or in place of some of the last step's."""
        return first == self.length or self.begins + self.last < first < self.length

    def go_on_at(self, first: int) -> None:
        """Take back what comes after its `first` tokens, and what is open."""
        if self.open or first < self.length:
            self.tried = (self.last or first - self.begins) if self.tried is None else self.tried
        del self.ids[first - self.begins :], self.at[first - self.begins :], self.open[:]


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
            if first is not None:
                request.go_on_at(first)
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
        firsts = step.firsts(row)
        for piece in _consecutive(step, row) or [np.zeros(0, np.intp)]:
            yield row, piece.tolist(), None if firsts is None or not piece.size else int(firsts[piece[0]])


def _going_on(found: Sequence[Request], now: Sequence[Request], same: Request | None, first: int | None, *, single: bool) -> Request | None:
    """The request that a piece goes on with, a new one where none came before; None where it may be several."""
    if same is not None and any(same is one for one in now):
        same = None
    if same is not None and (first == len(same.ids) or (first is None and single)):
        return same
    if not first:
        return Request()
    left = [one for one in found if not any(one is other for other in now)]
    fitting = [one for one in left if one.length == first] or [one for one in left if one.may_go_on_at(first)]
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
        over: list[tuple[int, int, int]] = []
        pieces = deque[tuple[int, NDArray[np.intp], int | None]](
            (row, piece, None) for row in range(len(step.ids)) for piece in _consecutive(step, row)
        )
        while pieces:  # the beginnings of all first, then what they go on with
            row, places, owner = pieces.popleft()
            ids, firsts = step.ids[row, places], step.firsts(row)
            first = None if firsts is None else int(firsts[places[0]])
            begins = owner is None
            chosen, count = _longest(known, found, used, ids, first, back=begins)
            again = _again(found, used, ids, first) if not count and begins else None
            if again is not None:
                chosen, count = again, ids.size
                found[chosen] = Request()
            if count:
                used.add(chosen)
                one, owner = found[chosen], chosen
                if first is not None:
                    one.go_on_at(first)
                one.ids += ids[:count].tolist()
                one.at += [(number, row * step.ids.shape[1] + place) for place in places[:count].tolist()]
            elif first is not None:
                over.append((first, int(ids[0]), _NOBODY if owner is None else owner))
            owner = _NOBODY if owner is None else owner
            rest = places[count or 1 :]
            if step.is_row and rest.size and (firsts is not None or count):
                pieces.append((row, rest, owner))
            elif firsts is not None and owner >= 0:  # what follows is of the same request, or of one that nothing tells
                over += [(int(firsts[place]), int(step.ids[row, place]), owner) for place in rest]
        for first, token, owner in over:
            if owner >= 0 and not _missing(known, found, used, first):
                found[owner].open.append(token)
            elif first == 0:
                others.append(1)
            elif first in others:
                others[others.index(first)] += 1
            else:
                lost += 1
                _note(known, found, used, first, token)
    return [Request() if one.begins and len(one.ids) < _FEWEST else one for one in found], lost


def _consecutive(step: Given, row: int) -> list[NDArray[np.intp]]:
    """The places of a row, those together that lie one after the other in their request; all of them where nothing tells."""
    places, firsts = np.flatnonzero(step.counts[row]), step.firsts(row)
    if not places.size:
        return []
    return [places] if firsts is None or not step.is_row else np.split(places, np.flatnonzero(np.diff(firsts[places]) != 1) + 1)


def _again(found: Sequence[Request], used: set[int], ids: Array, first: int | None) -> int | None:
    """The request of which a step has all that one step alone had before: the later one counts, a run warms up first."""
    if first:
        return None
    alone = (number for number, one in enumerate(found) if number not in used and len({step for step, _ in one.at}) == 1)
    return next((number for number in alone if np.array_equal(found[number].ids, ids)), None)


def _missing(known: Sequence[Request], found: Sequence[Request], used: set[int], first: int) -> list[Request]:
    """The requests that a step has nothing of, and that go on after their `first` tokens."""
    each = enumerate(zip(found, known, strict=True))
    return [one for number, (one, whole) in each if number not in used and one.length == first < whole.length and one.then is None]


def _note(known: Sequence[Request], found: Sequence[Request], used: set[int], first: int, token: int) -> None:
    """Note a token that a request goes on with otherwise, where it is told which one does."""
    fitting = _missing(known, found, used, first)
    kept = [one for number, one in enumerate(found) if number not in used and one.length < first <= one.length + len(one.open)]
    if len(fitting) == 1:
        fitting[0].then = token
    elif not fitting and len(kept) == 1 and kept[0].then is None:
        kept[0].then = kept[0].open[0]


def _longest(
    known: Sequence[Request], found: list[Request], used: set[int], ids: Array, first: int | None, *, back: bool
) -> tuple[int, int]:
    """The request that goes on for longest with the tokens that come, and for how many; none for 0. `back`: or goes on further back."""
    best = 0, 0
    for number, request in enumerate(known):
        begun = found[number]
        length = begun.length if first is None else first
        if number in used or (length != begun.length and not (back and begun.may_go_on_at(length))):
            continue
        count = _alike(request.ids[length:], ids)
        if count > best[1]:
            best = number, count
    if best[1] or not first:
        return best
    for number, request in enumerate(known):  # of two that began alike the other one went on so far
        count = _alike(request.ids[first:], ids) if len(request.ids) > first else 0
        for other, one in enumerate(found) if count else ():
            begun = found[number]
            alike = one.ids == request.ids[one.begins : first] and begun.ids == known[other].ids[begun.begins : begun.length]
            if one.length == first and other not in used and alike:
                found[number], found[other] = found[other], found[number]
                if number in used:
                    used.add(other)
                return number, count
    return _begun_before(known, found, used, ids, first)


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
