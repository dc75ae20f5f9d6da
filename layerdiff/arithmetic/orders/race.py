"""`race`: the hypotheses that make the recorded results, bit for bit, and those that do not.

All are tried on a few results first; what survives is tried on every result that can tell orders apart. With 16-bit results only few
can: those whose exact sum lies near the middle between two numbers. They are looked for, never drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT32, Format, interval, round_to
from layerdiff.arithmetic.orders.candidates import SHORT, Candidate, Situation, declared, lower, narrow_formats, units
from layerdiff.arithmetic.orders.narrow import rounded_parts
from layerdiff.arithmetic.orders.ranks import rank_sum, ways_of
from layerdiff.arithmetic.orders.replaying import Replayed
from layerdiff.arithmetic.orders.summing import Summing, Taken
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.arithmetic.residual import ZMAX_LIMIT
from layerdiff.progress import tell

HEAT: Final = 64
"""Results that every hypothesis is tried on."""
MOST: Final = 1 << 14
"""Results that the survivors are tried on, evenly spaced where there are more."""
WORST: Final = 1 << 10
"""Results furthest from the exact ones that they are tried on besides, so that one wrong result is never left out."""
CERTAIN: Final = 0.9
"""Share of the results that a hypothesis must be certain of: one that says nothing of most of them explains nothing."""
ENOUGH: Final = 20
"""Results that must decide, and by which the next hypothesis must fall behind."""
MISSES: Final = 1e-4
"""Share of results that a right hypothesis may miss, each within what arithmetic makes: a fused multiply-add is emulated by two
roundings."""
RINGS: Final = (2, 3, 4, 6, 8, 16)
"""Parts that may have been added in a ring."""
_SIGMAS: Final = 6.0
_AT_ONCE: Final = 1 << 22
"""Products of a heat."""


@dataclass(frozen=True)
class Standing:
    """How one hypothesis did: `made` of `tried` results reproduced to the bit; it was `asked` about so many, and certain of those tried."""

    candidate: Candidate
    made: int
    tried: int
    asked: int
    wild: bool = False
    """Whether a result that it misses lies further out than arithmetic allows."""

    def plus(self, more: Standing) -> Standing:
        """On further results."""
        return Standing(self.candidate, self.made + more.made, self.tried + more.tried, self.asked + more.asked, self.wild or more.wild)

    @property
    def share(self) -> float:
        """made / tried; 0 where it said nothing."""
        return self.made / self.tried if self.tried else 0.0


@dataclass(frozen=True)
class Race:
    """What came of a race.

    Attributes:
        winners: the hypotheses that make every informative result (all but MISSES of them); several are a class that these results
            do not tell apart.
        runner_up: the best of the others, on the same results.
        standings: all that were tried, the best first, each with its last heat.
        results: how many results the call has.
        informative: how many of them tell orders apart at the declared accumulator.
        families: what was tried, in words, with numbers.
    """

    winners: tuple[Standing, ...]
    runner_up: Standing | None
    standings: tuple[Standing, ...]
    results: int
    informative: int
    families: tuple[str, ...]

    @property
    def enough(self) -> bool:
        """Whether enough results tell orders apart for a name."""
        return self.informative >= ENOUGH

    @property
    def gap(self) -> int | None:
        """By how many results the runner-up falls behind; None where there is none."""
        if self.runner_up is None or not self.winners:
            return None
        return self.runner_up.tried - self.runner_up.made


@dataclass(frozen=True)
class Course:
    """What a race runs on: the recorded results [n], exact sums and sigma of each, and what makes them.

    `live` marks the results that are compared.
    """

    summing: Summing
    recorded: NDArray[np.float64]
    exact: NDArray[np.float64]
    sigma: NDArray[np.float64]
    live: NDArray[np.bool_]
    situation: Situation

    @cached_property
    def inside(self) -> NDArray[np.float64]:
        """How far the exact result lies inside the reals that round to the recorded one, in sigma; negative outside."""
        low, high = interval(np.where(self.live, self.recorded, 0.0), self.situation.format)
        inside = np.minimum(self.exact - low, high - self.exact)
        with np.errstate(all="ignore"):
            return np.where(self.live, inside / np.where(self.sigma > 0, self.sigma, np.nan), np.nan)

    def informative(self) -> NDArray[np.intp]:
        """Flat indices of the results where the order may show: within 6 sigma of the middle between two numbers, or beyond it."""
        return np.flatnonzero(self.inside <= _SIGMAS)

    def worst(self) -> NDArray[np.intp]:
        """Flat indices of the results furthest outside, at most WORST."""
        outside = np.flatnonzero(self.inside < 0)
        if outside.size <= WORST:
            return outside
        return np.asarray(outside[np.argpartition(self.inside[outside], WORST)[:WORST]])

    def everything(self) -> NDArray[np.intp]:
        """Flat indices of all results that are compared."""
        return np.flatnonzero(self.live)


def race(course: Course, trees: tuple[tuple[str, Tree], ...] = (), *, orders: bool = True, less: bool = True) -> Race:
    """All hypotheses: the declared accumulator and fused units, and, where none of these holds, less precision.

    Args:
        trees: summation trees of a probe, by name.
        orders: whether orders at the declared accumulator are tried at all: no order makes more than the deterministic bound.
        less: whether less precision is tried where these do not hold.
    """
    known = course.situation
    telling = course.informative()
    first = _round(course, [*declared(known, trees), *units(known)] if orders else [], telling, closest=True)
    if first.winners or not less or known.accumulator is not FLOAT32:
        return first
    second = _round(course, list(lower(known)), course.everything(), closest=False)
    if not second.winners:
        second = _with_rings(course, second)
    best = second if second.winners or not first.standings else first
    return Race(
        second.winners,
        best.runner_up,
        (*second.standings, *first.standings),
        first.results,
        second.informative if second.winners else first.informative,
        first.families + second.families,
    )


def _round(course: Course, candidates: list[Candidate], where: NDArray[np.intp], *, closest: bool) -> Race:
    """Heat after heat, each of more results: whoever misses one is out. `closest`: those nearest to a middle, which tell most, first."""
    compared, families = int(course.live.sum()), _families(candidates)
    if where.size == 0 or not candidates:
        return Race((), None, (), compared, int(where.size), families)
    line = np.union1d(_spread(where, MOST), course.worst())
    if closest:
        line = line[np.argsort(np.abs(course.inside[line]), kind="stable")]
    else:
        first = _spread(line, HEAT)
        line = np.concatenate([first, np.setdiff1d(line, first)])
    stand = [Standing(candidate, 0, 0, 0) for candidate in candidates]
    alive = list(range(len(stand)))
    heats, done = list(_heats(line, course.situation.terms)), 0
    for part in heats:
        taken = course.summing.take(part)
        for i in alive:
            tell(done)  # whoever misses a result is out: how many sums are left is known at the end
            stand[i] = stand[i].plus(_standing(course, candidates[i], taken, part))
            done += part.size
        alive = [i for i in alive if 2 * stand[i].tried >= stand[i].asked and stand[i].made >= stand[i].tried - 1]
        if not alive:
            break
    won = [i for i in alive if _holds(stand[i])]
    beaten = [i for i in range(len(stand)) if i not in won]
    second = max(beaten, key=lambda i: (stand[i].asked, stand[i].share), default=None)
    if second is not None and won:
        stand[second] = _to_the_end(course, stand[second], line)
    winners = tuple(stand[i] for i in won)
    rest = sorted((stand[i] for i in beaten), key=lambda one: (-one.asked, -one.share))
    return Race(winners, None if second is None else stand[second], (*winners, *rest), compared, int(where.size), families)


def _heats(line: NDArray[np.intp], terms: int) -> Iterator[NDArray[np.intp]]:
    """The results in portions: HEAT of them, then eight times as many each, as far as they fit in memory."""
    begin, size = 0, HEAT
    while begin < line.size:
        yield line[begin : begin + size]
        begin += size
        size = min(8 * size, max(HEAT, _AT_ONCE // max(terms, 1)))


def _to_the_end(course: Course, one: Standing, line: NDArray[np.intp]) -> Standing:
    """A hypothesis that is out, on the results that it was not tried on."""
    for part in _heats(line[one.asked :], course.situation.terms):
        one = one.plus(_standing(course, one.candidate, course.summing.take(part), part))
    return one


def _with_rings(course: Course, ran: Race) -> Race:
    """The race, with rings among the hypotheses: parts added from another rank on in each stretch of the flattened result."""
    known = course.situation
    if known.format not in narrow_formats(known):
        return ran
    everything = course.everything()
    for parts in RINGS:
        if 2 * parts > known.terms:
            continue
        where = _spread(everything, HEAT)
        rounded, certain = _parts(course, parts, where)
        if not np.all(_made_somehow(rounded, course.recorded[where], known.format) | ~certain):
            continue
        where = _spread(everything, MOST)
        rounded, certain = _parts(course, parts, where)
        if certain.mean() < CERTAIN:
            continue
        found = rank_sum(rounded, course.recorded[where], known.format, certain)
        if not found.stretches:
            continue
        short = SHORT[known.format.name]
        name = f"{parts} partial sums in {short}, added in a ring in {len(found.stretches)} chunks"
        begins = [re.findall(r"from rank (\d+)", stretch.ways[0]) or ["0"] for stretch in found.stretches]
        said = f"chunks begin at rank {', '.join(one[0] for one in begins)}"
        candidate = Candidate(name, said, "lower", None, cause=f"{short}-partials")
        standing = Standing(candidate, int(certain.sum()), int(certain.sum()), int(where.size))
        best = ran.standings[0] if ran.standings else None
        return replace(ran, winners=(standing,), runner_up=best, standings=(standing, *ran.standings))
    return replace(ran, families=(*ran.families, f"{len(RINGS)} × rings over chunks of the result"))


def _parts(course: Course, parts: int, where: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Rounded partial sums [P, m] of results, in portions that fit in memory, and where they are certain."""
    known, portion = course.situation, max(1, _AT_ONCE // course.situation.terms)
    made = [
        rounded_parts(parts, known.format, known.accumulator, course.summing.take(where[begin : begin + portion]))
        for begin in range(0, where.size, portion)
    ]
    return np.concatenate([one[0] for one in made], 1), np.concatenate([one[1] for one in made])


def _made_somehow(parts: NDArray[np.float64], recorded: NDArray[np.float64], format: Format) -> NDArray[np.bool_]:
    return np.asarray(np.any([values == recorded for values in ways_of(parts, format).values()], axis=0))


def _spread(where: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """At most `count` of these, evenly spaced."""
    return np.asarray(where[np.unique(np.linspace(0, where.size - 1, min(count, where.size)).astype(int))])


def _holds(one: Standing) -> bool:
    return not one.wild and one.tried >= max(1.0, CERTAIN * one.asked) and one.tried - one.made <= MISSES * one.tried


def _standing(course: Course, candidate: Candidate, taken: Taken, where: NDArray[np.intp]) -> Standing:
    known, summing = course.situation, course.summing
    assert candidate.run is not None
    found: Replayed = candidate.run(taken)
    equal = np.zeros(where.shape, bool)
    for values in _finished(summing, found.values, known.accumulator):
        if candidate.added == "last" and taken.start is not None:
            values = round_to(values + taken.start, known.accumulator)
        result = round_to(values, known.format)
        if candidate.added == "after" and taken.start is not None:
            result = round_to(result + taken.start, known.format)
        equal |= result == course.recorded[where]
    wild = bool(np.any(course.inside[where[found.certain & ~equal]] < -ZMAX_LIMIT))
    return Standing(candidate, int(np.count_nonzero(equal & found.certain)), int(np.count_nonzero(found.certain)), int(where.size), wild)


def _finished(summing: Summing, sums: NDArray[np.float64], accumulator: Format) -> Iterable[NDArray[np.float64]]:
    """The finished sums, scaled and divided: a division by n may be a multiplication by 1 / n."""
    if summing.scale != 1.0:
        sums = round_to(summing.scale * sums, accumulator)
    if summing.divisor == 1.0:
        return (sums,)
    return (
        round_to(sums / summing.divisor, accumulator),
        round_to(sums * round_to(np.asarray(1.0 / summing.divisor), accumulator), accumulator),
    )


_SORTS: Final = {
    "bf16-partials": "partial sums in bf16",
    "fp16-partials": "partial sums in fp16",
    "bf16-accumulator": "a running sum in bf16",
    "fp16-accumulator": "a running sum in fp16",
}


def _families(candidates: list[Candidate]) -> tuple[str, ...]:
    """`185 × orders with fp32, fused multiply-add`."""
    counts: dict[str, int] = {}
    for one in candidates:
        said = f"orders with {one.arithmetic}" if one.order is not None else f"sums of {_SORTS.get(one.cause or '', one.cause or '')}"
        counts[said] = counts.get(said, 0) + 1
    return tuple(f"{count} × {said}" for said, count in counts.items())


def course_of(
    summing: Summing,
    recorded: NDArray[Any],
    exact: NDArray[Any],
    sigma: NDArray[Any],
    live: NDArray[np.bool_],
    format: Format,
    accumulator: Format,
) -> Course:
    """A course from arrays of the result's shape; whether products are exact is seen on the first results."""
    flat = [np.asarray(np.broadcast_to(x, recorded.shape), np.float64).reshape(-1) for x in (recorded, exact, sigma)]
    alive = np.broadcast_to(live, recorded.shape).reshape(-1)
    some = summing.take(np.unique(np.linspace(0, summing.count - 1, min(16, summing.count)).astype(np.intp)))
    products = some.left if some.right is None else some.left * some.right
    exact_products = some.right is None or bool(np.array_equal(round_to(products, accumulator), products))
    known = Situation(summing.terms, accumulator, format, exact_products, some.right is not None, summing.has_start, summing.arrangements)
    return Course(summing, flat[0], flat[1], flat[2], alive, known)


def reproduced(ran: Race) -> str:
    """One sentence about a race that was won."""
    best = ran.winners[0]
    every = "All" if best.made == best.tried else f"{best.made} of"
    what = f"{every} {best.tried} results that tell orders apart are made bit for bit by {best.candidate.text}"
    others = len(ran.winners) - 1
    alike = f" (and {others} more that they do not tell apart)" if others else ""
    after = ""
    if ran.runner_up is not None and ran.runner_up.asked == best.asked:
        after = f"; the next misses {ran.runner_up.tried - ran.runner_up.made}"
    return f"{what}{alike}{after}."
