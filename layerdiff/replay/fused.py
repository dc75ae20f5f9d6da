"""Operators that have no kernel in float64, or results that depend on the dtype, by their formulas.

Each takes the arguments by their declared names, defaults filled in, and returns what the operator returns: results that only
the kernel can define (seeds, workspaces) are tensors without elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from layerdiff.replay import attention, encoder, recurrent
from layerdiff.replay.refusal import CannotReplay


class Formula(NamedTuple):
    """How an operator is computed here, and how many elements its largest result will have."""

    run: Callable[[dict[str, Any]], Any]
    elements: Callable[[dict[str, Any]], int]


def bound(schema: Any, positional: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Arguments by declared name, defaults filled in. Raises CannotReplay where one is missing."""
    given: dict[str, Any] = {}
    for at, argument in enumerate(schema.arguments):
        if at < len(positional):
            given[argument.name] = positional[at]
        elif argument.name in named:
            given[argument.name] = named[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
        else:
            raise CannotReplay(f"its argument {argument.name!r} was not recorded")
    return given


def _rms_norm(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    if given["eps"] is None:
        raise CannotReplay("its epsilon is that of the recorded dtype and was not recorded")
    x: Tensor = given["input"]
    over = tuple(range(x.dim() - len(given["normalized_shape"]), x.dim()))
    scale = (x.square().mean(over, keepdim=True) + given["eps"]).rsqrt()
    out = x * scale
    return (out if given["weight"] is None else out * given["weight"]), scale


def _rms_norm_alone(given: dict[str, Any]) -> Tensor:
    return _rms_norm(given)[0]


def _cudnn_batch_norm(given: dict[str, Any]) -> tuple[Tensor, ...]:
    made = torch.ops.aten.native_batch_norm.default(
        given["input"],
        given["weight"],
        given["bias"],
        given["running_mean"],
        given["running_var"],
        given["training"],
        given["exponential_average_factor"],
        given["epsilon"],
    )
    return (*made, torch.empty(0, dtype=torch.uint8))


def _grouped_mm(given: dict[str, Any]) -> Tensor:
    """Groups are along the rows of the left (2d by 3d), along what is summed (2d by 2d), along the columns (3d by 2d), or stacked."""
    left, right, ends, bias = given["self"], given["mat2"], given["offs"], given["bias"]
    if ends is None:
        out: Tensor = left @ right
        return out if bias is None else out + bias
    stops = [int(n) for n in ends.tolist()]
    starts = [0, *stops[:-1]]
    grouped = left.shape[0] if left.dim() == 2 and right.dim() == 3 else right.shape[-1]
    if left.dim() == 2 and right.dim() == 2:
        grouped = left.shape[1]
    if any(not 0 <= a <= b <= grouped for a, b in zip(starts, stops, strict=True)):
        raise CannotReplay("the ends of its groups do not rise within what they divide")
    groups = list(zip(range(len(stops)), starts, stops, strict=True))
    if left.dim() == 2 and right.dim() == 2:
        out = torch.stack([left[:, a:b] @ right[a:b] for _, a, b in groups])
    elif left.dim() == 2:
        out = left.new_zeros((left.shape[0], right.shape[-1]))
        for g, a, b in groups:
            out[a:b] = left[a:b] @ right[g]
    else:
        out = left.new_zeros((left.shape[1], right.shape[-1]))
        for g, a, b in groups:
            out[:, a:b] = left[g] @ right[:, a:b]
    return out if bias is None else out + bias


def _grouped_elements(given: dict[str, Any]) -> int:
    left, right = given["self"], given["mat2"]
    groups = 1 if given["offs"] is None or left.dim() != 2 or right.dim() != 2 else given["offs"].numel()
    return int(groups * math.prod(left.shape[:-1]) * int(right.shape[-1]))


def _int8_weights(given: dict[str, Any]) -> Tensor:
    out: Tensor = given["self"] @ (given["mat2"].to(torch.float64) * given["scales"].reshape(-1, 1)).t()
    return out


def _scaled_mm(given: dict[str, Any]) -> Tensor:
    left, right = given["self"], given["mat2"]
    out: Tensor = (left * _spread(given["scale_a"], left)) @ (right * _spread(given["scale_b"], right))
    if given["bias"] is not None:
        out = out + given["bias"]
    return out if given["scale_result"] is None else out * given["scale_result"]


def _spread(scale: Tensor, operand: Tensor) -> Tensor:
    """A scale for the whole, a row, a column, or a block, as large as its operand."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() != 2 or any(scales == 0 or size % scales for scales, size in zip(scale.shape, operand.shape, strict=True)):
        raise CannotReplay("how its scales lie over its operands cannot be told")
    for d in (0, 1):
        scale = scale.repeat_interleave(operand.shape[d] // scale.shape[d], d)
    return scale


def _where_numbers(given: dict[str, Any]) -> Tensor:
    """Between two plain numbers: torch would make the result in its default dtype."""
    yes, no = given["self"], given["other"]
    if isinstance(yes, float) or isinstance(no, float):
        yes, no = (torch.tensor(number, dtype=torch.float64) for number in (yes, no))
    out: Tensor = torch.where(given["condition"], yes, no)
    return out


def _same(name: str) -> Callable[[dict[str, Any]], int]:
    def elements(given: dict[str, Any]) -> int:
        return int(math.prod(given[name].shape))

    return elements


def _product(given: dict[str, Any]) -> int:
    return int(math.prod(given["self"].shape[:-1]) * int(given["mat2"].shape[-1]))


def _packed_product(given: dict[str, Any]) -> int:
    return int(math.prod(given["self"].shape[:-1]) * int(given["mat2"].shape[0]))


def _attended(given: dict[str, Any]) -> int:
    return int(math.prod(given["query"].shape[:-1]) * max(1, int(given["value"].shape[-1])))


def _weights_of_attention(given: dict[str, Any]) -> int:
    return int(math.prod(given["query"].shape[:-1]) * max(int(given["value"].shape[-1]), int(given["key"].shape[-2])))


# By base; with the overload where only that one needs it.
FORMULAS: Final[dict[str, Formula]] = {
    "scaled_dot_product_attention": Formula(attention.composite, _attended),
    "_scaled_dot_product_attention_math": Formula(attention.math_kernel, _weights_of_attention),
    "_scaled_dot_product_flash_attention_for_cpu": Formula(attention.flash_on_host, _attended),
    "_scaled_dot_product_flash_attention": Formula(attention.flash, _attended),
    "_scaled_dot_product_cudnn_attention": Formula(attention.cudnn, _attended),
    "_scaled_dot_product_efficient_attention": Formula(attention.efficient, _attended),
    "_scaled_dot_product_fused_attention_overrideable": Formula(attention.overrideable, _attended),
    "_fused_rms_norm": Formula(_rms_norm, _same("input")),
    "rms_norm": Formula(_rms_norm_alone, _same("input")),
    "cudnn_batch_norm": Formula(_cudnn_batch_norm, _same("input")),
    "_grouped_mm": Formula(_grouped_mm, _grouped_elements),
    "_weight_int8pack_mm": Formula(_int8_weights, _packed_product),
    "where.Scalar": Formula(_where_numbers, _same("condition")),
    "_scaled_mm": Formula(_scaled_mm, _product),
    "_native_multi_head_attention": Formula(encoder.attention, encoder.elements),
    "_transformer_encoder_layer_fwd": Formula(encoder.encoder_layer, encoder.elements),
    "mkldnn_rnn_layer": Formula(recurrent.one_layer, recurrent.elements),
    "_cudnn_rnn": Formula(recurrent.whole, recurrent.elements),
    "miopen_rnn": Formula(recurrent.whole, recurrent.elements),
    "_thnn_fused_lstm_cell": Formula(recurrent.lstm_cell, _same("input_gates")),
    "_thnn_fused_gru_cell": Formula(recurrent.gru_cell, _same("input_gates")),
}
