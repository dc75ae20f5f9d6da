"""`rank`: which way of computing made the recorded results, and which ways they do not tell apart.

Another library's exp differs in the last bit, so no way is asked to make every bit. Two ways are compared where they differ: on the
results that the two round to different numbers, the right one makes nearly all and the other nearly none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT32, Format, excess, round_to
from layerdiff.arithmetic.orders.analysis import Fit, Hypothesis
from layerdiff.arithmetic.orders.candidates import SHORT
from layerdiff.arithmetic.residual import ZRMS_LIMIT

Array = NDArray[np.float64]
ENOUGH: Final = 20
"""Results by which the next way must fall behind, as in a race of orders."""
TIMES: Final = 3.0
"""How many times as many of the results on which two ways differ the better one makes. Calibrated (tests/evaluate, section variants)."""
ALIKE: Final = 2.0
"""How many times the least zrms of fp32 results another way's may be, before it is told from the best: four times its variance."""
NOISE: Final = 6.0
DRAWS: Final = 6
SLACK: Final = 16
FAR: Final = 2.0
FLOOR: Final = 0.002
"""A way holds where it misses at most SLACK results more than it misses of its own (the most of DRAWS) with NOISE times the noise of
fp32 in scores and exponentials, and by at most FAR times as much (zrms, and FLOOR). One probability that rounds the other way moves
some results of its row together. Calibrated likewise: right ways at most 1.0 times as much, near ones that are not tried 2 to 2000."""
NAMED: Final = 6
"""Ways of a class that a sentence lists; the hypotheses have them all."""


INSIDE: Final = 4.0
"""Standard errors within which a declared parameter is the fitted one: one call in 16 000 by chance."""


def fit(name: str, value: float, error: float, declared: float) -> Fit:
    """A Fit; `inside` by INSIDE."""
    return Fit(name, value, error, declared, bool(abs(value - declared) <= INSIDE * error))


@dataclass(frozen=True)
class Variants:
    """Evidence of how one call was computed; it gives no verdict.

    Attributes:
        hypotheses: the ways that were tried, the best first; `won` marks the class that holds, one where it is told from all others.
        zrms: of each hypothesis the distance of the recorded results to what it makes (beyond the rounding interval where the result
            has 16 bits), over the error that the contract allows, root mean square.
        statement: what came of it.
        fits: parameters fitted with their uncertainty.
        sampled: which results were looked at.
    """

    hypotheses: tuple[Hypothesis, ...]
    zrms: tuple[float, ...]
    statement: str
    fits: tuple[Fit, ...] = ()
    sampled: str = ""


class Made(NamedTuple):
    """What one way makes of the sampled results, before they are rounded to their dtype: float64 [n].

    `again` makes them with NOISE times the noise of fp32, of draw number i; None where nothing is left to fp32.
    """

    name: str
    arithmetic: str
    values: Array
    again: Callable[[int], Array] | None = None


def rank(made: Sequence[Made], recorded: Array, sigma: Array, format: Format) -> Variants:
    """The ways in order, and the class that holds.

    Args:
        made: at least one.
        recorded: the results, float64 [n].
        sigma: the error that the contract allows each before it is rounded, [n].
        format: the dtype of the results.
    """
    live = np.isfinite(recorded) & (sigma > 0) & np.isfinite(sigma) & np.all([np.isfinite(one.values) for one in made[:1]], axis=0)
    recorded, sigma = recorded[live], sigma[live]
    standings = _merged([_standing(one, live, recorded, sigma, format) for one in made])
    narrow = format.unit > FLOAT32.unit
    standings.sort(key=(lambda one: (-one.made, one.zrms)) if narrow else (lambda one: one.zrms))
    holding = _class(standings, recorded, sigma, live, format)
    ordered = holding + [one for one in standings if one not in holding]
    hypotheses = tuple(
        Hypothesis(one.names[0], one.names[1:], one.arithmetic, "variant", one.made, recorded.size, one in holding) for one in ordered
    )
    return Variants(hypotheses, tuple(one.zrms for one in ordered), _said(ordered, holding, recorded.size, format))


@dataclass(eq=False)
class _Standing:
    one: Made
    names: tuple[str, ...]
    rounded: Array
    made: int
    zrms: float

    @property
    def arithmetic(self) -> str:
        return self.one.arithmetic


def _standing(one: Made, live: NDArray[np.bool_], recorded: Array, sigma: Array, format: Format) -> _Standing:
    rounded = round_to(one.values[live], format)
    zrms = _zrms(recorded, one.values[live], sigma, format)
    return _Standing(one, (one.name,), rounded, int(np.count_nonzero(rounded == recorded)), zrms)


def _zrms(recorded: Array, values: Array, sigma: Array, format: Format) -> float:
    """The distance of results to what a way makes, over sigma; beyond their rounding interval where they have 16 bits."""
    if not sigma.size:
        return float("nan")
    with np.errstate(all="ignore"):
        off = excess(recorded, values, format) if format.unit > FLOAT32.unit else np.abs(recorded - values)
        return float(np.sqrt(np.mean(np.square(np.where(np.isnan(off), np.inf, off) / sigma))))


def _merged(standings: list[_Standing]) -> list[_Standing]:
    """Ways that round to the same results are one, with several names."""
    found: dict[bytes, _Standing] = {}
    for one in standings:
        key = one.rounded.tobytes()
        if key in found:
            known = found[key]
            known.names = (*known.names, one.names[0] if one.arithmetic == known.arithmetic else f"{one.names[0]}, {one.arithmetic}")
        else:
            found[key] = one
    return list(found.values())


def _class(standings: list[_Standing], recorded: Array, sigma: Array, live: NDArray[np.bool_], format: Format) -> list[_Standing]:
    best = standings[0]
    if recorded.size < ENOUGH:
        return []
    drawn = [] if best.one.again is None else [best.one.again(draw)[live] for draw in range(DRAWS)]
    if format.unit <= FLOAT32.unit:
        # what is rounded on the way to 16 bits may round the other way, and moves the result by more than fp32 does
        moved = [_zrms(one, best.one.values[live], sigma, format) for one in drawn]
        if not best.zrms <= max(ZRMS_LIMIT, *moved, 0.0):
            return []
        return [one for one in standings if one.zrms <= ALIKE * best.zrms]
    results = [round_to(one, format) for one in drawn]
    far = [_zrms(one, best.one.values[live], sigma, format) for one in results]
    if far and not best.zrms <= FAR * max(far) + FLOOR:
        return []
    missed = [int(np.count_nonzero(one != best.rounded)) for one in results]
    least = recorded.size - max(missed, default=0) - SLACK
    return [one for one in standings if one.made >= least and (one is best or not _beaten(one, best, recorded))]


def _beaten(one: _Standing, best: _Standing, recorded: Array) -> bool:
    differ = one.rounded != best.rounded
    right, wrong = (int(np.count_nonzero(differ & (way.rounded == recorded))) for way in (best, one))
    return right - wrong >= ENOUGH and right >= TIMES * wrong


def _said(ordered: list[_Standing], holding: list[_Standing], count: int, format: Format) -> str:
    if not ordered or count < ENOUGH:
        return f"Too few results tell how this was computed: {count}."
    best = ordered[0]
    others = [one for one in ordered if one not in holding]
    runner = f"; next: {_name(others[0])}, {_figures(others[0], count, format)}" if others else ""
    if not holding:
        return f"None of {len(ordered)} ways makes these results; nearest: {_name(best)}, {_figures(best, count, format)}."
    if len(holding) == 1 and len(best.names) == 1:
        return f"Computed as: {_name(best)}, {_figures(best, count, format)}{runner}."
    names = [text for one in holding for text in (_name(one), *one.names[1:])]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"Not told apart: {'; '.join(names[:NAMED])}{more}. {_figures(best, count, format)}{runner}."


def _name(one: _Standing) -> str:
    return f"{one.names[0]}, {one.arithmetic}" if one.arithmetic else one.names[0]


def _figures(one: _Standing, count: int, format: Format) -> str:
    if format.unit > FLOAT32.unit:
        return f"{one.made} of {count} {SHORT.get(format.name, format.name)} results to the bit, zrms {one.zrms:.2g}"
    return f"zrms {one.zrms:.3g} ({one.made} of {count} to the bit)"
