"""What is left of one result that sigma does not acquit, and how it is held against another exact result.

The limits of the statistics live here, so that a fault is named by the measure that acquits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import Format, excess

ZRMS_LIMIT: Final = 1.5
ZMAX_LIMIT: Final = 12.0
"""Root mean square and maximum of z up to which a sum is acquitted. Worst of every summation order tried: 1.2 and 9.0."""
FEW_TERMS: Final = 16
"""Below as many terms the bound decides both ways: so few roundings have no statistics."""
FEW_RESULTS: Final = 64
"""Below as many results the statistics of one call say nothing; the judge pools repeats."""


@dataclass(frozen=True)
class Residual:
    """One result of a call that sigma does not acquit, as the tests that name a fault see it.

    recorded, exact, sigma, bound: float64 of one shape; `live` marks the elements that are compared. `terms` is K.
    """

    recorded: NDArray[np.float64]
    exact: NDArray[np.float64]
    sigma: NDArray[np.float64]
    bound: NDArray[np.float64]
    live: NDArray[np.bool_]
    format: Format
    accumulator: Format
    terms: int

    def explained_by(self, exact: NDArray[Any], format: Format | None = None) -> bool:
        """Whether the recorded result is within sigma (within the bound where terms or results are few) of another exact result."""
        distance = excess(self.recorded, np.asarray(exact, np.float64), format or self.format)[self.live]
        if self.terms < FEW_TERMS or distance.size < FEW_RESULTS:
            return bool(np.all(distance <= self.bound[self.live]))
        z = ratio(distance, self.sigma[self.live])
        return bool(rms(z) <= ZRMS_LIMIT and np.max(z) <= ZMAX_LIMIT)


@dataclass(frozen=True)
class Explanation:
    """A fault with its name: the verdict it means, the cause, a sentence, and its numbers."""

    verdict: Literal["precision", "defect"]
    cause: str
    statement: str
    evidence: dict[str, Any]


def ratio(distance: NDArray[np.float64], unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """distance / unit; 0 where there is no distance, inf where there is one and no unit."""
    return np.where(distance > 0, distance / np.where(unit > 0, unit, 0.0), 0.0)


def rms(z: NDArray[np.float64]) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(z)))) if z.size else 0.0
