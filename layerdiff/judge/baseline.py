"""The three-way question: is the target further from the reference than another run is that is known to be right, such as bf16 itself?

Ratios of differences, for the eye. They decide no verdict: a baseline is as far from the reference as its own rounding happens to be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Columns, Source
from layerdiff.trace.schema import Role


def worst_output(sites: Columns, pairs: Columns) -> NDArray[np.float64]:
    """Per site, the largest `rel_l2` of its results, of those whose bytes were compared; nan where there is none."""
    found = np.full(len(sites["site"]), -1.0)
    chosen = (pairs["role"] == Role.OUTPUT) & (pairs["source"] == Source.BYTES) & ~np.isnan(pairs["rel_l2"])
    np.maximum.at(found, pairs["site"][chosen], pairs["rel_l2"][chosen])
    return np.where(found < 0, np.nan, found)


def ratios(sites: Columns, pairs: Columns) -> NDArray[np.float64]:
    """Per site, the target's difference over the baseline's; inf where the baseline has none, nan where neither or nothing is known."""
    target, baseline = worst_output(sites, pairs), sites["baseline_rel_l2"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(target / baseline, np.float64)
