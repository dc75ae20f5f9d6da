"""What is said of a comparison without a defect: how many calls differ, and what excuses them all.

A difference counts as within rounding only where it was judged: where what came in is not known, nothing bounds what may go out.
"""

from __future__ import annotations

import numpy as np

from layerdiff.judge.tables import Verdict
from layerdiff.rows.figures import amount, count
from layerdiff.rows.ranks.alone import agreement
from layerdiff.rows.tones import mark
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.dtypes import dtype_named

_WITHIN = (Verdict.INHERITED, Verdict.ORDER_EXACT, Verdict.ORDER_CONSISTENT)


def differences_explained(comparison: Comparison) -> str:
    """`all 70 differences are within bfloat16 rounding`; of a comparison without origins."""
    if comparison.reference is None:
        return agreement(comparison)
    verdicts = np.asarray(comparison.sites["verdict"])
    compared = verdicts < Verdict.NOT_COMPARABLE
    differ = compared & (verdicts != Verdict.IDENTICAL)
    number, others = int(np.count_nonzero(differ)), differ & ~np.isin(verdicts, _WITHIN)
    if not number:
        calls = int(np.count_nonzero(compared))
        return "the one compared call has the same bits" if calls == 1 else f"all {amount(calls, 'compared call')} have the same bits"
    unbounded = differ & np.isinf(np.asarray(comparison.sites["allowed"]))
    if unbounded.any():
        return f"{count(int(np.count_nonzero(unbounded)))} of {amount(number, 'difference')} could not be judged: what came in is not known"
    if others.any():
        worst = mark(int(verdicts[others].max()))
        return f"{count(int(np.count_nonzero(others)))} of {amount(number, 'difference')} beyond plain rounding, the worst {worst.word}"
    who = "the one difference is" if number == 1 else f"all {amount(number, 'difference')} are"
    return f"{who} within {_dtype(comparison)} rounding"


def _dtype(comparison: Comparison) -> str:
    """The coarsest float dtype of any compared value."""
    used = np.unique(np.concatenate([comparison.pairs["reference_dtype"], comparison.pairs["target_dtype"]]))
    known = [(dtype.unit_roundoff or 0.0, dtype.name) for text in used.tolist() if (dtype := dtype_named(comparison.texts[text] or ""))]
    return max((one for one in known if one[0]), default=(0.0, "plain"))[1]
