"""Scaled dot product attention, fused: softmax(scale q k^T + mask) v and its log-sum-exp.

P is rounded to the operands' own dtype before it meets v (F15), whatever the accumulator: a spread without it convicts every
flash kernel in bf16. Rows that a mask leaves without a key are open: kernels give NaN or zero there.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Array, Contract, ContractError, Spread, bind, bounded, grid_of
from layerdiff.arithmetic.contracts.elementwise import TRANSCENDENTAL
from layerdiff.arithmetic.contracts.softmax import denominator_sigma
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.sums import ROUNDING_SIGMA, ROUNDING_VARIANCE, gamma, prefix_sigma, sum_bound, sum_sigma
from layerdiff.trace.arguments import Arguments

_SCORES_AT_ONCE: Final = 1 << 22
_FAST_EXP: Final = 2.0**-13
"""Relative error of the exponential that flash kernels use for operands of 16 bits, which P's rounding hides in the output but not in the
log-sum-exp. It is one function's, so that scores which are alike are all off by as much: what counts is the largest.
Measured on torch's CPU, for scores down to -9: at most 1.04e-4, and 5.3e-5 where all are equal. Here: 1.22e-4, the bound four times it."""
_MASK: Final = 100.0
"""What a mask adds to a score that still counts: beyond, exp is 0 in every format."""
_TILE: Final = 32
"""Keys of the smallest tile of an online softmax; every tile rescales what was summed (F17)."""


class _Call(NamedTuple):
    """query [n, L, E], key [n, S, E], value [n, S, D] with heads folded and repeated; mask broadcastable to [n, L, S] or None."""

    query: Array
    key: Array
    value: Array
    mask: Array | None
    scale: float
    lead: tuple[int, ...]
    grid: Format
    weights: bool


_QKV: Final = ("query", "key", "value")
_COMPOSITE: Final = (*_QKV, "attn_mask", "dropout_p", "is_causal", "dropout_mask", "scale", "enable_gqa")
_WITH_SUM: Final = (*_QKV, "attn_mask", "compute_log_sumexp", "dropout_p", "is_causal")
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "_scaled_dot_product_flash_attention_for_cpu": (*_QKV, "dropout_p", "is_causal", "attn_mask", "scale"),
    "_scaled_dot_product_attention_math": _COMPOSITE,
    "_scaled_dot_product_attention_math_for_mps": _COMPOSITE,
    "scaled_dot_product_attention": (*_QKV, "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    "_scaled_dot_product_efficient_attention": (*_WITH_SUM, "scale"),
    "_scaled_dot_product_flash_attention": (*_QKV, "dropout_p", "is_causal", "return_debug_mask", "scale"),
    "_scaled_dot_product_cudnn_attention": (*_WITH_SUM, "return_debug_mask", "scale"),
    "_scaled_dot_product_fused_attention_overrideable": (*_QKV, "attn_mask", "dropout_p", "is_causal", "return_debug_mask", "scale"),
}
"""Parameters by place; `attn_bias` is `attn_mask` by another name."""
_DEFAULTS: Final[dict[str, Any]] = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "dropout_mask": None,
    "scale": None,
    "enable_gqa": False,
    "compute_log_sumexp": True,
    "return_debug_mask": False,
}


def bound_arguments(name: str, arguments: Arguments) -> dict[str, Any]:
    """The arguments of the call `aten.<name>` by name. Raises ContractError where they do not fit, KeyError where it is no attention."""
    names = _NAMES[name]
    kwargs = {("attn_mask" if key == "attn_bias" else key): value for key, value in arguments.kwargs.items()}
    return dict(zip(names, bind(Arguments(arguments.args, kwargs), names, **_DEFAULTS), strict=True))


def _call(name: str, arguments: Arguments) -> _Call:
    found = bound_arguments(name, arguments)
    query, key, value = found["query"], found["key"], found["value"]
    if found["dropout_p"] or found.get("dropout_mask") is not None:
        raise ContractError("Attention with dropout draws at random; its exact result is not known.")
    lead, rows, keys = query.shape[:-2], query.shape[-2], key.shape[-2]
    if key.shape[:-2] != lead and len(lead) > 1 and key.shape[-3] and lead[-1] % key.shape[-3] == 0:
        key, value = (np.repeat(x, lead[-1] // x.shape[-3], axis=-3) for x in (key, value))
    key, value = (np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:]) for x in (key, value))
    bounded(rows, keys)
    mask = found.get("attn_mask")
    if mask is not None:
        if mask.dtype.kind == "b":  # the composite adds what it is given, the fused ones take a bool as "may attend"
            mask = mask.astype(np.float64) if "_math" in name else np.where(mask, 0.0, -np.inf)
        mask = np.broadcast_to(mask, (*lead, rows, keys)).reshape(-1, rows, keys)
    if found["is_causal"]:
        causal = np.where(np.tri(rows, keys, dtype=bool), 0.0, -np.inf)
        mask = causal[None] if mask is None else mask + causal
    scale = 1.0 / math.sqrt(query.shape[-1]) if found["scale"] is None else found["scale"]
    grid = grid_of(found["query"], found["key"], found["value"])
    return _Call(query.reshape(-1, *query.shape[-2:]), key, value, mask, scale, lead, grid, "math" in name)


def _chunks(call: _Call) -> list[slice]:
    size = max(1, call.query.shape[1] * call.key.shape[1])
    step = max(1, _SCORES_AT_ONCE // size)
    return [slice(begin, begin + step) for begin in range(0, call.query.shape[0], step)]


def _weights(call: _Call, part: slice) -> tuple[Array, Array, Array]:
    """Scores with the mask, P and the log-sum-exp [n, L, 1] of some heads."""
    scores = call.scale * np.matmul(call.query[part], np.swapaxes(call.key[part], -1, -2))
    if call.mask is not None:
        scores = scores + (call.mask if call.mask.shape[0] == 1 else call.mask[part])
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0.0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return scores, np.where(total > 0, weights / np.where(total > 0, total, 1.0), 0.0), top + np.log(total)


def _exact(call: _Call) -> tuple[Array, ...]:
    outputs, sums, kept = [], [], []
    for part in _chunks(call):
        _, weights, total = _weights(call, part)
        outputs.append(np.matmul(weights, call.value[part]))
        (kept.append(weights) if call.weights else sums.append(total[..., 0]))
    output = np.concatenate(outputs).reshape(*call.lead, call.query.shape[1], call.value.shape[-1])
    second = np.concatenate(kept) if call.weights else np.concatenate(sums)
    return output, second.reshape(*call.lead, *second.shape[1:])


def _score_error(call: _Call, part: slice, scores: Array, accumulator: Format) -> tuple[Array, Array]:
    """Sigma and bound [n, L, 1] of a row's worst score: F4 and F1 of its dot product, and the roundings of scale, mask and shift.

    V and sum|q k| are taken by Cauchy and Schwarz, sqrt(sum q^4 sum k^4) and |q| |k|: no further matrix product.
    """
    query, key = call.query[part], call.key[part]
    width, size, u = query.shape[-1], abs(call.scale), accumulator.unit

    def worst(power: int) -> Array:
        rows, keys = (np.power(x, power).sum(-1) for x in (query, key))
        return np.asarray(np.sqrt(rows * keys.max(-1, keepdims=True, initial=0.0))[..., None])

    dot = size * worst(2)
    finite = np.where(np.isfinite(scores), scores, 0.0)
    low, high = finite.min(-1, keepdims=True, initial=0.0), finite.max(-1, keepdims=True, initial=0.0)
    # what a mask of large negative numbers hides takes no part in a row's worth
    largest = np.minimum(np.maximum(-low, high), dot + _MASK)
    moved = np.minimum(high - low, 2.0 * dot + _MASK)
    largest_dot = np.minimum(dot, largest) if call.mask is None else dot
    variance = width * (np.square(largest_dot) / 3.0 + np.square(size) * worst(4) / 6.0)
    sigma = ROUNDING_SIGMA * u * np.sqrt(variance)
    bound = size * sum_bound(worst(2), width, accumulator)
    steps = u * (2.0 * largest + moved)
    if call.weights and call.grid.unit > u:  # the composite rounds scores to the operands' dtype, and query and key when it scales them
        steps = steps + call.grid.unit * largest
        sigma = np.hypot(sigma, size * call.grid.unit * np.sqrt(worst(4)))
        bound = bound + 2.0 * size * call.grid.unit * worst(2)
    return np.asarray(np.hypot(sigma, steps)), np.asarray(bound + 2.0 * steps)


def _spread(call: _Call, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    """F15, F16 and F17 and the sum over keys of the output; the log-sum-exp's (or the weights') own."""
    u, keys = accumulator.unit, max(call.key.shape[1], 1)
    narrow = max(call.grid.unit, u)
    exp_sigma = u * TRANSCENDENTAL / 2.0 if narrow == u or call.weights else _FAST_EXP
    exp_bound = u * 2.0 * TRANSCENDENTAL if narrow == u or call.weights else 4.0 * _FAST_EXP
    tiles = keys / _TILE + 1.0
    found: list[list[Array]] = [[], [], [], []]
    outputs = results[0].reshape(call.query.shape[0], call.query.shape[1], call.value.shape[-1])
    for part in _chunks(call):
        scores, weights, total = _weights(call, part)
        value, output = call.value[part], outputs[part]
        score_sigma, score_bound = _score_error(call, part, scores, accumulator)
        twice = np.square(weights)
        ends = twice.sum(-1, keepdims=True)
        terms = np.matmul(twice, np.square(value))
        apart = np.maximum(terms - 2.0 * output * np.matmul(twice, value) + np.square(output) * ends, 0.0)
        noise = (np.square(score_sigma) + exp_sigma**2) * apart
        rounding = ROUNDING_VARIANCE * narrow**2 * (terms + np.square(output) * ends)
        rescaled = np.square(3.0 * u * math.sqrt(tiles) * output)
        shared = np.square(denominator_sigma(keys, accumulator) * output)
        summed = np.square(sum_sigma(output, terms, keys, accumulator))
        found[0].append(np.sqrt(noise + rounding + rescaled + shared + summed))
        sizes = np.matmul(weights, np.abs(value)) + np.abs(output)
        bound = (score_bound + 2.0 * narrow + gamma(keys, u) * 2.0 + 3.0 * tiles * u + exp_bound) * sizes
        open_rows = ~np.isfinite(total)
        found[1].append(np.where(open_rows, np.inf, bound))
        if call.weights:
            relative = u * TRANSCENDENTAL + denominator_sigma(keys, accumulator) + (narrow if narrow > u else 0.0)
            found[2].append(weights * np.hypot(score_sigma, relative))
            found[3].append(np.where(open_rows, np.inf, weights * (2.0 * score_bound + gamma(keys, u) + 4.0 * relative)))
        else:
            size = exp_sigma + u * np.where(open_rows, 0.0, np.abs(total))
            inner = score_sigma * np.sqrt(ends)
            found[2].append(np.sqrt(np.square(inner) + np.square(size) + denominator_sigma(keys, accumulator) ** 2)[..., 0])
            second = score_bound + gamma(keys, u) + 3.0 * tiles * u + exp_bound + 2.0 * size
            found[3].append(np.where(open_rows, np.inf, second)[..., 0])
    sigma, bound, second_sigma, second_bound = (np.concatenate(x) for x in found)
    shape = results[0].shape
    flat_sigma = sigma.reshape(-1)

    def refine(flat: NDArray[np.intp]) -> NDArray[np.float64]:
        refined: NDArray[np.float64] = np.hypot(_actual(call, flat, accumulator), flat_sigma[flat])
        return refined

    output_spread = Spread(sigma.reshape(shape), bound.reshape(shape), keys, refine)
    if len(results) == 1:
        return (output_spread,)
    # a log-sum-exp is a sum over keys of dot products: as many terms as the larger of both
    terms_of_second = max(keys, call.query.shape[-1])
    return output_spread, Spread(second_sigma.reshape(results[1].shape), second_bound.reshape(results[1].shape), terms_of_second)


def _actual(call: _Call, flat: NDArray[np.intp], accumulator: Format) -> NDArray[np.float64]:
    """F3 of outputs at flat indices: prefix sums of p_j v_j in the order of the keys, which is no exchangeable one."""
    shape = (call.query.shape[0], call.query.shape[1], call.value.shape[-1])
    head, row, column = np.unravel_index(flat, shape)
    found = np.empty(flat.size)
    for one in np.unique(head):
        at = np.flatnonzero(head == one)
        _, weights, _ = _weights(call, slice(int(one), int(one) + 1))
        step = max(1, _SCORES_AT_ONCE // max(call.key.shape[1], 1))
        for begin in range(0, at.size, step):
            chosen = at[begin : begin + step]
            terms = weights[0][row[chosen]] * call.value[int(one)].T[column[chosen]]
            found[chosen] = prefix_sigma(terms, accumulator)
    return found


def _contract(name: str) -> Contract:
    single = name == "scaled_dot_product_attention"

    def exact(arguments: Arguments) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return _exact(_call(name, arguments))[: 1 if single else 2]

    def spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
        with np.errstate(all="ignore"):
            return _spread(_call(name, arguments), results, accumulator)

    def settle(_: Arguments, results: tuple[Array, ...], recorded: tuple[Array, ...]) -> tuple[Array, ...]:
        """The second result where it was made, without the padding that some kernels give it."""
        if len(results) < 2 or len(recorded) < 2 or recorded[1].size == 0:
            return results[:1]
        if recorded[1].shape == results[1].shape:
            return results
        if recorded[1].size == results[1].size:
            return results[0], results[1].reshape(recorded[1].shape)
        return results[:1]

    return Contract(exact, spread, settle)


CONTRACTS: Final = {f"aten.{name}": _contract(name) for name in _NAMES}
