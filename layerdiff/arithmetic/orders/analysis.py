"""`Analysis`: everything that is known of how one call added up: the ladder test by test, the race, the attribution, the advice.

Plain numbers and texts, with no arrays of the operands: screens, reports and JSON are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from layerdiff.arithmetic.orders.tree import Tree

SCHEMA: Final = "layerdiff.order/1"
Word = Literal["identical", "order-exact", "order-consistent", "precision", "defect", "unexplained", "broken", "not-comparable"]


@dataclass(frozen=True)
class Test:
    """One rung of the ladder, in the order in which they are asked.

    Attributes:
        rung: `3`.
        name: `the exact result, correctly rounded`.
        measured, allowed: its figure and limit, None where it has none.
        outcome: "holds", "fails", or "not asked".
        decided: whether this one gave the verdict.
        statement: one sentence with the numbers.
    """

    rung: str
    name: str
    measured: float | None
    allowed: float | None
    outcome: Literal["holds", "fails", "not asked"]
    decided: bool
    statement: str


@dataclass(frozen=True)
class Hypothesis:
    """One candidate and how many results it makes, bit for bit.

    Attributes:
        name: `split-K 4`.
        also: other names of the same order.
        arithmetic: `fp32, fused multiply-add`.
        kind: "declared", "unit" (fused units), "lower" (less precision), "variant" (another way to compute, not only another order).
        made, tried: results reproduced, of how many.
        won: whether it makes all that decide.
    """

    name: str
    also: tuple[str, ...]
    arithmetic: str
    kind: str
    made: int
    tried: int
    won: bool

    @property
    def share(self) -> float:
        """made / tried, 0 where nothing was tried."""
        return self.made / self.tried if self.tried else 0.0


@dataclass(frozen=True)
class TermRange:
    """A stretch of the terms: c is how much of it is missing (-1), right (0), or counted twice (+1)."""

    first: int
    last: int
    """One past the last."""
    share: float
    noise: float
    """What rounding alone may make of `share`."""


@dataclass(frozen=True)
class Profile:
    """Where along one axis of the result the error sits: the share of all squared error at each place, pooled to at most 64 places."""

    axis: str
    shares: tuple[float, ...]
    concentrated: bool
    statement: str


@dataclass(frozen=True)
class Fit:
    """A parameter fitted to the results.

    Attributes:
        name: `epsilon`, `softmax scale`.
        value, error: the estimate and its standard error.
        declared: what the call was given.
        inside: whether `declared` lies within 4 errors of `value`.
    """

    name: str
    value: float
    error: float
    declared: float
    inside: bool

    @property
    def text(self) -> str:
        """`epsilon fitted 9.91e-06 ± 5e-09, declared 1e-05: outside`."""
        where = "inside" if self.inside else "outside"
        return f"{self.name} fitted {self.value:.6g} ± {self.error:.2g}, declared {self.declared:.6g}: {where}"


@dataclass(frozen=True)
class Analysis:
    """How one call added up.

    Attributes:
        site, operator, side: where; `side` is "reference", "target", or "" for a single trace.
        operands: `[512, 4096] bf16 · [4096, 1024] bf16 -> [512, 1024] bf16`.
        terms: K; 0 where the call sums nothing.
        results: how many results it has; `compared` how many of them were looked at; `sampled` says which.
        accumulator, source: the declared accumulator and who says so ("assumed").
        verdict, cause, statement: as of the ladder.
        tests: the ladder.
        zrms, zmax: error over sigma.
        chain: how many additions in sequence would make this error, None where there is none.
        slope, slope_t: the error as a factor of the result, and its t.
        histogram: (left edge of z, count), z from -12 to 12; None where there are no statistics.
        informative: results that tell orders apart; hypotheses: those tried, the best first; tried: what was tried, in words.
        ranges: the terms by stretches.
        profiles: the error along each axis.
        tree: the summation tree of the first winner.
        computed: of a fused call which way it was computed, in a sentence; the hypotheses are those ways. fits: parameters fitted to it.
        advice: what would make the two agree, or that nothing needs doing.
        evidence: whatever else the deciding rung measured.
    """

    site: str
    operator: str
    side: str
    operands: str
    terms: int
    results: int
    compared: int
    sampled: str
    accumulator: str
    source: str
    verdict: Word
    cause: str | None
    statement: str
    tests: tuple[Test, ...] = ()
    zrms: float = float("nan")
    zmax: float = float("nan")
    chain: float | None = None
    slope: float | None = None
    slope_t: float | None = None
    histogram: tuple[tuple[float, int], ...] | None = None
    informative: int = 0
    hypotheses: tuple[Hypothesis, ...] = ()
    tried: tuple[str, ...] = ()
    ranges: tuple[TermRange, ...] = ()
    profiles: tuple[Profile, ...] = ()
    tree: Tree | None = None
    computed: str = ""
    fits: tuple[Fit, ...] = ()
    advice: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def winners(self) -> tuple[Hypothesis, ...]:
        """The hypotheses that hold."""
        return tuple(one for one in self.hypotheses if one.won)

    @property
    def runner_up(self) -> Hypothesis | None:
        """The best of those that do not hold."""
        return next((one for one in self.hypotheses if not one.won), None)


@dataclass(frozen=True)
class OrderReport:
    """`layerdiff order`: one call of one trace, or a call of both and what is said of the two together.

    Attributes:
        analyses: one or two (reference, target).
        composed: where one side makes the sum in several calls: which, and how they are added; empty else.
        verdict, statement: of the two together; of the one where there is one.
        advice: what would make the two agree.
    """

    analyses: tuple[Analysis, ...]
    verdict: Word
    statement: str
    composed: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def _plain(value: Any) -> Any:
    if isinstance(value, Tree):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def to_json(report: OrderReport) -> dict[str, Any]:
    """JSON values; numbers that are not finite are left for the JSON writer to say."""
    return {"schema": SCHEMA, **_plain(report)}
