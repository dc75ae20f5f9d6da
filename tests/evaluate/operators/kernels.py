"""Faults in kernels, put below the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from captures.kernels import PRODUCTS, Change, Kernel, Result, bf16_partial_sums, product, split_dropped
from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import ADD, MUL, SOFTMAX, Expected, Fault


def _on_first(change: Callable[[Tensor], Tensor]) -> Change:
    """A change of the first result, whatever the operator."""

    def changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Result) -> Result:
        if isinstance(result, Tensor):
            return change(result.clone())
        return (change(result[0].clone()), *result[1:])

    return changed


def _bf16_accumulator(a: Tensor, b: Tensor) -> Tensor:
    total = (a[..., :1] @ b[..., :1, :]).bfloat16()
    for k in range(1, a.shape[-1]):
        total = (total.double() + a[..., k : k + 1] @ b[..., k : k + 1, :]).bfloat16()
    return total.double()


def tf32(x: Tensor) -> Tensor:
    """Rounded to ten bits of fraction."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).double()


def _one_column_of_k_twice(a: Tensor, b: Tensor) -> Tensor:
    return a @ b + a[..., -1:] @ b[..., -1:, :]


def _tail_of_k_lost(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :-1] @ b[..., :-1, :]


def _strides_ignored(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT.contiguous().reshape(b.shape)


def _tile(value: float | None) -> Callable[[Tensor], Tensor]:
    """A tile of the result holds what lay there before: another tile, or a constant."""

    def change(y: Tensor) -> Tensor:
        rows, columns = (max(1, size // 4) for size in y.shape[-2:])
        y[..., -rows:, -columns:] = y[..., :rows, :columns] if value is None else value
        return y

    return change


def _one_element(y: Tensor) -> Tensor:
    flat = y.view(-1)
    flat[flat.numel() // 3] += 0.05 * y.abs().mean() + 0.05
    return y


def _rows_shifted(y: Tensor) -> Tensor:
    y[..., 1:, :] = y[..., :-1, :].clone()
    return y


def _last_row_of_the_one_before(y: Tensor) -> Tensor:
    y[..., -1, :] = y[..., -2, :]
    return y


def _nan_row(y: Tensor) -> Tensor:
    y[..., 2, :] = float("nan")
    return y


def _unwritten(y: Tensor) -> Tensor:
    """Garbage where nothing was written: the end of the last dimension, as a block that is not full."""
    garbage = torch.randint(-(2**15), 2**15, y[..., -3:].shape, generator=torch.Generator().manual_seed(7))
    y[..., -3:] = garbage.to(torch.int16).view(torch.bfloat16).nan_to_num(0.0, 1e30, -1e30).to(y.dtype)
    return y


def _scaled(y: Tensor) -> Tensor:
    return y * (1 + 1e-3)


def _first_half_scaled(y: Tensor) -> Tensor:
    y[..., : y.shape[-1] // 2] *= 1 + 1e-3
    return y


def _truncated(y: Tensor) -> Tensor:
    """Rounded towards zero, to the bits of bf16."""
    return (y.float().view(torch.int32) & ~0xFFFF).view(torch.float32).to(y.dtype)


def _rounded(y: Tensor) -> Tensor:
    return y.bfloat16().to(y.dtype)


def _zero(y: Tensor) -> Tensor:
    return torch.zeros_like(y)


def _far_elements_lost(y: Tensor) -> Tensor:
    y.view(-1)[y.numel() * 7 // 8 :] = 0
    return y


def _layer_norm_statistics(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Result) -> Result:
    x, _, weight, bias, eps = args
    wide = x.double()
    mean, square = wide.bfloat16().mean(-1, keepdim=True), wide.bfloat16().pow(2).mean(-1, keepdim=True)
    y = (wide - mean.double()) * (square.double() - mean.double() ** 2 + eps).rsqrt() * weight.double() + bias.double()
    return (y.to(result[0].dtype), *result[1:])


def _not_summed_to_one(y: Tensor) -> Tensor:
    """A softmax whose denominator lacks the last key of every row."""
    return y / (1 - y[..., -1:]).clamp(min=0.05)


def kernel(role: str, names: tuple[str, ...], change: Change, *, call: int | None = None) -> Callable[[Place], Expected | None]:
    """A fault of the operators `names` inside the part that has this role."""

    def put(place: Place) -> Expected | None:
        if not place.has(role):
            return None
        mode = Kernel(place.at(role), names, change, call=call)
        place.runs.append(lambda: mode)
        return Expected((place.path(role),), names)

    return put


_NORM = ("aten.native_layer_norm.default",)
_SDPA = ("aten._scaled_dot_product_flash_attention_for_cpu.default",)
_EMBEDDING = ("aten.embedding.default",)
_BMM = ("aten.bmm.default",)
_MEAN = ("aten.mean.dim",)
_DECODERS = ("mini", "mini-moe", "llama", "qwen3-moe", "mixtral")
_ACT = ("aten.silu.default", "aten.gelu.default")


def faults() -> Iterator[Fault]:
    """Every fault of a kernel."""
    yield Fault("kernel: split of K dropped", kernel("down", PRODUCTS, product(split_dropped)))
    yield Fault("kernel: last of K lost", kernel("up", PRODUCTS, product(_tail_of_k_lost)))
    yield Fault("kernel: last of K twice", kernel("v", PRODUCTS, product(_one_column_of_k_twice)))
    yield Fault("kernel: bf16 partial sums", kernel("down", PRODUCTS, product(bf16_partial_sums)))
    yield Fault("kernel: bf16 accumulator", kernel("o", PRODUCTS, product(_bf16_accumulator)))
    yield Fault("kernel: tf32 operands", kernel("q", PRODUCTS, product(lambda a, b: tf32(a) @ tf32(b))), survives_bf16=False)
    yield Fault("kernel: result rounded to bf16", kernel("up", PRODUCTS, _on_first(_rounded)), survives_bf16=False)
    yield Fault("kernel: rounds towards zero", kernel("up", PRODUCTS, product(lambda a, b: _truncated(a @ b))))
    yield Fault("kernel: strides ignored", kernel("o", PRODUCTS, product(_strides_ignored)))
    yield Fault("kernel: stale tile", kernel("down", PRODUCTS, _on_first(_tile(None))))
    yield Fault("kernel: tile of zeros", kernel("gate", PRODUCTS, _on_first(_tile(0.0))))
    yield Fault("kernel: one element", kernel("down", PRODUCTS, _on_first(_one_element)))
    yield Fault("kernel: scale of a product", kernel("v", PRODUCTS, _on_first(_scaled)))
    yield Fault("kernel: far elements zero", kernel("up", PRODUCTS, _on_first(_far_elements_lost)))
    yield Fault("kernel: result zero", kernel("o", PRODUCTS, _on_first(_zero)))
    yield Fault("kernel: rows shifted", kernel("up", PRODUCTS, _on_first(_rows_shifted)))
    yield Fault("kernel: NaN in a row", kernel("o", PRODUCTS, _on_first(_nan_row)))
    yield Fault("kernel: memory not written", kernel("down", PRODUCTS, _on_first(_unwritten)))
    yield Fault("kernel: scores without a split of K", kernel("attention", _BMM, product(split_dropped), call=0))
    yield Fault("kernel: stale tile of mixed values", kernel("attention", _BMM, _on_first(_tile(None)), call=1))
    yield Fault("kernel: mixing in bf16 sums", kernel("attention", _BMM, product(_bf16_accumulator), call=1), families=("llama", "mini"))
    yield Fault("kernel: softmax not normalised", kernel("attention", SOFTMAX, _on_first(_not_summed_to_one)))
    yield Fault("kernel: one element of a softmax", kernel("attention", SOFTMAX, _on_first(_one_element)))
    yield Fault("kernel: softmax rounded to bf16", kernel("attention", SOFTMAX, _on_first(_rounded)))
    yield Fault(
        "kernel: one row of the residual sum", kernel("layer", ADD, _on_first(_last_row_of_the_one_before), call=1), families=_DECODERS
    )
    yield Fault("kernel: sum of the residual scaled", kernel("layer", ADD, _on_first(_scaled), call=0), families=_DECODERS)
    yield Fault("kernel: product of gate and up scaled", kernel("mlp", MUL, _on_first(_scaled)), families=("mini", "llama"))
    yield Fault("kernel: activation off by 1e-3", kernel("act", _ACT, _on_first(_scaled)))
    yield Fault("kernel: mean of squares scaled", kernel("input_norm", _MEAN, _on_first(_scaled)))
    yield Fault("kernel: root of the norm off", kernel("post_norm", ("aten.rsqrt.default",), _on_first(lambda y: y * (1 + 1e-4))))
    yield Fault("kernel: layer norm with bf16 statistics", kernel("layer_norm", _NORM, _layer_norm_statistics))
    yield Fault("kernel: one element of a layer norm", kernel("layer_norm", _NORM, _on_first(_one_element)))
    yield Fault("kernel: row of the embedding", kernel("embedding", _EMBEDDING, _on_first(_last_row_of_the_one_before)))
    yield Fault("kernel: cosine off", kernel("rotary", ("aten.cos.default",), _on_first(lambda y: y * (1 + 1e-4))))
    yield Fault(
        "kernel: fused attention scaled", kernel("attention", _SDPA, _on_first(_scaled)), attention="sdpa", families=("llama", "bert")
    )
    yield Fault(
        "kernel: stale tile of fused attention",
        kernel("attention", _SDPA, _on_first(_tile(None))),
        attention="sdpa",
        families=("llama", "bert"),
    )
    yield Fault("kernel: one row of logits", kernel("head", PRODUCTS, _on_first(_last_row_of_the_one_before)))
    yield Fault("kernel: router scores of half the experts", kernel("router", SOFTMAX, _on_first(_first_half_scaled)))
    yield Fault("kernel: experts without a split of K", kernel("experts", PRODUCTS, product(split_dropped), call=0))
