"""Rows of fused attention, and how far each lies from attention in fp32.

A row is one query in every head. A causal mask of some rows is no causal mask, so it is handed on as the mask that it means.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Array, ContractError, bounded
from layerdiff.arithmetic.contracts.attention import bound_arguments
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.rows import SIGMA, UNIT, Narrow, Rows, distance, farthest, narrow
from layerdiff.trace.arguments import Arguments

_FUSED: Final = frozenset(
    {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    }
)
_OPERATOR: Final = "aten._scaled_dot_product_flash_attention_for_cpu.default"
"""Whose contract takes any mask; what fused attention computes is the same for all of them."""
_MANY: Final = 8.0
"""Roundings that a result goes through beside the sums: scale, shift, exponential, rescaling, division."""


def attention_rows(name: str, arguments: Arguments) -> Rows | None:
    """The rows of the call `aten.<name>`; None where it is no fused attention. Raises ContractError."""
    if name not in _FUSED:
        return None
    found = bound_arguments(name, arguments)
    query, key, value = found["query"], found["key"], found["value"]
    mask = found.get("attn_mask")
    if found["dropout_p"] or query.ndim != 4 or key.ndim != 4 or value.ndim != 4 or any(x.dtype.kind != "f" for x in (query, key, value)):
        return None
    lead, count, keys = query.shape[:2], query.shape[2], key.shape[2]
    if not key.shape[1] or lead[1] % key.shape[1]:
        raise ContractError("The heads of query and key do not fit each other.")
    bounded(count, keys)
    scale = 1.0 / math.sqrt(query.shape[-1]) if found["scale"] is None else float(found["scale"])
    if mask is not None and mask.dtype.kind == "b":
        mask = np.where(mask, 0.0, -np.inf)
    is_causal = bool(found["is_causal"])

    def masked(rows: Any, kind: Any) -> Array | None:
        """What is added to the scores of some rows."""
        given = mask
        if given is not None:
            given = np.asarray(given if given.shape[-2] == 1 else given[..., rows, :], kind)
        if not is_causal:
            return given
        above = np.arange(keys) > np.arange(count)[rows, None]
        causal = np.where(above, kind(-np.inf), kind(0.0))
        return causal if given is None else np.asarray(given + causal)

    def take(rows: NDArray[np.intp]) -> Arguments:
        return Arguments((query[:, :, rows], key, value), {"attn_mask": masked(rows, np.float64), "scale": scale})

    def distances(recorded: tuple[Array, ...], format: Format) -> NDArray[np.float64]:
        whole = masked(slice(None), np.float32)
        far = np.zeros(count)
        for batch in range(lead[0]):
            for head in range(lead[1]):
                there = head * key.shape[1] // lead[1]
                part = whole if whole is None else np.broadcast_to(whole, (*lead, *whole.shape[-2:]))[batch, head]
                of_head = [narrow(query[batch, head]), narrow(key[batch, there]), narrow(value[batch, there])]
                output, total, sigma, sigma_of_total = _attention(of_head[0], of_head[1], of_head[2], part, scale, format.unit)
                far = np.maximum(far, farthest(distance(recorded[0][batch, head], output, format), sigma))
                if len(recorded) > 1 and recorded[1].shape == (*lead, count):
                    off = np.abs(narrow(recorded[1][batch, head]) - total)
                    open_ = ~np.isfinite(total)  # a row without a key
                    off[open_] = 0.0
                    far = np.maximum(far, farthest(off[:, None], sigma_of_total[:, None]))
        return far

    work = math.prod(lead) * count * keys * (query.shape[-1] + value.shape[-1])
    shapes = ((*lead, count, value.shape[-1]), (*lead, count))
    return Rows(_OPERATOR, count, work, take, shapes, (2, 2), distances)


def _attention(
    query: Narrow, key: Narrow, value: Narrow, mask: Array | None, scale: float, unit: float
) -> tuple[Narrow, Narrow, Narrow, Narrow]:
    """Output [L, D] and log-sum-exp [L] of one head in fp32, and about what arithmetic makes of each."""
    with np.errstate(all="ignore"):
        weights = np.matmul(query, key.T)
        weights *= np.float32(scale)
        if mask is not None:
            weights += mask
        top = weights.max(-1, initial=-np.inf)
        top[np.isneginf(top)] = 0.0
        weights -= top[:, None]
        np.exp(weights, out=weights)
        sums = weights.sum(-1)
        output = np.matmul(weights, value) / np.where(sums > 0, sums, 1.0)[:, None].astype(np.float32)
        peaks = np.sqrt(np.einsum("ij,ij->i", weights, weights)) / np.where(sums > 0, sums, 1.0)
        total = top + np.log(sums)
    sizes = np.sqrt(np.einsum("ij,ij->i", query, query)) * np.float32(np.sqrt(np.einsum("ij,ij->i", key, key).max(initial=0.0)))
    scores = UNIT * np.float32(abs(scale)) * sizes + _MANY * UNIT
    if unit > UNIT:  # what is summed over keys was rounded to the operands' dtype, and its exponential may be a fast one
        scores = scores + np.float32(unit)
    columns = np.sqrt(np.mean(np.square(value), 0)) if len(value) else np.zeros(value.shape[1])
    sigma = (scores * peaks)[:, None] * columns + np.float32(SIGMA * math.sqrt(max(len(key), 1) / 3.0) + _MANY * UNIT) * np.abs(output)
    sigma_of_total = scores * (peaks if unit <= UNIT else 1.0) + _MANY * UNIT * (1.0 + np.abs(np.where(np.isfinite(total), total, 0.0)))
    return output, total, narrow(sigma), narrow(sigma_of_total)
