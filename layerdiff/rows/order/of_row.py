"""How the call of a row added up, from the traces that the comparison was made of."""

from __future__ import annotations

from layerdiff.arithmetic.orders.analysis import OrderReport
from layerdiff.errors import TraceError
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison


def order_of_row(traces: Traces, comparison: Comparison, row: int) -> OrderReport:
    """Both sides' analysis of an operator call, or that of the side that ran it.

    Raises TraceError where a trace is not there, or the call was not recorded so that it can be added up again; the text says how.
    """
    from layerdiff.judge.order.analysis import analyse_call, order_of_calls

    sides = [side for side in ("reference", "target") if int(comparison.sites[f"{side}_call"][row]) >= 0]
    found = [traces.file(comparison, side, row) for side in sides]
    if not found:
        raise TraceError("neither side ran this call")
    if len(found) == 2:
        return order_of_calls(found[0], found[1])
    (file, call), side = found[0], sides[0]
    analysis = analyse_call(file, call, side=side)
    return OrderReport((analysis,), analysis.verdict, analysis.statement, advice=analysis.advice)
