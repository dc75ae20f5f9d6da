"""Faults in norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import ADD, CAST, DIV, MUL, SUB, Expected, Fault

_STATISTICS = ("aten.mean.dim", "aten.sum.dim_IntList", "aten.pow.Tensor_Scalar", "aten.var_mean.correction", "aten.var.correction")
_LAYER_NORM = ("aten.native_layer_norm.default", "aten.layer_norm.default")
_ROOT = ("aten.rsqrt.default",)


def _epsilon(role: str, factor: float) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.has(role):
            return None
        place.at(role).variance_epsilon *= factor
        return Expected((place.path(role),), ADD)

    return put


def _rms(
    change: Callable[[Any, Tensor], Tensor], operators: tuple[str, ...], role: str = "input_norm"
) -> Callable[[Place], Expected | None]:
    """A norm written anew. `change` gets the module and its input."""

    def put(place: Place) -> Expected | None:
        return Expected((place.replace(role, change),), operators) if place.has(role) else None

    return put


def _normalised(norm: Any, x: Tensor, variance: Tensor) -> Tensor:
    return norm.weight * (x.to(torch.float32) * torch.rsqrt(variance + norm.variance_epsilon)).to(x.dtype)


def _weight_plus_one(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return (norm.weight + 1) * wide.to(x.dtype)


def _no_weight(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)).to(x.dtype)


def _bf16_variance(norm: Any, x: Tensor) -> Tensor:
    return _normalised(norm, x, x.to(torch.bfloat16).pow(2).mean(-1, keepdim=True).to(torch.float32))


def _bf16_input(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return norm.weight * wide.to(torch.float8_e4m3fn).to(x.dtype)


def _centred(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return norm.weight * wide.to(x.dtype)


def _unbiased(norm: Any, x: Tensor) -> Tensor:
    return _normalised(norm, x, x.to(torch.float32).pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1))


def _half_the_channels(norm: Any, x: Tensor) -> Tensor:
    return _normalised(norm, x, x[..., : x.shape[-1] // 2].to(torch.float32).pow(2).mean(-1, keepdim=True))


def _over_tokens(norm: Any, x: Tensor) -> Tensor:
    return _normalised(norm, x, x.to(torch.float32).pow(2).mean(1, keepdim=True))


def _epsilon_outside(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * (torch.rsqrt(wide.pow(2).mean(-1, keepdim=True)) + 1e3 * norm.variance_epsilon)
    return norm.weight * wide.to(x.dtype)


def _missing(place: Place) -> Expected | None:
    if not place.has("input_norm"):
        return None
    path = place.replace("input_norm", lambda _, x: x)
    return Expected((path, place.path("layer")), ())


def _head_norm_missing(place: Place) -> Expected | None:
    if not place.has("q_norm"):
        return None
    place.replace("q_norm", lambda _, x: x)
    return Expected((place.path("q_norm"), place.path("attention")), ())


def _other_weight(place: Place) -> Expected | None:
    if not place.has("input_norm"):
        return None
    norm = place.at("input_norm")
    norm.weight.data = place.at("post_norm").weight.data.clone()
    return Expected((place.path("input_norm"),), MUL, (place.path("input_norm") + ".weight",))


def _rounded_weight(place: Place) -> Expected | None:
    if not place.has("input_norm"):
        return None
    norm = place.at("input_norm")
    norm.weight.data = norm.weight.data.to(torch.bfloat16).to(norm.weight.dtype)
    return Expected((place.path("input_norm"),), MUL, (place.path("input_norm") + ".weight",), notices=("constant-dtype",))


def _layer_norm_epsilon(place: Place) -> Expected | None:
    if not place.has("layer_norm"):
        return None
    place.at("layer_norm").eps = 1e-5
    return Expected((place.path("layer_norm"),), _LAYER_NORM)


def _layer_norm(change: Callable[[Any, Tensor], Tensor], operators: tuple[str, ...]) -> Callable[[Place], Expected | None]:
    return _rms(change, operators, "layer_norm")


def _no_bias(norm: Any, x: Tensor) -> Tensor:
    return functional.layer_norm(x, norm.normalized_shape, norm.weight, torch.zeros_like(norm.bias), norm.eps)


def _rms_for_layer_norm(norm: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def faults() -> Iterator[Fault]:
    """Every fault of a norm."""
    yield Fault("epsilon x10", _epsilon("input_norm", 10))
    yield Fault("epsilon x1.5", _epsilon("post_norm", 1.5))
    yield Fault("epsilon of the head norm x100", _epsilon("q_norm", 100))
    yield Fault("epsilon outside the root", _rms(_epsilon_outside, (*ADD, *_ROOT, *MUL)))
    yield Fault("norm weight + 1", _rms(_weight_plus_one, (*ADD, *MUL)))
    yield Fault("norm weight not applied", _rms(_no_weight, (*MUL, *CAST)))
    yield Fault("norm variance in bf16", _rms(_bf16_variance, (*CAST, *_STATISTICS)), survives_bf16=False)  # what a bf16 run declares
    yield Fault("norm rounded to fp8", _rms(_bf16_input, (*CAST, *MUL)))
    yield Fault("layer norm for rms norm", _rms(_centred, (*_STATISTICS, *SUB)))
    yield Fault("norm divides by n - 1", _rms(_unbiased, (*_STATISTICS, *DIV)))
    yield Fault("norm over half the channels", _rms(_half_the_channels, (*_STATISTICS, "aten.slice.Tensor", *CAST)))
    yield Fault("norm over tokens", _rms(_over_tokens, _STATISTICS))
    yield Fault("norm missing", _missing)
    yield Fault("norm of queries missing", _head_norm_missing)
    yield Fault("norm weight of another norm", _other_weight)
    yield Fault("norm weight rounded to bf16", _rounded_weight, survives_bf16=False)
    yield Fault("layer norm epsilon x1e7", _layer_norm_epsilon)
    yield Fault("layer norm without bias", _layer_norm(_no_bias, (*_LAYER_NORM, "aten.zeros_like.default")))
    yield Fault("rms norm for layer norm", _layer_norm(_rms_for_layer_norm, (*_STATISTICS, *_ROOT, *ADD, *MUL)))
