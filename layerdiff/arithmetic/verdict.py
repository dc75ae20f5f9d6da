"""`Own`: what is said of one call by itself, whichever rule says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal["identical", "order-exact", "order-consistent", "precision", "defect", "unexplained", "broken", "not-comparable"]


@dataclass(frozen=True)
class Own:
    """What the ladder says of one call.

    Attributes:
        verdict: the word of the first rung that decides. `identical`: every result is the exact one, correctly rounded.
        rung: the rule that decided, with its formula.
        measured, allowed: the figure of that rule, and its limit.
        zrms, zmax: excess over sigma, root mean square and maximum over the elements compared; inf where sigma is 0 and the
            excess is not; NaN where there are no statistics.
        count: how many elements were compared.
        worst: flat index of the worst element, -1 where there is none.
        cause: what the fault is called where a test names it.
        statement: one sentence with the numbers.
        evidence: plain numbers and texts; `result` is the index of the result spoken of, `informative` how many elements
            lie outside their rounding interval, `sigma` and `bound` and `exact` and `recorded` those of the worst element,
            `chain` the effective chain length L, how many additions would make this error.
    """

    verdict: Word
    rung: str
    measured: float
    allowed: float
    zrms: float
    zmax: float
    count: int
    worst: int
    cause: str | None
    statement: str
    evidence: dict[str, Any] = field(default_factory=dict)
