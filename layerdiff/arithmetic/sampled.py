"""Own replay of a large call: every element of it in fp32, and in float64 the rows that say most.

A row of a matrix product, of attention or of an elementwise call is made of one row of its operands, so rows can be replayed by
themselves. In float64 go those that lie farthest from the call done once in fp32, and as many at even distances. A sample acquits and
convicts nobody: where it, or a row that was left out, shows more than arithmetic makes, the call is replayed whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.attention_rows import attention_rows
from layerdiff.arithmetic.contract import Array, ContractError
from layerdiff.arithmetic.formats import FLOAT32, accumulator_for, format_named
from layerdiff.arithmetic.own import replay_call
from layerdiff.arithmetic.pointwise_rows import pointwise_rows
from layerdiff.arithmetic.product_rows import product_rows
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.residual import ZMAX_LIMIT
from layerdiff.arithmetic.rows import Rows
from layerdiff.arithmetic.verdict import Own
from layerdiff.trace.arguments import Arguments

WHOLE_UP_TO: Final = 1 << 26
"""Multiplications up to which a call is replayed whole."""
EVENLY: Final = 32
FARTHEST: Final = 32
"""Rows that are replayed at even distances, and of those that lie farthest from the call done in fp32."""
_ACQUITTED: Final = ("identical", "order-consistent")


def replay_sampled(
    operator: str,
    arguments: Arguments,
    recorded: Sequence[NDArray[np.generic]],
    dtypes: Sequence[str],
    *,
    whole_up_to: int = WHOLE_UP_TO,
) -> Own | None:
    """The ladder over a sample of rows; None where the call has to be replayed whole.

    Args:
        operator: "aten.mm.default"; only the operators that ship have rows.
        arguments: as consumed, float64 for every float dtype.
        recorded: the results, decoded in the same way.
        dtypes: torch's names of their dtypes.
        whole_up_to: multiplications up to which a call is no large one.

    Returns:
        an acquittal, whose rung and statement say how many rows were replayed; `evidence` has `rows` and `rows_replayed`.
    """
    format = format_named(dtypes[0]) if dtypes else None
    if format is None or accumulator_for(*dtypes).name != FLOAT32.name:
        return None
    try:
        rows = _rows(operator, arguments)
        if rows is None or rows.work <= whole_up_to or rows.count < 2 * (EVENLY + FARTHEST):
            return None
        shaped = _shaped(rows, recorded)
        contract = contract_of(rows.operator)
        if shaped is None or contract is None:
            return None
        with np.errstate(all="ignore"):
            far = rows.distances(shaped, format)
        chosen = chosen_rows(far)
        if chosen is None:
            return None
        few = [np.take(x, chosen, axis=axis) if x.size else x for x, axis in zip(shaped, rows.axes, strict=False)]
        own = replay_call(contract, rows.take(chosen), few, dtypes)
    except (ContractError, ValueError, IndexError):
        return None
    return _said(own, rows, few, chosen) if own.verdict in _ACQUITTED else None


def chosen_rows(far: NDArray[np.float64]) -> NDArray[np.intp] | None:
    """The sample, ascending; None where a row that would be left out lies beyond what sigma acquits."""
    even = np.linspace(0, far.size - 1, EVENLY).astype(np.intp)
    rest = np.array(far)
    rest[even] = -1.0
    worst = np.argsort(rest, kind="stable")[::-1][:FARTHEST]
    rest[worst] = -1.0
    return None if np.max(rest) > ZMAX_LIMIT else np.sort(np.concatenate([even, worst]))


def _rows(operator: str, arguments: Arguments) -> Rows | None:
    namespace, _, rest = operator.partition(".")
    name = rest.partition(".")[0]
    if namespace != "aten":
        return None
    return product_rows(name, arguments) or attention_rows(name, arguments) or pointwise_rows(name, arguments)


def _shaped(rows: Rows, recorded: Sequence[NDArray[np.generic]]) -> tuple[Array, ...] | None:
    """The recorded results with their rows on one axis; those that no row is known of are left out."""
    if not recorded or recorded[0].size != int(np.prod(rows.shapes[0])):
        return None
    shaped: list[Array] = [recorded[0].reshape(rows.shapes[0])]
    for one, shape in zip(recorded[1:], rows.shapes[1:], strict=False):
        if one.size not in (0, int(np.prod(shape))):
            return None
        shaped.append(one.reshape(shape) if one.size else one)
    return tuple(shaped)


def _said(own: Own, rows: Rows, few: Sequence[Array], chosen: NDArray[np.intp]) -> Own:
    """An acquittal by a sample, with the worst element where it lies in the whole result."""
    result = int(own.evidence.get("result", 0))
    worst = own.worst
    if worst >= 0:
        place = list(np.unravel_index(worst, few[result].shape))
        place[rows.axes[result]] = chosen[place[rows.axes[result]]]
        worst = int(np.ravel_multi_index(tuple(int(i) for i in place), rows.shapes[result]))
    how = f"{chosen.size} of {rows.count} rows"
    replayed = f"Replayed: {how}, the {FARTHEST} that lie farthest from the call in fp32 and {EVENLY} at even distances."
    return replace(
        own,
        worst=worst,
        rung=f"{own.rung}; {how} sampled",
        statement=f"{own.statement} {replayed}",
        evidence={**own.evidence, "rows": rows.count, "rows_replayed": int(chosen.size)},
    )
