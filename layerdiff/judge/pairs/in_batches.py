"""Steps that are compared as one: requests that the two runs had in other batches.

A server takes requests on while others go on: the prompt of one, a part of that of another and single tokens of more are one forward. Which
requests these are is told by `requests.py`.

Each run has all tokens of the other, or the other all of its, or they are the same but for how requests go on: what only one has, as tokens
beyond the end of a request, or requests that others sent, is compared with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.pairs.ends import Piece, behind, ends_of_steps
from layerdiff.judge.pairs.requests import Given, Request, requests_of, where_they_are, without_beginnings
from layerdiff.sides import Both
from layerdiff.trace.along import Layout
from layerdiff.trace.tokens import Tokens

_FEWEST = 4
"""Tokens."""


@dataclass(frozen=True)
class Parted:
    """Where the two runs go on with other tokens of a request: the number of the last one that both have, how many these are, and what
    each goes on with, None where that is not told."""

    last: int
    count: int
    tokens: Both[int | None]


@dataclass(frozen=True)
class Batches:
    """Steps of both runs that have the same tokens, by their places among those that were looked at.

    Attributes:
        steps: which.
        tokens: which token stands at each place of what each run's steps have together.
        layouts: how it lies there.
        requests: how many.
        alone: how many tokens only this run has.
        parted: requests that go on otherwise.
        begun: whether a run had tokens of these requests before anything was recorded.
    """

    steps: Both[tuple[int, ...]]
    tokens: Both[Tokens]
    layouts: Both[Layout]
    requests: int
    alone: Both[int]
    parted: tuple[Parted, ...] = ()
    begun: Both[bool] = Both(False, False)


def in_batches(readings: Iterable[Both[Sequence[Given]]], *, rows: bool = False, other_form: bool = False) -> list[Batches]:
    """The steps that are one; none where each step has what one step of the other run has, in their order.

    `readings`: what the steps of both may be given, likely ones first. Positions may be wrong: another is taken where all tokens of one run
    are in the other, too. `rows`: each run's as a row of the tokens that both have, and of no others. `other_form`: of steps too that go
    together as they are.
    """
    best: tuple[Both[Sequence[Given]], Both[list[Request]]] | None = None
    most = -1
    for steps in readings:
        for both in _requests_of_both(steps):
            count = _paired(both) if _one_has_all(steps, both) else 0
            if count > most:
                best, most = (steps, both), count
        if most == min(sum(int(np.count_nonzero(step.counts)) for step in own) for own in steps):
            break
    if best is None:
        return []
    return [] if not other_form and _may_be_as_they_are(*best) else _grouped(*best, rows=rows)


def _requests_of_both(steps: Both[Sequence[Given]]) -> Iterator[Both[list[Request]]]:
    """The requests of both runs, each with the same one of the other: those that one run tells alone, as far as the other has them."""
    for known, other in (("reference", "target"), ("target", "reference")):
        requests = requests_of(getattr(steps, known))
        if not requests:
            continue
        found, lost = where_they_are(requests, getattr(steps, other))
        requests = without_beginnings(requests, found)
        for one, whole in zip(found, requests, strict=True) if lost else ():
            one.lacks = one.then is None and len(one.ids) < len(whole.ids)
        both = Both(requests, found) if known == "reference" else Both(found, requests)
        if _tells(requests) and (_are_prompts(both) or _one_has_all(steps, both)):
            yield both


def _may_be_as_they_are(steps: Both[Sequence[Given]], both: Both[list[Request]]) -> bool:
    """Whether each step has what one of the other run's has, in order; or is as large, and several requests may have changed places."""
    if any(one.begins for own in both for one in own):
        return False
    each = list(zip(*both, strict=True))
    common = {(here, there) for ours, theirs in each for (here, _), (there, _) in zip(ours.at, theirs.at, strict=False)}
    if all(here == there and steps.reference[here].ids.shape == steps.target[there].ids.shape for here, there in common):
        return True
    sizes = steps.map(lambda every: [step.ids.shape for step in every])
    if sizes.reference != sizes.target:
        return False
    of_each = [step for one in both.target for step in {step for step, _ in one.at}]
    return len(of_each) > len(set(of_each)) or any(requests > 1 for requests, _ in sizes.target)


def _are_prompts(both: Both[list[Request]]) -> bool:
    """Whether all requests are the same as far as they are prompts."""
    for ours, theirs in zip(*both, strict=True):
        known = [one.prompt for one in (ours, theirs) if one.prompt is not None]
        if min(len(ours.ids), len(theirs.ids)) < min(known, default=max(len(ours.ids), len(theirs.ids))):
            return False
    return True


def _tells(requests: Sequence[Request]) -> bool:
    """Whether tokens tell requests: they are not all alike, and do not merely count."""
    every = np.concatenate([np.array(one.ids, np.int64) for one in requests])
    counts = all(np.all(np.diff(one.ids) == 1) for one in requests)
    return every.size >= _FEWEST and not counts and bool(np.any(every != every[0]))


def _one_has_all(steps: Both[Sequence[Given]], both: Both[list[Request]]) -> bool:
    """Whether all tokens that the steps of one run have are tokens of the other, too."""
    return any(_paired(both) == sum(int(np.count_nonzero(step.counts)) for step in own) for own in steps)


def _paired(both: Both[list[Request]]) -> int:
    """How many tokens are in both runs."""
    return sum(min(len(ours.ids), len(theirs.ids)) for ours, theirs in zip(*both, strict=True))


def _grouped(steps: Both[Sequence[Given]], both: Both[list[Request]], *, rows: bool = False) -> list[Batches]:
    """The steps, those together that have tokens of one another."""
    groups: list[tuple[set[int], set[int], list[int]]] = []
    for number, (ours, theirs) in enumerate(zip(*both, strict=True)):
        count = min(len(ours.at), len(theirs.at))
        here, there, own = {step for step, _ in ours.at[:count]}, {step for step, _ in theirs.at[:count]}, [number]
        for group in [one for one in groups if one[0] & here or one[1] & there]:
            groups.remove(group)
            here, there, own = here | group[0], there | group[1], [*group[2], *own]
        if count:
            groups.append((here, there, own))
    groups.sort(key=lambda group: min(group[0]))
    first = [min(there) for _, there, _ in groups]
    members = [number for group in groups for number in group[2]]
    if any(one.then is not None or one.lacks for own in both for one in own):
        groups = [(set(range(len(steps.reference))), set(range(len(steps.target))), members)]  # nothing tells whose the others are
    elif first != sorted(first):  # steps go together in their order
        groups = [(set().union(*(one[0] for one in groups)), set().union(*(one[1] for one in groups)), members)]
    later = {number for own in both for number, one in enumerate(own) if one.begins}
    return [
        _batches(steps, both, *group, rows=rows)
        for group in groups
        if rows or max(len(group[0]), len(group[1])) > 1 or not later.isdisjoint(group[2])
    ]


def _batches(
    steps: Both[Sequence[Given]], both: Both[list[Request]], here: set[int], there: set[int], members: list[int], *, rows: bool
) -> Batches:
    chosen = Both(tuple(sorted(here)), tuple(sorted(there)))
    requests = both.map(lambda every: [every[number] for number in sorted(members)])
    counts = [min(len(ours.at), len(theirs.at)) for ours, theirs in zip(*requests, strict=True)]
    columns = [_columns(*one) for one in zip(steps, requests, strict=True)]
    ours, theirs = (_of_side(*one, counts) for one in zip(steps, chosen, requests, columns[::-1], strict=True))
    parted = tuple(_parted(requests, counts))
    tokens, layouts = Both(ours[0], theirs[0]), Both(ours[1], theirs[1])
    if rows:
        tokens, layouts = _as_rows(tokens, layouts)
    begun = requests.map(lambda every: any(one.begins for one in every))
    return Batches(chosen, tokens, layouts, len(counts), Both(ours[2], theirs[2]), parted, begun)


def _as_rows(tokens: Both[Tokens], layouts: Both[Layout]) -> tuple[Both[Tokens], Both[Layout]]:
    """Both runs' tokens as the same row, of those alone that both have."""
    found = []
    for own, other, layout in ((tokens.reference, tokens.target, layouts.reference), (tokens.target, tokens.reference, layouts.target)):
        every, ends = (_at_places(x, order) for x, order in ((own.numbers, layout.order), (own.ends, layout.order_of_ends)))
        whole = np.arange(np.count_nonzero(every >= 0))
        last, asked = (np.sort(x[x >= 0]) for x in (ends, other.ends))
        found.append(
            (
                Tokens((1, whole.size), whole, last),
                Layout(
                    layout.grids,
                    _where(every, whole),
                    layout.ends or (ends.size,),
                    _where(ends, last),
                    _where(every, asked),
                    _where(ends, np.intersect1d(last, asked)),
                    layout.pieces,
                ),
            )
        )
    return Both(found[0][0], found[1][0]), Both(found[0][1], found[1][1])


def _at_places(numbers: NDArray[np.int64], order: Sequence[int]) -> NDArray[np.int64]:
    """The tokens where they lie, of those that lie so in order."""
    if not order:
        return numbers
    found = np.empty_like(numbers)
    found[list(order)] = numbers
    return found


def _where(every: NDArray[np.int64], tokens: NDArray[np.int64]) -> tuple[int, ...]:
    """The place of each token."""
    places = np.argsort(every, kind="stable")
    return tuple(places[np.searchsorted(every[places], tokens)].tolist())


def _parted(requests: Both[list[Request]], counts: Sequence[int]) -> Iterator[Parted]:
    for number, (both, count) in enumerate(zip(zip(*requests, strict=True), counts, strict=True)):
        after = [one.ids[count] if len(one.ids) > count else one.then for one in both]
        if (after[0] is not None and after[1] is not None) or any(one.lacks for one in both):
            yield Parted(sum(counts[: number + 1]) - 1, count, Both(after[0], after[1]))


def _columns(steps: Sequence[Given], requests: Sequence[Request]) -> list[int]:
    """At which place of its step's rows each request begins."""
    return [one.at[0][1] % steps[one.at[0][0]].ids.shape[1] if one.at else 0 for one in requests]


def _of_side(
    steps: Sequence[Given], chosen: Sequence[int], requests: Sequence[Request], columns: Sequence[int], counts: Sequence[int]
) -> tuple[Tokens, Layout, int]:
    """Which token stands where in the steps of one run, how they lie there together, and how many are of this run alone."""
    grids = tuple((steps[step].ids.shape[0], steps[step].ids.shape[1]) for step in chosen)
    numbers = {step: np.full(requests * width, -1, np.int64) for step, (requests, width) in zip(chosen, grids, strict=True)}
    pieces: dict[int, list[tuple[int, int, int, int]]] = {step: [] for step in chosen}
    places: dict[int, list[Piece]] = {step: [] for step in chosen}
    token = 0
    for request, column, count in zip(requests, columns, counts, strict=True):
        begin = token
        for step, piece in groupby(request.at[:count], key=itemgetter(0)):
            own = [place for _, place in piece]
            numbers[step][own] = np.arange(token, token + len(own))
            pieces[step].append((begin, token, token + len(own), column))
            places[step].append(Piece(own[0], own[-1], request.prompt is not None and token - begin >= request.prompt))
            token += len(own)
    counted = sum(int(np.count_nonzero(steps[step].counts)) for step in chosen)
    given = [(steps[step], places[step]) for step in chosen]
    ends = [numbers[step][own] for step, own in zip(chosen, ends_of_steps(given), strict=True)]
    every, ended = np.concatenate(list(numbers.values())), np.concatenate(ends)
    in_pieces = tuple(
        tuple((*piece, own) for piece, own in zip(of_step, behind(*both), strict=True))
        for of_step, both in zip(pieces.values(), given, strict=True)
    )
    if len(chosen) == 1 and not any(one.begins for one in requests):
        return Tokens(grids[0], every, ended), Layout(grids, pieces=in_pieces), counted - token
    order, order_of_ends = _in_order(every), _in_order(ended)
    layout = Layout(grids, tuple(order.tolist()), tuple(map(len, ends)), tuple(order_of_ends.tolist()), pieces=in_pieces)
    return Tokens((1, every.size), every[order], ended[order_of_ends]), layout, counted - token


def _in_order(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of the tokens that both runs have, in order, and then all others."""
    return np.argsort(np.where(numbers < 0, np.iinfo(np.int64).max, numbers), kind="stable")
