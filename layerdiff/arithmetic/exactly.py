"""Results that are right or wrong, with no spread in between: where NaN and Inf stand, whole numbers and truth values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.verdict import Own, Word


def non_finite(
    recorded: NDArray[np.float64], exact: NDArray[np.float64], bound: NDArray[np.float64], alive: NDArray[np.bool_], format: Format
) -> Own | None:
    """Rung 2: NaN or Inf where the exact result is finite and representable, or another class where it is not finite."""
    if np.isfinite(recorded).all() and np.isfinite(exact).all():
        return None
    said = alive & ~np.isinf(bound)
    reachable = np.isfinite(exact) & (np.abs(exact) + np.where(np.isnan(bound), 0.0, bound) < format.overflow)
    new = said & ~np.isfinite(recorded) & reachable
    if format.saturates_to_nan:
        legitimate = np.isnan(recorded) & ~np.isnan(exact) & ~reachable
    else:
        legitimate = np.isinf(recorded) & np.isfinite(exact) & ~reachable & (np.signbit(recorded) == np.signbit(exact))
    other = said & ~legitimate & ~new & _differing_class(recorded, exact)
    count = int(said.sum())
    for mask, verdict, rung, text in (
        (new, "broken", "2: NaN or Inf where the exact result is finite", "are not finite where the exact result is"),
        (other, "defect", "2: NaN and Inf by position", "are of another class (finite, NaN, Inf) than the exact result"),
    ):
        if np.any(mask):
            found = int(mask.sum())
            worst = int(np.argmax(mask))
            evidence = {"recorded": float(recorded.reshape(-1)[worst]), "exact": float(exact.reshape(-1)[worst]), "informative": found}
            statement = f"{found} of {count} elements {text}."
            word: Word = "broken" if verdict == "broken" else "defect"
            return Own(word, rung, float(found), 0.0, np.nan, np.nan, count, worst, None, statement, evidence)
    return None


def _differing_class(recorded: NDArray[np.float64], exact: NDArray[np.float64]) -> Any:
    both_nan = np.isnan(recorded) & np.isnan(exact)
    both_finite = np.isfinite(recorded) & np.isfinite(exact)
    return ~(both_nan | both_finite | (recorded == exact))


def discrete(recorded: NDArray[Any], exact: NDArray[Any], bound: NDArray[np.float64], alive: NDArray[np.bool_]) -> Own:
    """Integers and bools: equal, unless the bound says that either is right."""
    different = alive & (recorded != exact)
    off = np.abs(recorded.astype(np.float64) - exact.astype(np.float64))
    wrong = different & (off > bound)
    count, found = int(alive.sum()), int(wrong.sum())
    if found:
        worst = int(np.argmax(wrong))
        evidence = {
            "recorded": recorded.reshape(-1)[worst].item(),
            "exact": exact.reshape(-1)[worst].item(),
            "informative": int(different.sum()),
        }
        statement = f"{found} of {count} elements are not what the recorded operands give."
        return Own(
            "defect", "8: exact results are compared exactly", float(found), 0.0, np.nan, np.nan, count, worst, None, statement, evidence
        )
    undecided = int(different.sum())
    if undecided:
        statement = f"{undecided} of {count} elements lie so close to the border that either value is right."
        evidence = {"informative": undecided}
        return Own(
            "order-consistent",
            "4: beside a border",
            float(undecided),
            float(undecided),
            np.nan,
            np.nan,
            count,
            -1,
            None,
            statement,
            evidence,
        )
    return Own(
        "identical", "3: the exact result", 0.0, 0.0, 0.0, 0.0, count, -1, None, f"All {count} elements are exact.", {"informative": 0}
    )
