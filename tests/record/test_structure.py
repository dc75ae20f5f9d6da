from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerdiff.record.attributes import KnownAttributes, simple_attributes
from layerdiff.record.structure import MAX_DEPTH, Found, picture_arguments, picture_result
from layerdiff.record.usual_arguments import usual_arguments


def walk(thing: Any, seen: tuple[int, ...] = ()) -> tuple[list[str], Any]:
    found = Found(seen)
    picture = found.walk(thing, "out")
    json.dumps(picture, allow_nan=False)
    return [position for position, _ in found.tensors], picture


T = torch.ones(1)


def test_positions() -> None:
    Pair = namedtuple("Pair", "left right")

    @dataclass
    class Output:
        hidden: Tensor
        others: tuple[Tensor, ...]
        none: None = None

    thing = (T, [T, (T,)], {"a": T, "b c": T, 3: T}, Pair(T, 1), Output(T, (T, T)), OrderedDict(z=T))
    expected = [
        "out[0]", "out[1][0]", "out[1][1][0]", "out[2].a", 'out[2]["b c"]', "out[2][3]", "out[3].left",
        "out[4].hidden", "out[4].others[0]", "out[4].others[1]", "out[5].z",
    ]  # fmt: skip
    assert expected == walk(thing)[0]


def test_what_is_no_tensor_is_pictured() -> None:
    picture = walk([None, True, 3, 1.5, float("inf"), "text", torch.bfloat16, slice(0, None, 2), nn.ReLU(), "x" * 300])[1]
    expected = [None, True, 3, 1.5, {"float": "inf"}, "text", {"dtype": "torch.bfloat16"}, {"slice": [0, None, 2]}, {"skipped": "ReLU"}]
    assert expected == picture[:-1]
    assert 201 == len(picture[-1])


class Cache:
    def __init__(self) -> None:
        self.keys = [T, T]
        self.config = {"heads": 4}

    @property
    def values(self) -> Tensor:
        raise AssertionError("a property was called")


def test_objects_are_walked_by_vars_alone() -> None:
    assert (
        ["out.keys[0]", "out.keys[1]"],
        {"object": "Cache", "fields": {"keys": [{"tensor": "out.keys[0]"}, {"tensor": "out.keys[1]"}]}},
    ) == walk(Cache())
    cache = Cache()
    assert ([], {"seen": "Cache"}) == walk(cache, (id(cache),))
    assert ([], {"skipped": "object"}) == walk(object())


def test_cycles_depth_and_numbers_are_bounded() -> None:
    cycle: list[Any] = [T]
    cycle.append(cycle)
    assert ["out[0]"] == walk(cycle)[0]
    deep: Any = T
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    assert [] == walk(deep)[0]
    many = [[T] for _ in range(30_000)]
    assert 10_000 < len(walk(many)[0]) < 30_000
    parent, child = Cache(), Cache()
    parent.child, child.parent = child, parent  # type: ignore[attr-defined]
    assert ["out.keys[0]", "out.keys[1]", "out.child.keys[0]", "out.child.keys[1]"] == walk(parent)[0]


def test_arguments_and_results() -> None:
    tensors, picture, opaque = picture_arguments((T, None), {"mask": T, "scale": 0.5}, ())
    assert ["in[0]", "in.mask"] == [position for position, _ in tensors]
    assert {"args": [{"tensor": "in[0]"}, None], "kwargs": {"mask": {"tensor": "in.mask"}, "scale": 0.5}} == json.loads(picture)
    assert [] == opaque
    short = picture_arguments((T,), {}, ())
    assert ({"args": [{"tensor": "in[0]"}]}, ["in[0]"]) == (json.loads(short[1]), [position for position, _ in short[0]])
    assert {"tensor": "out"} == json.loads(picture_result(T, ())[1])


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((T,), {}),
        ((T, nn.Parameter(T), 3, True, 1, False, None), {}),
        ((T, 0.0), {}),
        ((T, -0.0), {}),
        ((T, math.inf, math.nan, 1e300), {}),
        ((T, [], [1, -2], 2**70), {}),
        ((T, [True, 2]), {}),
        ((T, [1, 2.5]), {}),
        (([T, T], 1), {}),
        ((T, "%s", T), {}),
        ((T,), {"alpha": 1}),
        ((T,), {"alpha": True}),
        ((T,), {"alpha": 0.0}),
        ((T,), {"alpha": -0.0}),
        ((), {"dtype": torch.float32, "device": torch.device("cpu"), "layout": None}),
        ((T,), {"out": T, "names": ["a"]}),
        ((T, *[1] * 20, T), {"memory_format": torch.channels_last}),
    ],
)
def test_usual_arguments_are_told_as_others_are(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors, picture, _ = picture_arguments(args, kwargs)
    for _ in range(2):  # found, and found again
        usual = usual_arguments(args, kwargs)
        if usual is not None:
            assert picture == usual[1]
            assert [position for position, _ in tensors] == [position for position, _ in usual[0]]
            assert all(expected is actual for (_, expected), (_, actual) in zip(tensors, usual[0], strict=True))


def test_which_arguments_are_usual() -> None:
    assert usual_arguments((T, nn.Parameter(T), 1, 2.5, True, None, [1, 2]), {"dtype": torch.float16}) is not None
    assert [None] * 4 == [
        usual_arguments(*unusual) for unusual in (((T, [T]), {}), (("a",), {}), ((T,), {"out": T}), ((T,), {"scale": 0.5}))
    ]


def test_attributes_follow_the_module() -> None:
    module = nn.Conv2d(3, 4, 3, padding=1)
    expected = {
        "in_channels": 3, "out_channels": 4, "kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1],
        "transposed": False, "output_padding": [0, 0], "groups": 1, "padding_mode": "zeros",
    }  # fmt: skip
    assert expected == simple_attributes(module)
    norm = nn.RMSNorm(4, eps=1e-6)
    known = KnownAttributes(norm)
    assert 1e-6 == json.loads(known.json)["eps"]
    assert known.are_those_of(norm)
    norm.eps = 1e-5
    assert not known.are_those_of(norm)
    norm.limit = float("inf")
    assert (1e-5, {"float": "inf"}) == (json.loads(KnownAttributes(norm).json)["eps"], json.loads(KnownAttributes(norm).json)["limit"])
