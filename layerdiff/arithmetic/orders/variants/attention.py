"""Some rows of one attention call, and the ways in which attention may have been computed.

A row is one query of one head. Every online softmax is the softmax of whole rows but for the maximum that each probability was
taken against when it was rounded, so one product per way replays it, whatever its tiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError, bind, bounded
from layerdiff.arithmetic.contracts.attention import _DEFAULTS, _NAMES
from layerdiff.arithmetic.formats import FLOAT32, Format, format_named
from layerdiff.arithmetic.orders.analysis import Fit
from layerdiff.arithmetic.orders.variants.attention_ways import ways_of
from layerdiff.arithmetic.orders.variants.ranking import NOISE, Array, Made, Variants, fit, rank
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.sums import ROUNDING_SIGMA
from layerdiff.trace.arguments import Arguments

ROWS: Final = 64
"""Queries looked at, over all heads."""
HEADS: Final = 8
"""Heads looked at, where each has enough queries."""
_MOST: Final = 1 << 23
"""Numbers of keys and values that are laid out."""
_STEPS: Final = 8
_LIKE: Final = 0.1
"""Of a row's size: what may be left of the results once the scale is fitted; where more is, no scale makes them."""
_OPERATOR: Final = "aten._scaled_dot_product_flash_attention_for_cpu.default"
"""Whose contract takes any mask."""


class Rows(NamedTuple):
    """query [g, r, E], key [g, S, E], value [g, S, D], mask [g, r, S] or None, all float64; `recorded` [g, r, D]."""

    query: Array
    key: Array
    value: Array
    mask: Array | None
    scale: float
    recorded: Array
    heads: int
    queries: int


def attention_variants(name: str, arguments: Arguments, recorded: Sequence[NDArray[Any]], dtypes: Sequence[str]) -> Variants | None:
    """How the call `aten.<name>` was computed; None where it is no attention in a known float format.

    Raises ContractError for arguments that do not fit each other.
    """
    format = format_named(dtypes[0])
    if name not in _NAMES or format is None or format.unit < FLOAT32.unit:
        return None
    rows = sampled(name, arguments, recorded[0])
    if rows is None:
        return None
    contract = contract_of(_OPERATOR)
    assert contract is not None and contract.exact is not None
    call = Arguments((rows.query, rows.key, rows.value), {"attn_mask": rows.mask, "scale": rows.scale})
    exact = contract.exact(call)
    sigma = np.asarray(contract.spread(call, exact, FLOAT32)[0].sigma)
    given = rows.recorded.reshape(-1)
    made = [
        Made(way.name, way.arithmetic, way.run().reshape(-1), partial(_again, rows, format, i))
        for i, way in enumerate(ways_of(rows, format))
    ]
    found = rank(made, given, np.broadcast_to(sigma, rows.recorded.shape).reshape(-1), format)
    fitted = _scale(rows, format)
    count = rows.query.shape[0] * rows.query.shape[1]
    where = f"{count} of {rows.heads * rows.queries} queries, {rows.query.shape[0]} of {rows.heads} heads"
    statement = found.statement
    if fitted is not None and not fitted.inside:
        roots = min(fitted.value, fitted.declared) > 0
        statement += f" The {fitted.text}"
        statement += f": 1/sqrt({fitted.value**-2.0:.5g}) for 1/sqrt({fitted.declared**-2.0:.5g})." if roots else "."
    return Variants(found.hypotheses, found.zrms, statement, () if fitted is None else (fitted,), where)


def _again(rows: Rows, format: Format, index: int, draw: int) -> Array:
    way = next(itertools.islice(ways_of(drawn(rows, draw), format), index, None))
    return way.run().reshape(-1)


def drawn(rows: Rows, draw: int) -> Rows:
    """The rows with NOISE times what fp32 leaves in scores and exponentials: of the sum (F4), of the scale, of two units in exp."""
    random, u = np.random.default_rng(draw), NOISE * FLOAT32.unit
    width = rows.query.shape[-1]
    query = rows.query * (1.0 + u * ROUNDING_SIGMA * math.sqrt(1.0 + width / 6.0) * random.standard_normal(rows.query.shape))
    key = rows.key * (1.0 + u * random.standard_normal((*rows.key.shape[:-1], 1)))
    shape = (*rows.query.shape[:-1], rows.key.shape[-2])
    mask = 2.0 * u * random.standard_normal(shape) + (0.0 if rows.mask is None else rows.mask)
    return rows._replace(query=query, key=key, mask=mask)


def sampled(name: str, arguments: Arguments, recorded: NDArray[Any]) -> Rows | None:
    """At most ROWS queries: some of evenly spaced heads; None where dropout draws, or an operand is no float tensor."""
    names = _NAMES[name]
    kwargs = {("attn_mask" if key == "attn_bias" else key): value for key, value in arguments.kwargs.items()}
    found = dict(zip(names, bind(Arguments(arguments.args, kwargs), names, **_DEFAULTS), strict=True))
    query, key, value = found["query"], found["key"], found["value"]
    if found["dropout_p"] or found.get("dropout_mask") is not None or any(x.dtype.kind != "f" or x.ndim < 2 for x in (query, key, value)):
        return None
    lead, length, keys = query.shape[:-2], query.shape[-2], key.shape[-2]
    bounded(length, keys)
    total = math.prod(lead)
    if not total or not length or not keys or recorded.size != total * length * value.shape[-1]:
        return None
    few = min(length, max(1, ROWS // min(total, HEADS)))
    room = max(1, _MOST // (keys * (key.shape[-1] + value.shape[-1])))
    heads = _evenly(0, total, min(total, ROWS // few, room))
    chosen = _evenly(length // 8, length, few)
    at = [np.unravel_index(int(head), lead) if lead else () for head in heads]

    def of_keys(x: NDArray[Any], place: tuple[Any, ...]) -> Array:
        if not place:
            return np.asarray(x.reshape(x.shape[-2:]), np.float64)
        held = x.shape[:-2]
        if len(place) != len(held) or any(not s or n % s for s, n in zip(held, lead, strict=True)):
            raise ContractError("The heads of query and key do not fit each other.")
        here = tuple(int(p) * s // n for p, s, n in zip(place, held, lead, strict=True))
        return np.asarray(x[here], np.float64)

    out = recorded.reshape(*lead, length, value.shape[-1])
    return Rows(
        np.stack([np.asarray(query[place][chosen], np.float64) for place in at]),
        np.stack([of_keys(key, place) for place in at]),
        np.stack([of_keys(value, place) for place in at]),
        _masked(name, found, lead, at, chosen, length, keys),
        1.0 / math.sqrt(query.shape[-1]) if found["scale"] is None else float(found["scale"]),
        np.stack([np.asarray(out[place][chosen], np.float64) for place in at]),
        total,
        length,
    )


def _evenly(first: int, past: int, count: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(first, past - 1, max(count, 1)).astype(np.intp))


def _masked(
    name: str, found: dict[str, Any], lead: tuple[int, ...], at: list[Any], chosen: NDArray[np.intp], length: int, keys: int
) -> Array | None:
    """What is added to the scores, [g, r, S]."""
    mask = found.get("attn_mask")
    added = None
    if mask is not None:
        whole = np.broadcast_to(mask, (*lead, length, keys))
        parts = [whole[place][chosen] for place in at]
        if mask.dtype.kind == "b":
            parts = [part.astype(np.float64) if "_math" in name else np.where(part, 0.0, -np.inf) for part in parts]
        added = np.stack(parts).astype(np.float64)
    if found["is_causal"]:
        causal = np.where(np.arange(keys) > chosen[:, None], -np.inf, 0.0)[None]
        added = np.broadcast_to(causal, (len(at), *causal.shape[1:])) if added is None else added + causal
    return added


@dataclass(frozen=True)
class _Slope:
    output: Array
    slope: Array


def _at_scale(rows: Rows, dots: Array, scale: float) -> _Slope:
    """The exact output at a scale, and its derivative: sum of p_j (t_j - mean t) v_j, t the dot products."""
    scores = scale * dots if rows.mask is None else scale * dots + rows.mask
    top = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    weights /= weights.sum(-1, keepdims=True)
    mean = np.sum(weights * dots, axis=-1, keepdims=True)
    return _Slope(np.matmul(weights, rows.value), np.matmul(weights * (dots - mean), rows.value))


def _scale(rows: Rows, format: Format) -> Fit | None:
    """The softmax scale by Gauss and Newton over all elements; its error from the residuals, those of a row taken together."""
    with np.errstate(all="ignore"):
        dots = np.matmul(rows.query, np.swapaxes(rows.key, -1, -2))
        scale, error, left, live = rows.scale, np.inf, np.zeros(1), np.zeros(1, bool)
        for _ in range(_STEPS):
            at = _at_scale(rows, dots, scale)
            live = np.isfinite(rows.recorded) & np.isfinite(at.output) & np.isfinite(at.slope)
            # an error relative to the row's size, not to the element's: probabilities are rounded
            size = np.sqrt(np.mean(np.square(np.where(live, at.output, 0.0)), axis=-1, keepdims=True))
            weight = np.where(live & (size > 0), 1.0 / np.where(size > 0, size, 1.0), 0.0)
            off = np.where(live, rows.recorded - at.output, 0.0) * weight
            slope = np.where(live, at.slope, 0.0) * weight
            squares = float(np.sum(np.square(slope)))
            if not squares > 0 or np.count_nonzero(np.any(slope != 0, axis=-1)) < 4:
                return None
            step = float(np.sum(off * slope)) / squares
            scale += step
            left = off - step * slope
            error = float(np.sqrt(np.sum(np.square(np.sum(left * slope, axis=-1))))) / squares
            if abs(step) <= 1e-2 * error:
                break
    if not np.isfinite(scale) or not np.isfinite(error) or not np.sqrt(np.mean(np.square(left[live]))) <= _LIKE:
        return None
    return fit("softmax scale", scale, math.hypot(error, FLOAT32.unit * abs(rows.scale)), rows.scale)
