"""`summed_otherwise`: where a difference begins that nothing but another order of summation need explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Verdict
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import Role

_WITHIN = (Verdict.INHERITED, Verdict.ORDER_EXACT, Verdict.ORDER_CONSISTENT)
_SUMS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv", "dot", "convolution", "sum", "mean"})
"""Operators that add up."""


def summed_otherwise(comparison: Comparison) -> tuple[str, int] | None:
    """Site and step of the innermost call, the first in the run, that was given the same bits on both sides and made others by a sum.

    A module is that call where it adds up by operators of its own, as in several parts. None where there is none, in what ranks
    did, where no operators were recorded, and where the results are of two dtypes, which differ in any order.
    """
    sites, pairs = comparison.sites, comparison.pairs
    count = len(sites["site"])
    differs, is_output = pairs["equal"] == 0, pairs["role"] == Role.OUTPUT
    alike = pairs["reference_dtype"] == pairs["target_dtype"]
    made, given = np.zeros(count, bool), np.zeros(count, bool)
    made[pairs["site"][is_output & differs & alike]] = True
    given[pairs["site"][~is_output & differs]] = True
    begins = made & ~given & (sites["rank"] < 0)
    begins &= ~_around(begins, sites["parent"])
    sums = np.zeros(count, bool)
    sums[list(_sums(comparison))] = True
    adds_up = sums.copy()
    adds_up[[row for row in sites["parent"][sums] if row >= 0]] = True
    found = np.flatnonzero(begins & adds_up & np.isin(sites["verdict"], _WITHIN))
    return (comparison.texts[int(sites["site"][found[0]])] or "", int(sites["step"][found[0]])) if found.size else None


def _sums(comparison: Comparison) -> Iterator[int]:
    for text in np.unique(comparison.sites["operator"]).tolist():
        if (comparison.texts[text] or "").removeprefix("aten.").partition(".")[0] in _SUMS:
            yield from np.flatnonzero(comparison.sites["operator"] == text).tolist()


def _around(chosen: NDArray[np.bool_], parent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The rows of the calls around those that are chosen."""
    found = np.zeros(len(chosen), bool)
    above = np.unique(parent[chosen])
    while (above := above[above >= 0]).size:
        found[above] = True
        above = np.unique(parent[above])
    return found
