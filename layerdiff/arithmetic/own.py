"""The ladder for one call: its recorded results against its own exact results, in units of what arithmetic may make.

What is compared is the distance of the exact result to the interval of reals that round to the recorded one, never the
plain difference: in bf16 the rounding of a correct result is a thousand times what a small fault makes. Statistics are
of the whole result, never a vote of elements. The bound convicts sums and never acquits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Contract, ContractError, Spread
from layerdiff.arithmetic.exactly import discrete, non_finite
from layerdiff.arithmetic.formats import FLOAT64, Format, accumulator_for, excess, format_named, round_to
from layerdiff.arithmetic.orders.race import ENOUGH, MISSES, Race, course_of, race, reproduced
from layerdiff.arithmetic.residual import FEW_RESULTS, FEW_TERMS, ZMAX_LIMIT, ZRMS_LIMIT, Explanation, Residual, ratio, rms
from layerdiff.arithmetic.structure import explanation_for
from layerdiff.arithmetic.sums import VALID_BELOW
from layerdiff.arithmetic.verdict import Own, Word
from layerdiff.trace.arguments import Arguments

_REFINE_FROM: Final = 6.0
BEYOND: Final = 4.0
"""Times the deterministic bound beyond which no order at the declared accumulator is tried; units that cut have twice the bound."""
_REFINED_TERMS: Final = 1 << 25
_SEVERITY: Final = ("broken", "defect", "unexplained", "precision", "not-comparable", "order-consistent", "order-exact", "identical")


Explain = Callable[[Residual], Explanation | None]
Try = Callable[[Residual, bool], Race]
"""A race between orders; the flag says whether orders at the declared accumulator can make the error at all."""


def replay_call(
    contract: Contract,
    arguments: Arguments,
    recorded: Sequence[NDArray[Any]],
    dtypes: Sequence[str],
    accumulator: Format | None = None,
    *,
    dead: Sequence[NDArray[np.bool_] | None] = (),
) -> Own:
    """The ladder for one call whose contract has an exact function: exact results, choices settled, spreads, structure tests.

    Args:
        contract: with `exact`.
        arguments: the operands as consumed, float64 for every float dtype.
        recorded: the results, decoded in the same way, in the order of the contract.
        dtypes: torch's names of their dtypes.
        accumulator: the declared format; None for fp32, or float64 where a result or an operand format is float64.
        dead: for each result a mask of elements that are not compared, or None.

    Raises ContractError for arguments that the contract does not know or that do not fit each other, ValueError where it has no `exact`.
    """
    if contract.exact is None:
        raise ValueError("This contract has no exact function; run the operator elsewhere and call own_replay.")
    declared = accumulator or accumulator_for(*dtypes)
    try:
        with np.errstate(all="ignore"):
            exact = contract.exact(arguments)
            if contract.settle is not None:
                exact = contract.settle(arguments, exact, tuple(recorded))
            spreads = contract.spread(arguments, exact, declared)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise ContractError(f"The recorded arguments do not fit the operator: {type(error).__name__}: {error}") from error
    product = contract.product

    def explain(residual: Residual) -> Explanation | None:
        return explanation_for(residual, product(arguments) if product is not None else None)

    summing = contract.summing(arguments, recorded[0].shape) if contract.summing is not None and recorded else None

    def orders(residual: Residual, possible: bool) -> Race:
        assert summing is not None
        course = course_of(summing, residual.recorded, residual.exact, residual.sigma, residual.live, residual.format, residual.accumulator)
        return race(course, orders=possible)

    return own_replay(
        recorded, dtypes, exact, spreads, declared, dead=dead, explain=explain, orders=orders if summing is not None else None
    )


def own_replay(
    recorded: Sequence[NDArray[Any]],
    dtypes: Sequence[str],
    exact: Sequence[NDArray[Any]],
    spreads: Sequence[Spread],
    accumulator: Format,
    *,
    dead: Sequence[NDArray[np.bool_] | None] = (),
    explain: Explain | None = None,
    orders: Try | None = None,
) -> Own:
    """The ladder for the results of one call: the worst of its results, the first of equals.

    Args:
        recorded: decoded results: float64 for floats, native integers and bools.
        dtypes: torch's names of their dtypes.
        exact: the exact results (those beyond the contract's are not compared).
        spreads: a Spread a result.
        accumulator: the declared accumulator.
        dead: masks of elements that are not compared.
        explain: asked for a name where sigma does not acquit.
        orders: asked before that for an order that makes the first result.
    """
    found: Own | None = None
    masks = list(dead) + [None] * len(exact)
    for index, (one, dtype, right, spread, mask) in enumerate(zip(recorded, dtypes, exact, spreads, masks, strict=False)):
        with np.errstate(all="ignore"):
            own = _result(np.asarray(one), dtype, np.asarray(right), spread, accumulator, mask, explain, orders if index == 0 else None)
        own = replace(own, evidence={"result": index, **own.evidence})
        if found is None or _SEVERITY.index(own.verdict) < _SEVERITY.index(found.verdict):
            found = own
    return found or _incomparable("The call has no results that its contract speaks of.")


def _result(
    recorded: NDArray[Any],
    dtype: str,
    exact: NDArray[Any],
    spread: Spread,
    accumulator: Format,
    dead: NDArray[np.bool_] | None,
    explain: Explain | None,
    orders: Try | None,
) -> Own:
    if recorded.shape != exact.shape:
        return _incomparable(f"The recorded result has shape {list(recorded.shape)}, the exact one {list(exact.shape)}.")
    if recorded.dtype.kind == "c" or exact.dtype.kind == "c":
        return _incomparable("Complex results have no own replay.")
    alive = np.ones(recorded.shape, bool) if dead is None else ~np.broadcast_to(dead, recorded.shape)
    sigma = np.broadcast_to(np.asarray(spread.sigma, np.float64), recorded.shape)
    bound = np.broadcast_to(np.asarray(spread.bound, np.float64), recorded.shape)
    format = format_named(dtype)
    if format is None:
        if recorded.dtype.kind == "f":
            return _incomparable(f"The format {dtype} has no arithmetic here.")
        return discrete(recorded, exact, bound, alive)
    right = exact.astype(np.float64, copy=False)
    recorded = recorded.astype(np.float64, copy=False)
    if accumulator.name == FLOAT64.name:  # the exact result is itself computed in float64: two of one kind are compared
        sigma, bound = sigma * 2.0**0.5, bound * 2.0
    wrong = non_finite(recorded, right, bound, alive, format)
    if wrong is not None:
        return wrong
    live = alive & np.isfinite(recorded) & np.isfinite(right) & np.isfinite(bound)
    if not np.any(alive & ~np.isinf(bound)) and recorded.size:
        return _incomparable("No element of the result is one that anything is known of.")
    distance = distance_of(recorded, right, format, accumulator, live)
    residual = Residual(recorded, right, sigma, bound, live, format, accumulator, spread.terms)
    return _finite(residual, distance, spread, explain, orders)


def distance_of(
    recorded: NDArray[np.float64], exact: NDArray[np.float64], format: Format, accumulator: Format, live: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The excess of the live elements; looked for only where the recorded element is not the exact one, rounded."""
    distance = np.zeros(recorded.shape)
    other = live & (recorded != round_to(exact, format))
    if format.smallest_exponent <= -126:  # what lies below the normal numbers may be flushed to zero
        other &= (recorded != 0) | (np.abs(exact) >= accumulator.smallest_normal)
    if np.any(other):
        distance[other] = excess(recorded[other], exact[other], format)
    return distance


def _finite(residual: Residual, distance: NDArray[np.float64], spread: Spread, explain: Explain | None, orders: Try | None) -> Own:
    """Rungs 3 to 9, over the finite elements of one result."""
    count, informative = int(residual.live.sum()), int(np.count_nonzero(distance))
    z = ratio(distance, residual.sigma)
    terms, unit = spread.terms, residual.accumulator.unit
    if informative == 0:
        statement = f"All {count} elements are the exact result, correctly rounded."
        return Own(
            "identical", "3: the exact result, correctly rounded", 0.0, 0.0, 0.0, 0.0, count, -1, None, statement, {"informative": 0}
        )
    live = residual.live
    if terms >= FEW_TERMS and spread.refine is not None and (np.max(z) > _REFINE_FROM or rms(z[live]) > ZRMS_LIMIT):
        sigma = _refined(spread, residual, z, 1.0 if rms(z[live]) > ZRMS_LIMIT else _REFINE_FROM)
        residual = replace(residual, sigma=sigma)
        z = ratio(distance, sigma)
    zrms, zmax = rms(z[live]), float(np.max(z))
    over = ratio(distance, residual.bound)
    most = float(np.max(over))
    few = terms < FEW_TERMS or count < FEW_RESULTS
    worst = int(np.argmax(over if few else z))
    evidence = _worst_evidence(residual, distance, worst) | {
        "informative": informative,
        "terms": terms,
        "accumulator": residual.accumulator.name,
    }
    chain = _chain(distance, residual, terms)
    if chain is not None:
        evidence["chain"] = chain

    def own(verdict: Word, rung: str, measured: float, allowed: float, statement: str, cause: str | None = None, **more: Any) -> Own:
        return Own(verdict, rung, measured, allowed, zrms, zmax, count, worst, cause, statement, {**evidence, **more})

    valid = terms * unit < VALID_BELOW
    if terms < FEW_TERMS and most <= 1.0:
        return own("order-consistent", "4: elementwise bound", most, 1.0, f"The worst of {count} elements is at {most:.3g} of its bound.")
    if terms >= FEW_TERMS and valid and count < FEW_RESULTS and most <= 1.0:
        statement = f"Inside the deterministic bound ({most:.3g} of it); {count} results are too few for statistics."
        return own("order-consistent", f"4: bound only, {count} outputs", most, 1.0, statement)
    if not few and valid and zrms <= ZRMS_LIMIT and zmax <= ZMAX_LIMIT:
        measured, allowed = (zrms, ZRMS_LIMIT) if zrms / ZRMS_LIMIT >= zmax / ZMAX_LIMIT else (zmax, ZMAX_LIMIT)
        statement = f"{terms} additions at {residual.accumulator.name} make this error: {_figures(zrms, zmax)}."
        return own("order-consistent", "4: excess over sigma", measured, allowed, statement)
    ran = orders(residual, most <= BEYOND) if orders is not None and count >= ENOUGH else None
    if ran is not None and ran.winners and ran.enough:
        first, best = ran.winners[0], ran.winners[0].candidate
        said: dict[str, Any] = {
            "order": best.name,
            "arithmetic": best.arithmetic,
            "made": first.made,
            "tried": first.tried,
        }
        missed = 1.0 - first.share
        if best.kind == "lower":
            rung = "6: orders of less precision, bit by bit"
            return own("precision", rung, missed, MISSES, reproduced(ran), best.cause, **said)
        return own("order-exact", "5: orders, bit by bit", missed, MISSES, reproduced(ran), **said)
    if not valid:
        reach = terms * unit
        statement = (
            f"Statistics are not valid: {terms} terms times the unit of {residual.accumulator.name} is {reach:.3g}, over {VALID_BELOW}."
        )
        return own("not-comparable", "statistics not valid", reach, VALID_BELOW, statement)
    named = explain(residual) if explain is not None else None
    if named is not None:
        return own(named.verdict, "7: structure", *_decided(few, most, zrms, zmax), named.statement, named.cause, **named.evidence)
    if most > 1.0:
        rung = "8: elementwise bound" if terms < FEW_TERMS else "8: deterministic bound"
        beyond = int(np.count_nonzero(over > 1.0))
        size = "without an error allowed" if np.isinf(most) else f"the worst at {most:.3g} times it"
        return own(
            "defect",
            rung,
            most,
            1.0,
            f"{beyond} of {count} elements lie outside the bound of {residual.accumulator.name}, {size}.",
            outside=beyond,
        )
    measured, allowed = _decided(few, most, zrms, zmax)
    statement = f"More than {terms} additions at {residual.accumulator.name} make: {_figures(zrms, zmax)}."
    return own("unexplained", "9: excess over sigma", measured, allowed, statement)


def _figures(zrms: float, zmax: float) -> str:
    return f"zrms {zrms:.3g} of {ZRMS_LIMIT}, zmax {zmax:.3g} of {ZMAX_LIMIT:g}"


def _decided(few: bool, most: float, zrms: float, zmax: float) -> tuple[float, float]:
    """The figure that did not pass, and its limit."""
    if few:
        return most, 1.0
    return (zrms, ZRMS_LIMIT) if zrms > ZRMS_LIMIT else (zmax, ZMAX_LIMIT)


def _refined(spread: Spread, residual: Residual, z: NDArray[np.float64], beyond: float) -> NDArray[np.float64]:
    """sigma with elements of z over `beyond` recomputed from their actual prefix sums (F3), the worst first, within a budget of terms."""
    assert spread.refine is not None
    flat_z = z.reshape(-1)
    chosen = np.flatnonzero(flat_z > beyond)
    chosen = chosen[np.argsort(flat_z[chosen])[::-1]][: max(1, _REFINED_TERMS // max(spread.terms, 1))]
    sigma = np.array(residual.sigma, np.float64)
    flat = sigma.reshape(-1)
    scale = 2.0**0.5 if residual.accumulator.name == FLOAT64.name else 1.0
    flat[chosen] = np.maximum(flat[chosen], scale * spread.refine(chosen))
    return sigma


def _chain(distance: NDArray[np.float64], residual: Residual, terms: int) -> float | None:
    """L = K sum(e^2) / sum(sigma^2): how many additions in sequence would make this error; None where no error is allowed."""
    sigma = residual.sigma[residual.live]
    total = float(np.sum(np.square(sigma)))
    return terms * float(np.sum(np.square(distance))) / total if total > 0 and np.isfinite(total) else None


def _worst_evidence(residual: Residual, distance: NDArray[np.float64], worst: int) -> dict[str, Any]:
    def at(values: NDArray[np.float64]) -> float:
        return float(values.reshape(-1)[worst])

    return {
        "recorded": at(residual.recorded),
        "exact": at(residual.exact),
        "excess": at(distance),
        "sigma": at(residual.sigma),
        "bound": at(residual.bound),
    }


def _incomparable(why: str) -> Own:
    return Own("not-comparable", "1: not comparable", np.nan, np.nan, np.nan, np.nan, 0, -1, None, why, {})
