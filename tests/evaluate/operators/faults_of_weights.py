"""Faults in weights: another one, one in another order, one in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import MATMUL, Expected, Fault


def _weight(role: str, change: Callable[[Place, Tensor], Tensor], *, square: bool = False) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.has(role):
            return None
        module, path = place.at(role), place.path(role)
        if square and module.weight.shape[0] != module.weight.shape[1]:
            return None
        module.weight.data = change(place, module.weight.data.clone())
        return Expected((path,), MATMUL, (path + ".weight",))

    return put


def _swap(first: str, second: str) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.has(first, second):
            return None
        a, b, paths = place.at(first), place.at(second), (place.path(first), place.path(second))
        a.weight.data, b.weight.data = b.weight.data, a.weight.data
        return Expected(paths[:1], MATMUL, (paths[0] + ".weight",), also=paths[1:])

    return put


def _random(place: Place, w: Tensor) -> Tensor:
    return (torch.randn(w.shape, generator=place.rng) * 0.02).to(w.dtype)


def _permuted_heads(place: Place, w: Tensor) -> Tensor:
    size = place.at("attention").head_dim if hasattr(place.at("attention"), "head_dim") else 16
    return w.reshape(-1, size // 2, 2, w.shape[-1]).transpose(1, 2).reshape(w.shape)


def _row_lost(place: Place, w: Tensor) -> Tensor:
    w[int(torch.randint(0, len(w), (), generator=place.rng))] = 0
    return w


def _one_element(place: Place, w: Tensor) -> Tensor:
    w[3, 5] += 0.5
    return w


def integers(w: Tensor, bits: int, group: int, *, zero_point: float = 0.0, broken_block: float = 1.0) -> Tensor:
    """Symmetric codes of `bits`, and back; `zero_point` and `broken_block` are mistakes, in every group and the first."""
    groups = w.reshape(len(w), -1, group)
    largest = 2 ** (bits - 1) - 1
    scale = groups.abs().amax(-1, keepdim=True) / largest
    values = ((groups / scale).round().clamp(-largest - 1, largest) + zero_point) * scale
    values[:, 0] *= broken_block
    return values.reshape(w.shape).to(w.dtype)


def _of_other_layer(place: Place, w: Tensor) -> Tensor:
    return place.at("o", place.other).weight.data.clone()


def _untied(place: Place) -> Expected | None:
    if not place.family.own:
        return None
    head = place.at("head")
    head.weight = torch.nn.Parameter(_random(place, head.weight.data))
    return Expected((place.path("head"),), MATMUL, (place.path("head") + ".weight",))


def _layers_swapped(place: Place) -> Expected | None:
    if not place.has("input_norm", "gate"):
        return None
    a, b = place.at("layer").state_dict(), place.at("layer", place.other).state_dict()
    a, b = ({name: value.clone() for name, value in state.items()} for state in (a, b))
    place.at("layer").load_state_dict(b)
    place.at("layer", place.other).load_state_dict(a)
    both = sorted((place.path("layer"), place.path("layer", place.other)))
    first = both[0] + ".self_attn.q_proj"
    return Expected((first, both[0] + ".input_layernorm"), MATMUL, (first + ".weight",), also=tuple(f"{path}.*" for path in both))


def faults() -> Iterator[Fault]:
    """Every fault of a weight."""
    yield Fault("weight transposed", _weight("o", lambda _, w: w.t().contiguous(), square=True))
    yield Fault("weight stale", _weight("down", _random))
    yield Fault("weight of another layer", _weight("o", _of_other_layer))
    yield Fault("weight of q permuted within heads", _weight("q", _permuted_heads))
    yield Fault("row of a weight lost", _weight("down", _row_lost))
    yield Fault("one element of a weight", _weight("down", _one_element))
    yield Fault("weight negated", _weight("v", lambda _, w: -w))
    yield Fault("weight zero", _weight("o", lambda _, w: w * 0))
    yield Fault("weights of gate and up swapped", _swap("gate", "up"))
    yield Fault("weights of k and v swapped", _swap("k", "v"))
    yield Fault("int8 weights", _weight("down", lambda _, w: integers(w, 8, w.shape[1])))
    yield Fault("int4 weights", _weight("down", lambda _, w: integers(w, 4, 32)))
    yield Fault("int4 zero point off by one", _weight("down", lambda _, w: integers(w, 4, 32, zero_point=1)))
    yield Fault("scale of one block", _weight("down", lambda _, w: integers(w, 8, 32, broken_block=1.5)))
    yield Fault("fp8 weights", _weight("up", lambda _, w: w.to(torch.float8_e4m3fn).to(w.dtype)))
    yield Fault("weights rounded to bf16", _weight("up", lambda _, w: w.to(torch.bfloat16).to(w.dtype)), survives_bf16=False)
    yield Fault("head not tied", _untied)
    yield Fault("layers swapped", _layers_swapped)
