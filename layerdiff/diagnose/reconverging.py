"""`reconverges`: an origin whose difference is gone again where the run's results are made.

By thresholds this can only be told where rounding is small, and where the difference at the origin was
ten thousand times what is left: under a coarse dtype, or after a small fault, one that was merely diluted
looks the same, so there nothing is excused.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.classes import FP32_ROUNDOFF
from layerdiff.judge.tables import Columns, Source, Texts, Verdict
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import Role

_MEETS: Final = 64 * FP32_ROUNDOFF
_DILUTED: Final = 1e-4


def mark_reconverging(sites: Columns, pairs: Columns, texts: Texts) -> NDArray[Any]:
    """The verdicts, with `unexplained` turned into `reconverges` in the steps from which on every result agrees to fp32 rounding."""
    verdict = np.array(sites["verdict"])
    convicted = np.flatnonzero(verdict == Verdict.UNEXPLAINED)
    if not convicted.size:
        return verdict
    roots = _roots(sites["parent"])
    step = np.stack([sites["rank"], sites["step"]], axis=1).astype(np.int64)
    keys, number = np.unique(step, axis=0, return_inverse=True)
    number = number.reshape(-1)
    left = np.full(len(keys), -1.0)  # the worst difference of a step's results, -1 where it has none
    results = (pairs["role"] == Role.OUTPUT) & (sites["parent"][pairs["site"]] < 0)
    for pair in np.flatnonzero(results).tolist():
        where = number[int(pairs["site"][pair])]
        left[where] = max(left[where], _difference(pairs, texts, pair))
    later = np.maximum.accumulate(left[::-1])[::-1]
    for row in convicted.tolist():
        remaining = later[number[row]]
        if left[number[row]] >= 0 and roots[row] != row and remaining <= min(_MEETS, _DILUTED * float(sites["measured"][row])):
            verdict[row] = int(Verdict.RECONVERGES)
    return verdict


def _difference(pairs: Columns, texts: Texts, pair: int) -> float:
    """The relative difference of a result; inf where it is not known well enough to excuse anything."""
    if pairs["source"][pair] not in (Source.BYTES, Source.STATISTICS):
        return float("inf")
    if pairs["equal"][pair]:
        return 0.0
    known = [dtype_named(texts[int(pairs[f"{side}_dtype"][pair])] or "") for side in ("reference", "target")]
    coarse = any(dtype is None or (dtype.unit_roundoff or 1.0) > FP32_ROUNDOFF for dtype in known)
    if coarse or pairs["source"][pair] != Source.BYTES or pairs["nonfinite_differ"][pair] > 0:
        return float("inf")
    found = float(pairs["rel_l2"][pair])
    return found if found == found and pairs["mismatched"][pair] <= 0 else float("inf")


def _roots(parents: NDArray[Any]) -> list[int]:
    top: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        top.append(row if parent < 0 else top[parent])
    return top
