"""Faults in mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import ADD, CAST, DIV, INDEX, MATMUL, MUL, SOFTMAX, Expected, Fault
from tests.evaluate.operators.routing import Loop, Routing, loop, route

_CHOICE = ("aten.topk.default", "aten.gather.default", *ADD)


def _routing(routing: type[Routing], operators: tuple[str, ...], *, needs: str | None = None) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.has("router", "experts") or (needs is not None and not hasattr(place.at("router"), needs)):
            return None
        if place.family.name == "mixtral":  # its router makes other calls
            return None
        route(place.at("router"), routing())
        return Expected((place.path("router"),), operators)

    return put


def _loop(steps: type[Loop], operators: tuple[str, ...]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.has("experts"):
            return None
        loop(place.at("experts"), steps())
        act = place.path("experts") + ".act_fn"
        return Expected((place.path("experts"), act), operators)

    return put


class NotNormalised(Routing):
    def normalise(self, values: Tensor) -> Tensor:
        return values


class OneFewer(Routing):
    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        values, chosen = super().choose(gate, logits, scores)
        return values[:, :-1].contiguous(), chosen[:, :-1].contiguous()


class SigmoidScores(Routing):
    def score(self, logits: Tensor) -> Tensor:
        return logits.to(torch.float).sigmoid()


class WeightsFromLogits(Routing):
    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        _, chosen = super().choose(gate, logits, scores)
        return logits.to(torch.float).gather(-1, chosen), chosen


class BiasNotUsed(Routing):
    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        _, chosen = torch.topk(scores, gate.top_k, dim=-1)
        return scores.gather(-1, chosen), chosen


class BiasInWeights(Routing):
    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return torch.topk(scores + gate.correction_bias, gate.top_k, dim=-1)


class NotScaled(Routing):
    def scale(self, gate: Any, values: Tensor) -> Tensor:
        return values


class NextExpert(Routing):
    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        values, chosen = super().choose(gate, logits, scores)
        return values, (chosen + 1) % scores.shape[-1]


class Fp8Router(Routing):
    def logits(self, gate: Any, x: Tensor) -> Tensor:
        return functional.linear(x.to(torch.float8_e4m3fn).to(x.dtype), gate.weight)


class SmallestChosen(Routing):
    def choose(self, gate: Any, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return torch.topk(scores, gate.top_k, dim=-1, largest=False)


class ChunksSwapped(Loop):
    def expert(self, experts: Any, expert: Tensor, x: Tensor) -> Tensor:
        up, gate = functional.linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        return functional.linear(experts.act_fn(gate) * up, experts.down_proj[expert])


class WrongExpertsDown(Loop):
    def expert(self, experts: Any, expert: Tensor, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        return functional.linear(experts.act_fn(gate) * up, experts.down_proj[(expert + 1) % experts.num_experts])


class Capacity(Loop):
    def admitted(self, place: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return place[:5], token[:5]


class WeightOfTheFirst(Loop):
    def admitted(self, place: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(place), token


def _no_shared(place: Place) -> Expected | None:
    if not place.has("shared"):
        return None
    mixture = place.at("mlp")

    def forward(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        _, weights, chosen = mixture.gate(flat)
        return mixture.experts(flat, chosen, weights).reshape(x.shape)

    mixture.forward = forward
    return Expected((place.path("mlp"), place.path("shared")), ADD)


def _experts_swapped(place: Place) -> Expected | None:
    if not place.has("experts"):
        return None
    experts, path = place.at("experts"), place.path("experts")
    order = [1, 0, *range(2, experts.num_experts)]
    experts.gate_up_proj.data, experts.down_proj.data = experts.gate_up_proj.data[order], experts.down_proj.data[order]
    return Expected((path,), MATMUL, (f"{path}.gate_up_proj", f"{path}.down_proj"))


def _router_weight(place: Place) -> Expected | None:
    if not place.has("router", "experts"):
        return None
    place.at("router").weight.data[0] *= 1.5
    path = place.path("router")
    return Expected((path,), MATMUL, (f"{path}.weight",))


def faults() -> Iterator[Fault]:
    """Every fault of a mixture of experts."""
    yield Fault("weights of experts not normalised", _routing(NotNormalised, (*DIV, *CAST, *MUL, "aten.sum.dim_IntList")))
    yield Fault("one expert fewer", _routing(OneFewer, (*INDEX, "aten.topk.default", "aten.clone.default", *DIV, "aten.sum.dim_IntList")))
    yield Fault("sigmoid for softmax", _routing(SigmoidScores, ("aten.sigmoid.default", *SOFTMAX)))
    yield Fault("weights from logits", _routing(WeightsFromLogits, ("aten.gather.default", "aten.topk.default")))
    yield Fault("correction bias not used", _routing(BiasNotUsed, _CHOICE, needs="correction_bias"))
    yield Fault("correction bias in the weights", _routing(BiasInWeights, (*_CHOICE, *DIV), needs="correction_bias"))
    yield Fault("routed scale missing", _routing(NotScaled, MUL, needs="routed_scaling_factor"))
    yield Fault("next expert", _routing(NextExpert, (*ADD, "aten.remainder.Scalar")))
    yield Fault("router in fp8", _routing(Fp8Router, (*CAST, *MATMUL)))
    yield Fault("least likely experts", _routing(SmallestChosen, _CHOICE))
    yield Fault("halves of experts swapped", _loop(ChunksSwapped, ("aten.split.Tensor", *MUL, "aten.silu.default")))
    yield Fault("down of the next expert", _loop(WrongExpertsDown, (*INDEX, *MATMUL, *ADD, "aten.remainder.Scalar")))
    yield Fault(
        "capacity of an expert", _loop(Capacity, (*INDEX, *MATMUL, "aten.index_add_.default", "aten.nonzero.default", "aten.slice.Tensor"))
    )
    yield Fault("weight of the first choice", _loop(WeightOfTheFirst, (*INDEX, *MUL, "aten.zeros_like.default")))
    yield Fault("shared expert missing", _no_shared)
    yield Fault("experts swapped", _experts_swapped)
    yield Fault("row of the router", _router_weight)
