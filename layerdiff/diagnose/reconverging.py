"""`reconverges`: an origin whose difference is gone again where the run's results are made.

By thresholds this can only be told where rounding is small: under a coarse dtype a fault that was
merely diluted looks the same, so there nothing is excused.
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


def mark_reconverging(sites: Columns, pairs: Columns, texts: Texts) -> NDArray[Any]:
    """The verdicts, with `unexplained` turned into `reconverges` in the steps whose every result agrees to fp32 rounding."""
    verdict = np.array(sites["verdict"])
    convicted = np.flatnonzero(verdict == Verdict.UNEXPLAINED)
    if not convicted.size:
        return verdict
    roots = _roots(sites["parent"])
    step = np.stack([sites["rank"], sites["step"]], axis=1).astype(np.int64)
    keys, number = np.unique(step, axis=0, return_inverse=True)
    number = number.reshape(-1)
    meets = np.zeros(len(keys), bool)
    misses = np.zeros(len(keys), bool)
    results = (pairs["role"] == Role.OUTPUT) & (sites["parent"][pairs["site"]] < 0)
    for pair in np.flatnonzero(results).tolist():
        where = number[int(pairs["site"][pair])]
        if _agrees(pairs, texts, pair):
            meets[where] = True
        else:
            misses[where] = True
    failed_later = misses | np.append(np.logical_or.accumulate(misses[::-1])[::-1][1:], False)
    excused = [row for row in convicted.tolist() if meets[number[row]] and not failed_later[number[row]] and roots[row] != row]
    verdict[excused] = int(Verdict.RECONVERGES)
    return verdict


def _agrees(pairs: Columns, texts: Texts, pair: int) -> bool:
    if pairs["source"][pair] not in (Source.BYTES, Source.STATISTICS):
        return False
    if pairs["equal"][pair]:
        return True
    known = [dtype_named(texts[int(pairs[f"{side}_dtype"][pair])] or "") for side in ("reference", "target")]
    if any(dtype is None or (dtype.unit_roundoff or 1.0) > FP32_ROUNDOFF for dtype in known):
        return False
    return bool(pairs["source"][pair] == Source.BYTES and pairs["nonfinite_differ"][pair] == 0 and pairs["rel_l2"][pair] <= _MEETS)


def _roots(parents: NDArray[Any]) -> list[int]:
    top: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        top.append(row if parent < 0 else top[parent])
    return top
