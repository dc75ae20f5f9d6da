"""Faults in rotary tables, their use, and positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.evaluate.operators.attention import Steps, rotate_half, use
from tests.evaluate.operators.families import Place
from tests.evaluate.operators.fault import ADD, CAST, INDEX, MUL, SUB, Expected, Fault

_ROTATION = (*MUL, *ADD, *SUB, *CAST, *INDEX, "aten.cat.default", "aten.neg.default", "aten.stack.default", "aten.roll.default")
_TABLE = (
    *MUL,
    *CAST,
    "aten.pow.Scalar",
    "aten.div.Tensor",
    "aten.bmm.default",
    "aten.arange.start_step",
    "aten.cos.default",
    "aten.sin.default",
)


def _steps(steps: type[Steps]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.has("rotary"):
            return None
        use(place.at("attention"), steps())
        return Expected((place.path("attention"),), _ROTATION)

    return put


class Interleaved(Steps):
    """Pairs of neighbours are rotated, where the weights are made for halves."""

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (table[..., : table.shape[-1] // 2].repeat_interleave(2, -1).unsqueeze(1) for table in (cos, sin))

        def turned(x: Tensor) -> Tensor:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

        return (q * cos) + (turned(q) * sin), (k * cos) + (turned(k) * sin)


class KeysNotRotated(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, cos, sin)[0], k


class OtherSense(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return (q * cos) + (rotate_half(q) * sin), (k * cos) - (rotate_half(k) * sin)


class QueriesOneOn(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ahead = (cos.roll(-1, 1), sin.roll(-1, 1))
        return super().rotate(q, k, *ahead)[0], super().rotate(q, k, cos, sin)[1]


class HalfOfTheHead(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        half = q.shape[-1] // 2
        turned, kept = super().rotate(q, k, cos, sin), (q, k)
        return tuple(torch.cat([t[..., :half], x[..., half:]], -1) for t, x in zip(turned, kept, strict=True))  # type: ignore[return-value]


class AttentionFactorMissing(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, cos, sin)
        return q * 1.2, k * 1.2


class TablesInBf16(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, cos.to(torch.float8_e5m2).to(q.dtype), sin.to(torch.float8_e5m2).to(q.dtype))


def _base(place: Place) -> Expected | None:
    if not place.has("rotary"):
        return None
    rotary, path = place.at("rotary"), place.path("rotary")
    if place.family.own:
        rotary.base = 500_000.0
        return Expected((path,), _TABLE)
    count = rotary.inv_freq.numel()
    rotary.inv_freq.copy_(500_000.0 ** (-torch.arange(count).float() / count))
    return Expected((path,), _TABLE, (path + ".inv_freq",))


def _own_angles(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.family.own:
            return None
        rotary = place.at("rotary")
        right = rotary.angles
        rotary.angles = lambda positions: change(right, positions)
        return Expected((place.path("rotary"),), (*_TABLE, *ADD))

    return put


def _bf16_frequencies(place: Place) -> Expected | None:
    if not place.family.own:
        return None
    rotary = place.at("rotary")

    def angles(positions: Tensor) -> Tensor:
        frequencies = rotary.base ** (-torch.arange(0, rotary.head_dim, 2, dtype=torch.float32) / rotary.head_dim)
        return positions[..., None].to(torch.float32) * frequencies.to(torch.bfloat16).to(torch.float32)

    rotary.angles = angles
    return Expected((place.path("rotary"),), (*CAST, *MUL))


def _table_factor(place: Place) -> Expected | None:
    if not place.has("rotary"):
        return None
    place.at("rotary").attention_scaling *= 1.1
    return Expected((place.path("rotary"),), MUL)


def _positions(change: Callable[..., Tensor]) -> Callable[[Place], Expected | None]:
    def put(place: Place) -> Expected | None:
        if not place.family.own:
            return None
        right = place.model.positions
        place.model.positions = lambda past, length, mask: change(right, past, length, mask)
        return Expected(("", place.path("rotary")), (*ADD, "aten.arange.start", "aten.cumsum.default", "aten.floor_divide.default"))

    return put


def faults() -> Iterator[Fault]:
    """Every fault of positions."""
    yield Fault("rotary interleaved", _steps(Interleaved))
    yield Fault("keys not rotated", _steps(KeysNotRotated))
    yield Fault("keys rotated the other way", _steps(OtherSense))
    yield Fault("queries one position on", _steps(QueriesOneOn))
    yield Fault("half of the head rotated", _steps(HalfOfTheHead))
    yield Fault("rotated results scaled", _steps(AttentionFactorMissing))
    yield Fault("rotary tables in fp8", _steps(TablesInBf16))
    yield Fault("rotary base", _base)
    yield Fault("rotary tables scaled", _table_factor)
    yield Fault("rotary frequencies in bf16", _bf16_frequencies, survives_bf16=False)  # what a bf16 run declares
    yield Fault("rotary positions halved", _own_angles(lambda right, positions: right(positions) / 2))
    yield Fault(
        "padding not in the positions", _positions(lambda right, past, length, mask: right(past, length, None)), "padded", trap=True
    )
    yield Fault(
        "positions shifted in decode",
        _positions(lambda right, past, length, mask: right(past, length, mask) + (1 if past else 0)),
        "decode",
    )
    yield Fault("positions restart in decode", _positions(lambda right, past, length, mask: right(0, length, mask)), "decode")
    yield Fault(
        "all positions shifted (paths meet again)", _positions(lambda right, past, length, mask: right(past, length, mask) + 3), trap=True
    )
