"""Calls of one run alone are told by kind."""

from __future__ import annotations

from layerdiff.rows.sites.alone import alone_texts
from layerdiff.saved.comparison import Unpaired


def cast(path: str, number: int, on: str = "") -> Unpaired:
    operator = f"aten._to_copy.default#{number}"
    return Unpaired(f"{path}/{operator}", f"the reference does not run {operator} in {path or '(the root)'}{on}")


def test_an_operator_is_told_once_with_its_modules() -> None:
    calls = [cast(f"layers.{layer}.norm", number) for layer in range(3) for number in range(2)]
    assert alone_texts([cast("", 0), *calls, cast("norm", 0)]) == [
        "aten._to_copy.default: the reference does not run it in the root, layers.*.norm (6), norm"
    ]


def test_ranks_are_told_apart() -> None:
    assert alone_texts([cast("norm", 0, ", on rank 1"), cast("norm", 1)]) == [
        "aten._to_copy.default: the reference does not run it in norm, on rank 1",
        "aten._to_copy.default: the reference does not run it in norm",
    ]


def test_operators_of_one_reason_are_counted() -> None:
    reason = "the target runs it in 2 steps"
    calls = [
        Unpaired("a/aten.mul.Tensor#0", reason),
        Unpaired("b/aten.add.Tensor#0", "called twice"),
        Unpaired("c/aten.mm.default#1", reason),
    ]
    assert alone_texts([*calls, Unpaired("a/aten.add.Tensor#0", reason)]) == [
        "a/aten.mul.Tensor#0 and 2 more calls: the target runs it in 2 steps",
        "b/aten.add.Tensor#0: called twice",
    ]


def test_a_module_of_every_layer_is_told_once() -> None:
    calls = [Unpaired(f"layers.{layer}.gate", f"the target never runs layers.{layer}.gate") for layer in range(12)]
    assert alone_texts([*calls, Unpaired("", "called twice")]) == [
        "layers.*.gate (12): the target never runs layers.*.gate",
        "(root): called twice",
    ]
