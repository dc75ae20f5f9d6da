"""How a recorded call added up: `analyse_call`, and the same for a site of one trace or of two.

Of a matrix product a sample of rows and columns is looked at, evenly spaced: every result has all of its terms, so an order shows in
few of them. Nothing here needs torch, unless an operator has no contract of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Contract, ContractError
from layerdiff.arithmetic.contracts.matmul import product_spread
from layerdiff.arithmetic.formats import accumulator_for, format_named
from layerdiff.arithmetic.orders.advice import advice_for, advice_for_pair
from layerdiff.arithmetic.orders.analysis import Analysis, OrderReport, Test, Word
from layerdiff.arithmetic.orders.examine import Sum, examine
from layerdiff.arithmetic.orders.summing import Product, of_product
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.arithmetic.orders.variants import Variants, variants_of
from layerdiff.arithmetic.own import replay_call
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.verdict import Own
from layerdiff.errors import TraceError
from layerdiff.judge.order.composed import arguments_of, composed_sum, covered_terms, first_output, read_value
from layerdiff.judge.order.site_call import call_at
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.reader import Trace, TraceFile

Array = NDArray[Any]
Trees = tuple[tuple[str, Tree], ...]
ROWS: Final = 512
COLUMNS: Final = 1024
BATCHES: Final = 8
"""Rows, columns and matrices of a product that are looked at."""
_LISTED: Final = 4
"""Parts of a composed sum that are listed."""
_SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_WORST: Final[tuple[Word, ...]] = (
    *("broken", "defect", "unexplained", "precision", "not-comparable", "order-consistent", "order-exact", "identical"),
)


def analyse_call(file: TraceFile, call: int, *, trees: Trees = (), side: str = "") -> Analysis:
    """How one operator call added up.

    Raises TraceError where the call has no operands, was recorded in part, or adds nothing up that is known.
    """
    run = Recorded(file)
    operation = run.operation(call)
    site = file.site(call)
    if not operation.complete or not operation.outputs:
        raise TraceError(f"{site}: the call was recorded in part, or returned no tensor: there is nothing to take apart.")
    contract = contract_of(operation.name)
    if contract is None or contract.exact is None:
        return _by_ladder(run, operation, site, side, _own_with_torch(run, operation, site))
    try:
        arguments = arguments_of(operation, partial(read_value, file))
        product = contract.product(arguments) if contract.product is not None else None
        if product is not None:
            return examine(_sum_of_product(file, operation, product), trees, site=site, side=side)
        wide = arguments_of(operation, lambda value: _wide(read_value(file, value)))
        one = _sum_of_terms(file, operation, contract, wide)
        if one is not None:
            return examine(one, trees, site=site, side=side)
        own, ways = _own(file, operation, contract, wide)
        return _by_ladder(run, operation, site, side, own, ways)
    except ContractError as error:
        raise TraceError(f"{site}: {error}") from None


def order_of_trace(
    trace: Trace, site: str, *, step: int | None = None, occurrence: int | None = None, rank: int | None = None, trees: Trees = ()
) -> OrderReport:
    """`layerdiff order TRACE SITE`: the call at a site, or the one that makes a module's output.

    Raises TraceError for a site that is not there (close ones are named), or where it was recorded without operands.
    """
    file, call = call_at(trace, site, step, occurrence, rank)
    found = _analysed(file, call, trees, "")
    return OrderReport((found[0],), found[0].verdict, found[0].statement, found[1], found[0].advice)


def order_of_pair(
    reference: Trace,
    target: Trace,
    site: str,
    *,
    step: int | None = None,
    occurrence: int | None = None,
    rank: int | None = None,
    trees: Trees = (),
) -> OrderReport:
    """`layerdiff order REFERENCE TARGET SITE`: the same call of both runs, each on its own operands, and what makes them differ.

    Where one run makes the sum in several calls and the other in one, both are taken as one sum. Raises TraceError as `order_of_trace`.
    """
    theirs_at = call_at(target, site, step, occurrence, rank, other=reference)
    ours_at = call_at(reference, site, step, occurrence, rank, other=target)
    return order_of_calls(ours_at, theirs_at, trees=trees)


def order_of_calls(ours_at: tuple[TraceFile, int], theirs_at: tuple[TraceFile, int], *, trees: Trees = ()) -> OrderReport:
    """The same for a call of the reference and a call of the target that are known: file and number of each."""
    ours, our_parts = _analysed(*ours_at, trees, "reference")
    theirs, their_parts = _analysed(*theirs_at, trees, "target")
    composed = (*our_parts, *their_parts)
    composed += _coverage(ours_at, theirs_at)
    orders = tuple(_order_of(one) for one in (ours, theirs))
    verdict = min(ours.verdict, theirs.verdict, key=_WORST.index)
    given = _given_apart(ours_at, theirs_at)
    advice = advice_for_pair(ours.verdict, theirs.verdict, (orders[0], orders[1]), given) or theirs.advice or ours.advice
    return OrderReport((ours, theirs), verdict, _together(ours, theirs, orders, given), composed, advice)


def _order_of(one: Analysis) -> str | None:
    """The order in which a side added, where its results tell it from others."""
    told = any(test.rung in ("5", "6") and test.outcome == "holds" for test in one.tests)
    return one.winners[0].name if one.winners and (told or one.computed) else None


def _given_apart(ours: tuple[TraceFile, int], theirs: tuple[TraceFile, int]) -> tuple[str, ...]:
    """The operands at one position of both calls that have one shape and other numbers."""
    sides = [(file, Recorded(file).operation(call).inputs) for file, call in (ours, theirs)]
    found = []
    for position, value in sides[0][1].items():
        other = sides[1][1].get(position)
        if other is None or sides[0][0].shape(value) != sides[1][0].shape(other):
            continue
        one, two = (_wide(read_value(file, number)) for file, number in ((sides[0][0], value), (sides[1][0], other)))
        if not np.array_equal(one, two, equal_nan=one.dtype.kind == "f" and two.dtype.kind == "f"):
            found.append(position)
    return tuple(found)


def _together(ours: Analysis, theirs: Analysis, orders: Sequence[str | None], given: Sequence[str]) -> str:
    """One sentence about both; `given`: the operands that differ."""
    harmless = ("identical", "order-exact", "order-consistent")
    if ours.terms != theirs.terms and ours.terms and theirs.terms:
        return f"The reference adds {ours.terms} terms, the target {theirs.terms}: these are not the same sums."
    if ours.verdict in harmless and theirs.verdict in harmless:
        if None not in orders:
            if orders[0] == orders[1] and ours.winners[0].arithmetic == theirs.winners[0].arithmetic:
                return f"Both add the same way: {orders[0]}, {ours.winners[0].arithmetic}. What differs came in with the operands."
            ways = [f"{one.winners[0].name}, {one.winners[0].arithmetic}" for one in (ours, theirs)]
            return f"The same sums in another order: the reference {ways[0]}; the target {ways[1]}."
        if given:
            return (
                f"Each run is right on its own operands; {', '.join(given)} differ{'s' if len(given) == 1 else ''}: what differs came in."
            )
        return "Both are within what any order makes; which order the sides used is not known of both."
    bad = [f"the {one.side}: {one.statement}" for one in (ours, theirs) if one.verdict not in harmless]
    return " ".join(text[0].upper() + text[1:] for text in bad)


def _analysed(file: TraceFile, call: int, trees: Trees, side: str) -> tuple[Analysis, tuple[str, ...]]:
    """A call's analysis, taken together with the calls whose results it adds up; and, for those, what is added how."""
    run = Recorded(file)
    operation = run.operation(call)
    composed = composed_sum(run, operation)
    if composed is None:
        return analyse_call(file, call, trees=trees, side=side), ()
    site = file.site(call)
    sizes = [part.left.shape[-1] for part in composed.parts]
    first = run.operation(composed.parts[0].call)
    given = f"{len(sizes)} × ({_operands(file, first)}), added up" if len(set(sizes)) == 1 else _operands(file, operation)
    whole = replace(_sum_of_product(file, operation, composed.product), operands=given)
    found = examine(whole, trees, site=site, side=side)
    whose = f"the {side}" if side else "this run"
    terms = f"{sizes[0]} terms each" if len(set(sizes)) == 1 else f"{', '.join(map(str, sizes))} terms"
    kept = _SHORT.get(composed.dtype, composed.dtype)
    listed = [f"part {i}: {file.site(part.call)}" for i, part in enumerate(composed.parts)]
    if len(listed) > _LISTED:
        listed[_LISTED - 1 : -1] = ["..."]
    how = "them in order" if composed.in_order else composed.how
    return found, (
        f"{whose[0].upper()}{whose[1:]} makes this sum in {len(sizes)} calls of {terms}, each rounded to {kept}, and adds {how}.",
        *listed,
    )


def _coverage(ours: tuple[TraceFile, int], theirs: tuple[TraceFile, int]) -> tuple[str, ...]:
    """Where the reference multiplies one matrix and the target parts of it: which rows of it no part multiplies."""
    (file, call), (target, its) = ours, theirs
    run, whole_of = Recorded(target), Recorded(file)
    operation = whole_of.operation(call)
    composed = composed_sum(run, run.operation(its))
    if composed is None or composed_sum(whole_of, operation) is not None:
        return ()
    contract = contract_of(operation.name)
    product = None
    if contract is not None and contract.product is not None:
        product = contract.product(arguments_of(operation, partial(read_value, file)))
    if product is None or product.right.ndim != 2:
        return ()
    ranges, missing = covered_terms(composed, product.right)
    if None in ranges:
        return ()
    each = [f"{i} is [{at[0]}, {at[1]})" for i, at in enumerate(ranges) if at is not None]
    parts = ", ".join(each if len(each) <= 2 * _LISTED else [*each[:_LISTED], "...", each[-1]])
    left_out = f"; no part has {', '.join(f'[{a}, {b})' for a, b in missing)}" if missing else ""
    return (f"Of the reference's {product.right.shape[0]} terms, part {parts}{left_out}.",)


def _wide(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # memory that nothing was written to may hold a signalling NaN
        return x.astype(np.float64) if x.dtype.kind == "f" else x


def _operands(file: TraceFile, operation: Operation) -> str:
    def said(value: int) -> str:
        dtype = file.dtype_name(value)
        return f"{list(file.shape(value))} {_SHORT.get(dtype, dtype)}"

    given = " · ".join(said(operation.inputs[name]) for name in sorted(operation.inputs))
    return f"{given} → {said(first_output(operation))}"


def _even(count: int, most: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))


def _sum_of_product(file: TraceFile, operation: Operation, product: Product) -> Sum:
    """A product as stacks of matrices, sampled."""
    value = first_output(operation)
    shape = file.shape(value)
    left, right = product.stacked()
    whole = (left.shape[0], left.shape[1], right.shape[2])
    if int(np.prod(whole)) != int(np.prod(shape)):
        raise ContractError(f"the recorded result has shape {list(shape)}, its operands make {list(whole)}.")
    batches = _even(whole[0], BATCHES)
    rows, columns = _even(whole[1], max(16, ROWS // batches.size)), _even(whole[2], COLUMNS)
    at = np.ix_(batches, rows, columns)
    left = left[np.ix_(batches, rows)].astype(np.float64)
    right = right[batches][:, :, columns].astype(np.float64)
    start = None
    if product.start is not None:
        start = np.broadcast_to(product.start, shape).reshape(whole)[at].astype(np.float64)
    dtype = file.dtype_name(value)
    format = format_named(dtype)
    if format is None:
        raise ContractError(f"the result is {dtype}: there is no rounding in it.")
    accumulator = accumulator_for(dtype, *(file.dtype_name(given) for given in operation.inputs.values()))
    recorded = read_value(file, value).reshape(whole)[at].astype(np.float64)
    with np.errstate(all="ignore"):
        y = np.matmul(left, right)
        exact = product.scale * y + (0.0 if start is None else start)
        spread = product_spread(left, right, y, accumulator, 0.0 if start is None else start, product.scale)
    few = Product(left, right, product.scale, start)
    summing = of_product(few, recorded.shape)
    assert summing is not None
    sampled = ""
    if recorded.size < int(np.prod(whole)):
        of = [f"{rows.size} of {whole[1]} rows", f"{columns.size} of {whole[2]} columns"]
        of += [f"{batches.size} of {whole[0]} matrices"] if whole[0] > 1 else []
        sampled = f"{', '.join(of)}, evenly spaced"
    axes = ("matrix", "row", "column")
    return Sum(
        operation.name, _operands(file, operation), summing, recorded, exact, spread, format, accumulator,
        results=int(np.prod(whole)), sampled=sampled, product=few, axes=axes,
    )  # fmt: skip


def _sum_of_terms(file: TraceFile, operation: Operation, contract: Contract, arguments: Arguments) -> Sum | None:
    """A sum, a mean, a convolution: whatever says what it adds up."""
    value = first_output(operation)
    format = format_named(file.dtype_name(value))
    summing = contract.summing(arguments, file.shape(value)) if contract.summing is not None and format is not None else None
    if summing is None or format is None or contract.exact is None:
        return None
    accumulator = accumulator_for(file.dtype_name(value), *(file.dtype_name(given) for given in operation.inputs.values()))
    with np.errstate(all="ignore"):
        exact = contract.exact(arguments)
        spread = contract.spread(arguments, exact, accumulator)[0]
    recorded = _wide(read_value(file, value))
    return Sum(operation.name, _operands(file, operation), summing, recorded, exact[0], spread, format, accumulator, results=recorded.size)


def _own(file: TraceFile, operation: Operation, contract: Contract, arguments: Arguments) -> tuple[Own, Variants | None]:
    """The ladder of a call that is no single sum, and the ways in which it may have been computed."""
    outputs = [operation.outputs[name] for name in sorted(operation.outputs)]
    recorded = [_wide(read_value(file, value)) for value in outputs]
    dtypes = [file.dtype_name(value) for value in outputs]
    own = replay_call(contract, arguments, recorded, dtypes)
    try:
        return own, variants_of(operation.name, arguments, recorded, dtypes)
    except ContractError:  # it is evidence beside the ladder, which stands without it
        return own, None


def _own_with_torch(run: Recorded, operation: Operation, site: str) -> Own:
    """The ladder of an operator that only torch can run in float64."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise TraceError(f"{site}: only torch can run this operator in float64: pip install 'layerdiff[torch]'.")
    from layerdiff.replay.operators import CannotReplay
    from layerdiff.replay.own import replay_own
    from layerdiff.replay.program import contents

    try:
        own = replay_own(run, operation, contents)
    except CannotReplay as error:
        raise TraceError(f"{site}: it cannot be run again: {error}.") from None
    if own is None:
        raise TraceError(f"{site} only looks at its operand in another way: it computes nothing.")
    return own


def _by_ladder(run: Recorded, operation: Operation, site: str, side: str, own: Own, ways: Variants | None = None) -> Analysis:
    """A call that is no single sum: what the ladder says of it."""
    value = first_output(operation)
    rung, _, name = own.rung.partition(":")
    known = np.isfinite(own.measured)
    bad = own.verdict in ("broken", "defect", "unexplained", "precision")
    test = Test(
        rung.strip() if name else "", name.strip() or own.rung, own.measured if known else None, own.allowed if known else None,
        "fails" if bad else "holds", True, own.statement,
    )  # fmt: skip
    results = int(np.prod(run.file.shape(value), dtype=np.int64))
    accumulator = str(own.evidence.get("accumulator", accumulator_for(run.file.dtype_name(value)).name))
    return Analysis(
        site, operation.name, side, _operands(run.file, operation), int(own.evidence.get("terms", 0)), results, own.count, "",
        accumulator, "assumed", own.verdict, own.cause, own.statement, (test,), own.zrms, own.zmax, own.evidence.get("chain"),
        hypotheses=() if ways is None else ways.hypotheses,
        computed="" if ways is None else ways.statement,
        fits=() if ways is None else ways.fits,
        advice=advice_for(own.verdict, own.cause, {"rung": own.rung}),
        evidence={key: item for key, item in own.evidence.items() if key not in ("result", "chain")},
    )  # fmt: skip
