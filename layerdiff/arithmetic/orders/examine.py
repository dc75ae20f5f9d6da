"""`examine`: one sum, taken apart: the ladder test by test, the race between orders, and where the error sits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Spread
from layerdiff.arithmetic.folded import folded
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.orders.advice import advice_for
from layerdiff.arithmetic.orders.analysis import Analysis, Hypothesis, Test
from layerdiff.arithmetic.orders.attribution import histogram_of, profiles_of, slope_of, term_ranges
from layerdiff.arithmetic.orders.order import Order
from layerdiff.arithmetic.orders.race import ENOUGH, MISSES, Race, Standing, course_of, race, reproduced
from layerdiff.arithmetic.orders.summing import Product, Summing
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.arithmetic.own import BEYOND, distance_of, own_replay
from layerdiff.arithmetic.residual import FEW_RESULTS, FEW_TERMS, ZMAX_LIMIT, ZRMS_LIMIT, Residual, ratio, rms
from layerdiff.arithmetic.structure import explanation_for
from layerdiff.arithmetic.sums import VALID_BELOW
from layerdiff.arithmetic.verdict import Own

Array = NDArray[Any]
SHOWN: Final = 12
"""Hypotheses that are kept beside the winners."""
_SHOWN_ELSEWHERE: Final = ("result", "chain", "order", "arithmetic", "made", "tried")
_AXES: Final = {1: ("result",), 2: ("row", "column"), 3: ("batch", "row", "column"), 4: ("batch", "head", "row", "column")}


@dataclass(frozen=True)
class Sum:
    """One call's sums as they are examined: all of its results, or a sample.

    Attributes:
        operator, operands: as they are shown.
        summing: the terms of each result.
        recorded, exact: of one shape, float64; spread: of that shape.
        format, accumulator: the result's, and the declared one; `source` says who declared it.
        results: how many the call has; `sampled` says which are looked at, empty for all.
        product: the matrix product, where it is one.
        axes: names of the axes of `recorded`.
    """

    operator: str
    operands: str
    summing: Summing
    recorded: Array
    exact: Array
    spread: Spread
    format: Format
    accumulator: Format
    source: str = "assumed"
    results: int = 0
    sampled: str = ""
    product: Product | None = None
    axes: Sequence[str] = field(default=())


def examine(one: Sum, trees: tuple[tuple[str, Tree], ...] = (), *, site: str = "", side: str = "") -> Analysis:
    """Everything that is known of how a call added up; `trees` are those of a probe, by name, and are tried first."""
    recorded, exact = np.asarray(one.recorded, np.float64), np.asarray(one.exact, np.float64)
    sigma = np.broadcast_to(np.asarray(one.spread.sigma, np.float64), recorded.shape)
    bound = np.broadcast_to(np.asarray(one.spread.bound, np.float64), recorded.shape)
    live = np.isfinite(recorded) & np.isfinite(exact) & np.isfinite(bound)
    residual = Residual(recorded, exact, sigma, bound, live, one.format, one.accumulator, one.spread.terms)
    ran: Race | None = None

    def compete(left: Residual, possible: bool) -> Race:
        nonlocal ran
        ran = _raced(one, left, trees, possible, less=True)
        return ran

    own = own_replay(
        [recorded],
        [one.format.name],
        [exact],
        [one.spread],
        one.accumulator,
        explain=lambda left: explanation_for(left, one.product),
        orders=compete,
    )
    if ran is None and own.verdict in ("identical", "order-consistent"):
        ran = _raced(one, residual, trees, True, less=False)
    verdict, statement, rung = own.verdict, own.statement, own.rung
    if verdict == "order-consistent" and ran is not None and ran.winners and ran.enough:
        verdict, statement, rung = "order-exact", reproduced(ran), "5"
    with np.errstate(all="ignore"):
        distance = distance_of(recorded, exact, one.format, one.accumulator, live)
        z = ratio(distance, sigma)
        error = np.where(live, recorded - exact, 0.0)
    parts = folded(residual, one.product) if one.product is not None else None
    slope = slope_of(error[live], exact[live])
    winner = ran.winners[0].candidate.order if ran is not None and ran.winners else None
    return Analysis(
        site=site,
        operator=one.operator,
        side=side,
        operands=one.operands,
        terms=one.spread.terms,
        results=one.results or recorded.size,
        compared=int(live.sum()),
        sampled=one.sampled,
        accumulator=one.accumulator.name,
        source=one.source,
        verdict=verdict,
        cause=own.cause,
        statement=statement,
        tests=_tests(own, ran, rung, residual, distance, z, recorded, bound),
        zrms=float(rms(z[live])),
        zmax=float(np.max(z[live])) if np.any(live) else 0.0,
        chain=own.evidence.get("chain"),
        slope=None if slope is None else slope[0],
        slope_t=None if slope is None else slope[1],
        histogram=histogram_of(np.copysign(z, error)[live]) if np.any(sigma > 0) else None,
        informative=0 if ran is None else ran.informative,
        hypotheses=() if ran is None else _hypotheses(ran),
        tried=() if ran is None else ran.families,
        ranges=term_ranges(parts) if parts is not None and np.any(parts.error) else (),
        profiles=profiles_of(np.square(np.where(live, distance, 0.0)), one.axes or _AXES.get(recorded.ndim, ())),
        tree=winner.tree() if isinstance(winner, Order) else winner,
        advice=advice_for(verdict, own.cause, {**own.evidence, "rung": own.rung}),
        evidence={key: value for key, value in own.evidence.items() if key not in _SHOWN_ELSEWHERE},
    )


def _raced(one: Sum, residual: Residual, trees: tuple[tuple[str, Tree], ...], possible: bool, *, less: bool) -> Race:
    course = course_of(one.summing, residual.recorded, residual.exact, residual.sigma, residual.live, residual.format, residual.accumulator)
    fitting = tuple((name, tree) for name, tree in trees if tree.leaves == one.summing.terms)
    return race(course, fitting, orders=possible, less=less)


def _hypotheses(ran: Race) -> tuple[Hypothesis, ...]:
    won = len(ran.winners)
    listed = [*ran.winners, *([ran.runner_up] if ran.runner_up is not None else [])]
    listed += [one for one in ran.standings[won:] if one is not ran.runner_up][:SHOWN]
    return tuple(_hypothesis(one, i < won) for i, one in enumerate(listed))


def _hypothesis(one: Standing, won: bool) -> Hypothesis:
    order = one.candidate.order
    also = order.also if isinstance(order, Order) else ()
    return Hypothesis(one.candidate.name, also, one.candidate.arithmetic, one.candidate.kind, one.made, one.tried, won)


def _tests(
    own: Own, ran: Race | None, rung: str, residual: Residual, distance: Array, z: Array, recorded: Array, bound: Array
) -> tuple[Test, ...]:
    """The ladder as it went: every rung up to the one that decided, and those after it that were asked all the same."""
    decided = rung.partition(":")[0].strip() if rung[:1].isdigit() else "4"
    live, terms = residual.live, residual.terms
    off = int(np.count_nonzero(distance))
    most = float(np.max(ratio(distance, bound), initial=0.0))
    zrms, zmax = float(rms(z[live])), float(np.max(z[live], initial=0.0))
    unit = residual.accumulator.unit
    valid = terms * unit < VALID_BELOW
    enough = terms >= FEW_TERMS and int(live.sum()) >= FEW_RESULTS
    new = int(np.count_nonzero(~np.isfinite(recorded)))
    found = [
        _test(
            "2",
            "no NaN or Inf that arithmetic does not make",
            float(new),
            0.0,
            own.verdict != "broken",
            decided,
            f"{new} results are not finite",
        ),
        _test(
            "3", "the exact result, correctly rounded", float(off), 0.0, off == 0, decided, f"{off} of {int(live.sum())} results are not"
        ),
    ]
    if enough and valid:
        worse = zmax / ZMAX_LIMIT > zrms / ZRMS_LIMIT
        measured, allowed = (zmax, ZMAX_LIMIT) if worse else (zrms, ZRMS_LIMIT)
        said = f"zrms {zrms:.3g} of {ZRMS_LIMIT}, zmax {zmax:.3g} of {ZMAX_LIMIT:g}"
        found.append(_test("4", "error over sigma", measured, allowed, zrms <= ZRMS_LIMIT and zmax <= ZMAX_LIMIT, decided, said))
    elif valid:
        said = f"the worst is at {most:.3g} of the bound; too few terms or results for statistics"
        found.append(_test("4", "inside the deterministic bound", most, 1.0, most <= 1.0, decided, said))
    else:
        said = f"{terms} terms times the unit of {residual.accumulator.name} is {terms * unit:.3g}, over {VALID_BELOW}: not valid"
        found.append(Test("4", "error over sigma", None, None, "not asked", rung.startswith("statistics"), said))
    found += _race_tests(ran, decided, most)
    asked = own.rung[:1] in ("7", "8", "9")
    found.append(_asked("7", "structure tests and fits", own.cause is not None and own.rung.startswith("7"), asked, decided, own.statement))
    outside = int(np.count_nonzero(ratio(distance, bound) > 1.0))
    said = f"{outside} results lie outside it; the worst at {most:.3g} of it"
    found.append(_test("8", "inside the deterministic bound of any order", most, 1.0, most <= 1.0, decided, said))
    return tuple(found)


def _race_tests(ran: Race | None, decided: str, most: float) -> list[Test]:
    names = ("5", "orders at the declared accumulator, bit by bit"), ("6", "less precision, bit by bit")
    if ran is None:
        return [Test(rung, name, None, None, "not asked", False, "") for rung, name in names]
    lower = bool(ran.winners) and ran.winners[0].candidate.kind == "lower"
    tests = []
    for (rung, name), mine in zip(names, (not lower, lower), strict=True):
        kinds = ("lower",) if rung == "6" else ("declared", "unit")
        raced = [one for one in ran.standings if one.candidate.kind in kinds]
        if not raced:
            why = ""
            if rung == "5":
                few = f"too few results tell orders apart: {ran.informative} of {ran.results}, {ENOUGH} are needed"
                why = f"no order makes {most:.3g} times the bound" if most > BEYOND else few
            tests.append(Test(rung, name, None, None, "not asked", False, why))
            continue
        best = max(raced, key=lambda one: (one.tried, one.share)) if not mine else raced[0]
        held = mine and bool(ran.winners)
        missed = 1.0 - (ran.winners[0].share if held else max(one.share for one in raced))
        said = reproduced(ran) if held else f"the best, {best.candidate.text}, makes {best.made} of {best.tried}"
        if held and not ran.enough:
            said = f"too few results tell orders apart: {ran.informative} of {ran.results}, {ENOUGH} are needed"
        tests.append(Test(rung, name, missed, MISSES, "holds" if held and ran.enough else "fails", decided == rung, said))
    return tests


def _test(rung: str, name: str, measured: float, allowed: float, holds: bool, decided: str, statement: str) -> Test:
    return Test(rung, name, measured, allowed, "holds" if holds else "fails", decided == rung, statement)


def _asked(rung: str, name: str, holds: bool, asked: bool, decided: str, statement: str) -> Test:
    if not asked:
        return Test(rung, name, None, None, "not asked", False, "")
    return Test(rung, name, None, None, "holds" if holds else "fails", decided == rung, statement if holds else "none names the error")
