"""What is said of a comparison without a defect. Of 422 calls of the builder's model, 41 have the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.clean import differences_explained
from layerdiff.saved.comparison import Comparison
from tests.comparisons import comparison


def changed(column: str, row: int, value: float) -> Comparison:
    made = comparison()
    values = made.sites[column].copy()
    values[row] = value
    return replace(made, sites={**made.sites, column: values})


def test_all_are_rounding() -> None:
    assert differences_explained(comparison()) == "all 381 differences are within bfloat16 rounding"


def test_nothing_differs() -> None:
    made = comparison()
    same = np.full(422, Verdict.IDENTICAL, np.uint8)
    same[5] = Verdict.NOT_COMPARABLE
    assert differences_explained(replace(made, sites={**made.sites, "verdict": same})) == "all 421 compared calls have the same bits"


def test_what_was_not_judged_is_not_called_rounding() -> None:
    """The last call is lm_head, which differs."""
    assert differences_explained(changed("allowed", 421, np.inf)) == "1 of 381 differences could not be judged: what came in is not known"
    told = differences_explained(changed("verdict", 421, Verdict.FLIP))
    assert told == "1 of 381 differences beyond plain rounding, the worst flip"
