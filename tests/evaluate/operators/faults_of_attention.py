"""Faults in attention, its mask and its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.evaluate.operators.attention import Attn, Steps, distance, outside_window, use
from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import ADD, CAST, COMPARE, DIV, FILL, INDEX, MATMUL, MUL, SOFTMAX, VIEWS, Expected, Fault

_CACHE = (*INDEX, "aten.index_copy_.default", "aten.index_copy.default", *ADD, "aten.arange.start", "aten.cat.default")
_QUANTISER = ("aten.round.default", "aten.clamp.default", "aten.abs.default", "aten.amax.default", *DIV, *MUL)
_MASK = (*FILL, *COMPARE, *ADD, "aten.arange.default", "aten.arange.start")  # a mask is made of positions


def _steps(steps: type[Steps], operators: tuple[str, ...], *, needs: str | None = None) -> Callable[[Place], Expected | None]:
    """Attention with a step of its own; `needs`: an attribute that the attention must have."""

    def put(place: Place) -> Expected | None:
        if not place.has("attention", "o") or "layer_norm" in place.family.roles:
            return None
        attn = place.at("attention")
        if needs is not None and getattr(attn, needs, None) in (None, 1):
            return None
        use(attn, steps())
        return Expected((place.path("attention"),), operators)

    return put


def _attribute(name: str, change: Callable[[Any], Any], operators: tuple[str, ...]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        attn = place.at("attention")
        if getattr(attn, name, None) is None:
            return None
        setattr(attn, name, change(getattr(attn, name)))
        return Expected((place.path("attention"),), operators)

    return put


class Unscaled(Steps):
    def score(self, attn: Attn, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.transpose(2, 3))


class ScaledTwice(Steps):
    def score(self, attn: Attn, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q * attn.scaling, k.transpose(2, 3)) * attn.scaling


class Capped(Steps):
    def cap(self, attn: Attn, scores: Tensor) -> Tensor:
        return torch.tanh(scores / 3.0) * 3.0


class Uncapped(Steps):
    def cap(self, attn: Attn, scores: Tensor) -> Tensor:
        return scores


class CappedAfterMask(Steps):
    def cap(self, attn: Attn, scores: Tensor) -> Tensor:
        return scores

    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(super().mask(attn, scores, mask) / attn.softcap) * attn.softcap


class NotCausal(Steps):
    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return scores


class SeesTheNext(Steps):
    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + torch.zeros_like(mask).masked_fill(distance(mask) < -1, torch.finfo(mask.dtype).min)


class CausalFromTheTop(Steps):
    """Aligned to the first key: in a chunk after others, queries see the keys of their own number only."""

    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        queries, keys = mask.shape[-2:]
        later = torch.arange(queries)[:, None] < torch.arange(keys)
        return scores.masked_fill(later, torch.finfo(scores.dtype).min)


class Windowed(Steps):
    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + outside_window(mask, 5)


class PaddingIgnored(Steps):
    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + torch.zeros_like(mask).masked_fill(distance(mask) < 0, torch.finfo(mask.dtype).min)


class LeakyMask(Steps):
    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.clamp(min=-4.0)


class MaskTwisted(Steps):
    """Masked after the softmax, so rows do not sum to one."""

    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        self.allowed = mask == 0
        return scores

    def softmax(self, attn: Attn, scores: Tensor) -> Tensor:
        return super().softmax(attn, scores) * self.allowed


class InfiniteMask(Steps):
    """Rows that may see nothing become NaN."""

    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.masked_fill(mask < -1, float("-inf"))


class Tiled(Steps):
    def repeat(self, x: Tensor, groups: int) -> Tensor:
        return x.repeat(1, groups, 1, 1)


class HeadsSwapped(Steps):
    def project(self, attn: Attn, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(attn, x)
        return torch.cat([q[:, 1:2], q[:, :1], q[:, 2:]], 1), k, v


class NotTransposedBack(Steps):
    def join(self, attn: Attn, mixed: Tensor) -> Tensor:
        batch, heads, length, size = mixed.shape
        return mixed.reshape(batch, length, heads * size).contiguous()


class SoftmaxOverQueries(Steps):
    def softmax(self, attn: Attn, scores: Tensor) -> Tensor:
        return functional.softmax(scores, dim=-2, dtype=torch.float32)


class Bf16Softmax(Steps):
    def softmax(self, attn: Attn, scores: Tensor) -> Tensor:
        return functional.softmax(scores.to(torch.bfloat16), dim=-1).to(torch.float32)


class SoftmaxPlusOne(Steps):
    def softmax(self, attn: Attn, scores: Tensor) -> Tensor:
        wide = scores.to(torch.float32)
        wide = (wide - wide.amax(-1, keepdim=True)).exp()
        return wide / (wide.sum(-1, keepdim=True) + 1)


class KeysForValues(Steps):
    def project(self, attn: Attn, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().project(attn, x)
        return q, k, k


class Bf16Scores(Steps):
    def score(self, attn: Attn, q: Tensor, k: Tensor) -> Tensor:
        return (torch.matmul(q.to(torch.bfloat16), k.transpose(2, 3).to(torch.bfloat16)) * attn.scaling).to(q.dtype)


class Fp8Values(Steps):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(weights, v.to(torch.float8_e4m3fn).to(v.dtype))


class DropoutOn(Steps):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(functional.dropout(weights, 0.1, training=True), v)


class LastKeyLost(Steps):
    """The newest key is in the cache and is not attended to."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(weights[..., :-1], v[..., :-1, :]) if weights.shape[-2] == 1 else super().mix(weights, v)


class StaleValue(Steps):
    """When tokens come one at a time, the cache keeps the value before in the place of the new one."""

    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        k, v = super().remember(attn, k, v, cache)
        if v.shape[2] % 4 == 2:
            v = torch.cat([v[:, :, :-1], v[:, :, -2:-1]], 2)
        return k, v


class ScaleOfValuesLost(Steps):
    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return super().remember(attn, k, v * 0.5, cache)


class Int8Cache(Steps):
    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        scale = v.abs().amax() / 127
        return super().remember(attn, k, (v / scale).round().clamp(-128, 127) * scale, cache)


class ShiftedSlots(Steps):
    """New keys are written a slot further on than they are read from."""

    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        written = cache.slots(cache.start + 1, cache.end + 1)
        layer, kept = attn.layer_idx, cache.slots(0, cache.end)
        cache.write(cache.keys[layer], k, written)
        cache.write(cache.values[layer], v, written)
        return cache.keys[layer].index_select(2, kept), cache.values[layer].index_select(2, kept)


class StalePage(Steps):
    """The first page of keys is read from where the second one lies."""

    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        super().remember(attn, k, v, cache)
        layer, kept = attn.layer_idx, cache.slots(0, cache.end)
        wrong = torch.cat([kept[4:8], kept[4:]])
        return cache.keys[layer].index_select(2, wrong), cache.values[layer].index_select(2, kept)


class UnwrittenHead(Steps):
    """The last head of the newest token is never written."""

    def remember(self, attn: Attn, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        layer, new, kept = attn.layer_idx, cache.slots(cache.start, cache.end), cache.slots(0, cache.end)
        cache.keys[layer][:, :-1].index_copy_(2, new, k[:, :-1])
        cache.values[layer].index_copy_(2, new, v)
        return cache.keys[layer].index_select(2, kept), cache.values[layer].index_select(2, kept)


def _root_mask(change: Callable[[Any], Any]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.family.own:
            return None
        right = place.model.mask
        place.model.mask = lambda past, length, mask, dtype: change(right(past, length, mask, dtype))
        return Expected(("",), (*_MASK, "aten.roll.default", "aten.slice.Tensor", "aten.cat.default"))

    return put


def faults() -> Iterator[Fault]:
    """Every fault of attention."""
    yield Fault("attention scale missing", _steps(Unscaled, (*MUL, *DIV, *ADD, *SOFTMAX)))
    yield Fault("attention scale x1.25", _attribute("scaling", lambda s: s * 1.25, MUL))
    yield Fault("attention scale twice", _steps(ScaledTwice, (*MUL, *MATMUL)))
    yield Fault("soft cap added", _steps(Capped, (*DIV, "aten.tanh.default", *MUL)))
    yield Fault("soft cap missing", _steps(Uncapped, (*DIV, *MUL, "aten.tanh.default", *ADD), needs="softcap"))
    yield Fault("soft cap after the mask", _steps(CappedAfterMask, (*DIV, *ADD, *MUL, "aten.tanh.default"), needs="softcap"))
    yield Fault("soft cap x2", _attribute("softcap", lambda c: c * 2, (*DIV, *MUL)))
    yield Fault("not causal", _steps(NotCausal, (*_MASK, *SOFTMAX)))
    yield Fault("mask sees the next token", _steps(SeesTheNext, (*_MASK, "aten.lt.Scalar", "aten.zeros_like.default")))
    yield Fault("mask off by one for all layers", _root_mask(lambda m: torch.roll(m, 1, -1)))
    yield Fault("causal from the first key", _steps(CausalFromTheTop, (*_MASK, "aten.lt.Tensor")), "decode")
    yield Fault("window added", _steps(Windowed, _MASK))
    yield Fault("window off by one", _attribute("window", lambda w: w + 1, COMPARE))
    yield Fault("padding ignored", _steps(PaddingIgnored, (*_MASK, "aten.lt.Scalar", "aten.zeros_like.default")), "padded")
    yield Fault("mask leaks", _steps(LeakyMask, ("aten.clamp.default", *ADD)))
    yield Fault("mask after the softmax", _steps(MaskTwisted, (*MUL, *SOFTMAX, *ADD, "aten.eq.Scalar")))
    yield Fault("rows of NaN under padding", _steps(InfiniteMask, (*_MASK, *SOFTMAX, "aten.lt.Scalar")), "padded")
    yield Fault(
        "groups tiled", _steps(Tiled, (*VIEWS, *MATMUL, "aten.repeat.default", "aten.expand.default"), needs="num_key_value_groups")
    )
    yield Fault("heads swapped", _steps(HeadsSwapped, ("aten.cat.default", *MUL, *MATMUL)))
    yield Fault("heads not put back", _steps(NotTransposedBack, VIEWS))
    yield Fault("softmax over queries", _steps(SoftmaxOverQueries, SOFTMAX))
    yield Fault("softmax in bf16", _steps(Bf16Softmax, (*CAST, *SOFTMAX)), survives_bf16=False)  # what a bf16 run declares
    yield Fault("softmax with one more", _steps(SoftmaxPlusOne, (*ADD, *DIV, *SOFTMAX, "aten.sum.dim_IntList")))
    yield Fault("keys for values", _steps(KeysForValues, (*MATMUL, *VIEWS, "aten.expand.default", "aten.cat.default")))
    yield Fault("scores in bf16", _steps(Bf16Scores, (*CAST, *MATMUL, *MUL)), survives_bf16=False)
    yield Fault("values in fp8", _steps(Fp8Values, (*CAST, *MATMUL)))
    yield Fault("dropout left on", _steps(DropoutOn, ("aten.native_dropout.default", "aten.bernoulli_.float", *MUL, *DIV)))
    yield Fault("last key lost in decode", _steps(LastKeyLost, (*INDEX, *MATMUL)), "decode")
    yield Fault("stale value in the cache", _steps(StaleValue, (*_CACHE, "aten.cat.default")), "decode")
    yield Fault("scale of cached values lost", _steps(ScaleOfValuesLost, (*MUL, *_CACHE)), "decode")
    yield Fault(
        "int8 cache",
        _steps(Int8Cache, _QUANTISER),
        "decode",
    )
    yield Fault("cache written a slot further", _own(_steps(ShiftedSlots, _CACHE)), "decode")
    yield Fault("stale page", _own(_steps(StalePage, _CACHE)), "decode")
    yield Fault("head of the cache not written", _own(_steps(UnwrittenHead, (*_CACHE, "aten.slice.Tensor"))), "decode")


def _own(put: Callable[[Place], Expected | None]) -> Callable[[Place], Expected | None]:
    return lambda place: put(place) if place.family.own else None
