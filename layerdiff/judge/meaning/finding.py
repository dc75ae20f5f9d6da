"""`found_of_meaning`: what is said of a call at which two programs part, and how bad it is."""

from __future__ import annotations

from typing import Any

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.wording import numbers_in
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING, Cut
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import RowDifference


def found_of_meaning(
    calls: tuple[int, int],
    value: str,
    cut: Cut,
    difference: RowDifference,
    evidence: dict[str, Any],
    *,
    broken: bool,
) -> Local:
    """A difference at a cut, said at the calls where the programs part; with a number or a constant as its reason however small."""
    figure = difference.figure
    static = evidence.get("static")
    small = figure <= BELOW_ROUNDING and "constant" not in evidence and not (static is not None and numbers_in(static))
    said = {
        **evidence,
        "meaning": figure,
        "cut": cut[1],
        "worst": difference.worst,
        "largest": difference.max_abs,
        "rows": difference.rows,
    }
    statement = "computes something else" if static is None else static
    if "constant" in evidence:
        statement = f"another {evidence['constant']}"
    if small:
        return Local(
            calls,
            value,
            Verdict.INHERITED,
            f"{statement}, below rounding",
            figure,
            BELOW_ROUNDING,
            "meaning",
            kind="below-rounding",
            evidence=said,
            notice=True,
        )
    if broken:
        return Local(
            calls,
            value,
            Verdict.BROKEN,
            f"NaN or Inf where the reference's program is finite: {statement}",
            figure,
            NOTHING,
            "meaning: both programs on the target's values",
            evidence=said,
        )
    return Local(
        calls, value, Verdict.UNEXPLAINED, statement, figure, NOTHING, "meaning: both programs on the target's values", evidence=said
    )
