"""The scalars in which two calls differ, and the arguments that have the reference's in their place."""

from __future__ import annotations

from typing import Any

from layerdiff.judge.meaning.mending import other_scalars, with_scalars
from layerdiff.replay.recorded import Operation


def call(*args: Any, name: str = "aten.f.default", **kwargs: Any) -> Operation:
    return Operation(0, name, {"args": list(args), "kwargs": kwargs}, {}, {}, (), False, None, True)


def test_one_by_one_then_all() -> None:
    target, reference = call({"tensor": "in[0]"}, 0.0, True, scale=0.4), call({"tensor": "in[0]"}, 0.0, False)
    found = list(other_scalars(target, reference))
    assert [(("args", 2),), (("kwargs", "scale"),), (("args", 2), ("kwargs", "scale"))] == found
    alone = with_scalars(target, reference, found[1])
    assert {"args": [{"tensor": "in[0]"}, 0.0, True], "kwargs": {}} == alone
    assert {"args": [{"tensor": "in[0]"}, 0.0, False], "kwargs": {}} == with_scalars(target, reference, found[2])


def test_places_before_a_scalar_that_is_put_there_are_filled() -> None:
    target, reference = call({"tensor": "in[0]"}), call({"tensor": "in[0]"}, 0.5, True)
    assert {"args": [{"tensor": "in[0]"}, 0.5, True], "kwargs": {}} == with_scalars(target, reference, [("args", 2)])


def test_tensors_and_other_operators_are_no_scalars() -> None:
    assert [] == list(other_scalars(call({"tensor": "in[0]"}), call({"tensor": "in[1]"})))
    assert [] == list(other_scalars(call(1.0), call(2.0, name="aten.g.default")))
