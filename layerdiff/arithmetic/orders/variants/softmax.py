"""Some rows of one softmax or log-softmax, and what was rounded on the way.

Whether the maximum was subtracted changes no digit that a result of 16 bits shows: those ways are one, under several names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import bind
from layerdiff.arithmetic.contracts.softmax import _named
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, Format, format_named, round_to
from layerdiff.arithmetic.orders.candidates import SHORT
from layerdiff.arithmetic.orders.variants.last_bits import Last
from layerdiff.arithmetic.orders.variants.ranking import Array, Made, Variants, rank
from layerdiff.arithmetic.registry import contract_of
from layerdiff.trace.arguments import Arguments

ROWS: Final = 256
_MOST: Final = 1 << 19
"""Elements looked at."""
MOST_TERMS: Final = 1 << 13
"""Terms up to which sums are taken one after another."""
_PLAIN: Final = ("_softmax", "softmax", "_safe_softmax")
_LOG: Final = ("_log_softmax", "log_softmax")
_SLOW: Final = ("denominator summed one after another", "sum taken one after another")
_Run = Callable[[Array, Last], Array]


def softmax_variants(name: str, arguments: Arguments, recorded: Sequence[NDArray[Any]], dtypes: Sequence[str]) -> Variants | None:
    """How the call `aten.<name>` was computed; None where it is no softmax of floats.

    Raises ContractError for arguments that the contract does not know.
    """
    format = format_named(dtypes[0])
    if name not in (*_PLAIN, *_LOG) or format is None or format.unit < FLOAT32.unit:
        return None
    whole, dim, _ = bind(_named(arguments), ("self", "dim", "dtype"), dtype=None)
    if whole.dtype.kind != "f" or not whole.ndim or not whole.size or recorded[0].shape != whole.shape:
        return None
    terms = whole.shape[dim]
    x, y = (np.moveaxis(one, dim, -1).reshape(-1, terms) for one in (whole, recorded[0]))
    count = max(1, min(x.shape[0], ROWS, _MOST // terms))
    chosen = np.unique(np.linspace(0, x.shape[0] - 1, count).astype(np.intp))
    total, x, y = x.shape[0], np.asarray(x[chosen], np.float64), np.asarray(y[chosen], np.float64)
    call = Arguments((x, 1), {})
    contract = contract_of(f"aten.{name}")
    assert contract is not None and contract.exact is not None
    sigma = np.broadcast_to(contract.spread(call, contract.exact(call), FLOAT32)[0].sigma, x.shape)
    ways = [one for one in (_log_ways(format) if name in _LOG else _ways(format)) if terms <= MOST_TERMS or not one[0].startswith(_SLOW)]
    made = [Made(way, "", run(x, Last()).reshape(-1), _again(run, x)) for way, run in ways]
    found = rank(made, y.reshape(-1), sigma.reshape(-1), format)
    return Variants(found.hypotheses, found.zrms, found.statement, (), f"{chosen.size} of {total} rows")


def _again(run: _Run, x: Array) -> Callable[[int], Array]:
    return lambda draw: run(x, Last(np.random.default_rng(draw))).reshape(-1)


def _formats(format: Format) -> tuple[Format, ...]:
    return (format,) if format.unit > FLOAT32.unit else (BFLOAT16, FLOAT16)


def _shifted(x: Array) -> Array:
    top = np.max(x, axis=-1, keepdims=True)
    return np.asarray(x - np.where(np.isfinite(top), top, 0.0))


def _weights(moved: Array, last: Last) -> Array:
    return last.bits(np.exp(moved), 2.0)


def _total(weights: Array, last: Last) -> Array:
    total = last.bits(weights.sum(-1, keepdims=True), 2.0)
    return np.where(total > 0, total, 1.0)


def chain(x: Array, narrow: Format) -> Array:
    """Sums [r, 1] of rows, one element after another, rounded to `narrow`."""
    total = np.zeros(x.shape[0])
    for column in x.T:
        total = round_to(total + column, narrow)
    return total[:, None]


def _ways(format: Format) -> Iterator[tuple[str, _Run]]:
    def plain(x: Array, last: Last) -> Array:
        weights = _weights(_shifted(x), last)
        return weights / _total(weights, last)

    name = "fp32, rounded once" if format.unit > FLOAT32.unit else "fp32 throughout"
    yield f"{name}, the maximum subtracted", plain
    yield f"{name}, without subtracting the maximum", plain
    for narrow in _formats(format):
        yield from _narrow_ways(narrow, SHORT[narrow.name])


def _narrow_ways(narrow: Format, short: str) -> Iterator[tuple[str, _Run]]:
    def rounded(x: Array) -> Array:
        return round_to(x, narrow)

    def of_total(x: Array, last: Last) -> Array:
        weights = _weights(_shifted(x), last)
        return weights / rounded(_total(weights, last))

    def reciprocal(x: Array, last: Last) -> Array:
        weights = _weights(_shifted(x), last)
        return weights * rounded(1.0 / _total(weights, last))

    def exponentials(x: Array, last: Last) -> Array:
        weights = rounded(_weights(_shifted(x), last))
        return weights / _total(weights, last)

    def exponentials_after(x: Array, last: Last) -> Array:
        weights = _weights(_shifted(x), last)
        return rounded(weights) / _total(weights, last)

    def shifted(x: Array, last: Last) -> Array:
        weights = _weights(rounded(_shifted(x)), last)
        return weights / _total(weights, last)

    def stepped(x: Array, last: Last) -> Array:
        weights = rounded(_weights(rounded(_shifted(x)), last))
        return weights / rounded(_total(weights, last))

    def running(x: Array, last: Last) -> Array:
        weights = _weights(_shifted(x), last)
        return weights / chain(weights, narrow)

    yield f"denominator rounded to {short}", of_total
    yield f"times the reciprocal of the denominator, rounded to {short}", reciprocal
    yield f"exponentials rounded to {short} and then summed", exponentials
    yield f"exponentials rounded to {short} after they were summed", exponentials_after
    yield f"scores minus maximum rounded to {short}", shifted
    yield f"every step rounded to {short}", stepped
    yield f"denominator summed one after another in {short}", running


def _log_ways(format: Format) -> Iterator[tuple[str, _Run]]:
    def plain(x: Array, last: Last) -> Array:
        moved = _shifted(x)
        return moved - np.log(_total(_weights(moved, last), last))

    name = "fp32, rounded once" if format.unit > FLOAT32.unit else "fp32 throughout"
    yield f"{name}, the maximum subtracted", plain
    yield f"{name}, without subtracting the maximum", plain
    for narrow in _formats(format):
        yield from _narrow_log_ways(narrow, SHORT[narrow.name])


def _narrow_log_ways(narrow: Format, short: str) -> Iterator[tuple[str, _Run]]:
    def rounded(x: Array) -> Array:
        return round_to(x, narrow)

    def of_log(x: Array, last: Last) -> Array:
        moved = _shifted(x)
        return moved - rounded(np.log(_total(_weights(moved, last), last)))

    def of_total(x: Array, last: Last) -> Array:
        moved = _shifted(x)
        return moved - np.log(rounded(_total(_weights(moved, last), last)))

    def of_both(x: Array, last: Last) -> Array:
        moved = _shifted(x)
        return moved - rounded(np.log(rounded(_total(_weights(moved, last), last))))

    def of_sum(x: Array, last: Last) -> Array:
        moved = _shifted(x)
        return x - rounded(x - moved + np.log(_total(_weights(moved, last), last)))

    def shifted(x: Array, last: Last) -> Array:
        moved = rounded(_shifted(x))
        return moved - np.log(_total(_weights(moved, last), last))

    def stepped(x: Array, last: Last) -> Array:
        moved = rounded(_shifted(x))
        return moved - rounded(np.log(rounded(_total(rounded(_weights(moved, last)), last))))

    def running(x: Array, last: Last) -> Array:
        moved = _shifted(x)
        return moved - np.log(chain(_weights(moved, last), narrow))

    yield f"logarithm of the sum rounded to {short}", of_log
    yield f"sum rounded to {short}", of_total
    yield f"sum and its logarithm rounded to {short}", of_both
    yield f"log-sum-exp rounded to {short}", of_sum
    yield f"scores minus maximum rounded to {short}", shifted
    yield f"every step rounded to {short}", stepped
    yield f"sum taken one after another in {short}", running
