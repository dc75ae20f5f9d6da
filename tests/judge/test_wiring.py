"""Static comparison: which cuts are handed the same expression, without running anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.programs import Prepared, prepared, random, record, seeded

X = random(4, 6)


class Of(nn.Module):
    """A function of x and of the buffers a and b (different numbers of one shape)."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], *, change: bool = False) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("a", random(4, 6, seed=11))
        self.register_buffer("b", random(4, 6, seed=12) + change)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.a, self.b)


def read(folder: Path, reference: nn.Module, target: nn.Module, x: Tensor = X) -> Prepared:
    return prepared(record(folder / "r.h5", seeded(reference), X), record(folder / "t.h5", seeded(target), x))


def same(found: Prepared) -> bool:
    return found.wiring.same(found.body.calls, "out")


Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def written(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made[:, :3] = first[:, :3]
    made[:, 2:4] = second[:, 2:4]
    return made + x


def placed(x: Tensor, part: Tensor, at: int) -> Tensor:
    made = x.clone()
    made[:, at : at + 2] = part[:, :2]
    return made


ALIKE: dict[str, tuple[Function, Function]] = {
    "the same": (lambda x, a, b: (x + a) * b, lambda x, a, b: (x + a) * b),
    "a cast between floats": (lambda x, a, b: (x + a) * b, lambda x, a, b: (x + a).double().float() * b),
    "a whole number and a float": (lambda x, a, b: x * 2, lambda x, a, b: x * 2.0),
    "something that is not used": (lambda x, a, b: x + a, lambda x, a, b: (x * b, x + a)[1]),
    "written in the same order": (lambda x, a, b: written(x, a, b), lambda x, a, b: written(x, a, b)),
}
OTHERWISE: dict[str, tuple[Function, Function]] = {
    "another scalar": (lambda x, a, b: x + 1e-5, lambda x, a, b: x + 1e-6),
    "another operand": (lambda x, a, b: x + a, lambda x, a, b: x + b),
    "operands exchanged": (lambda x, a, b: (x + a) - b, lambda x, a, b: b - (x + a)),
    "another order of steps": (lambda x, a, b: (x + a) * b, lambda x, a, b: x * b + a),
    "another view": (lambda x, a, b: x + a[:2].repeat(2, 1), lambda x, a, b: x + a[2:].repeat(2, 1)),
    "another geometry": (lambda x, a, b: x.reshape(6, 4) + 1, lambda x, a, b: x.T + 1),
    "another axis": (lambda x, a, b: x.softmax(-1), lambda x, a, b: x.softmax(0)),
    "a flag": (lambda x, a, b: x.sum(0, keepdim=True), lambda x, a, b: x.sum(0, keepdim=False)),
    "written in another order": (lambda x, a, b: written(x, a, b), lambda x, a, b: written(x, b, a)),
    "written elsewhere": (lambda x, a, b: placed(x, a, 0), lambda x, a, b: placed(x, a, 1)),
    "a whole dtype": (lambda x, a, b: x.to(torch.int32).float(), lambda x, a, b: x.to(torch.int8).float()),
}


@pytest.mark.parametrize(("reference", "target"), ALIKE.values(), ids=ALIKE)
def test_wired_alike(tmp_path: Path, reference: Function, target: Function) -> None:
    assert same(read(tmp_path, Of(reference), Of(target)))


@pytest.mark.parametrize(("reference", "target"), OTHERWISE.values(), ids=OTHERWISE)
def test_wired_otherwise(tmp_path: Path, reference: Function, target: Function) -> None:
    assert not same(read(tmp_path, Of(reference), Of(target)))


def test_a_constant_that_differs_is_another_operand(tmp_path: Path) -> None:
    add: Function = lambda x, a, b: x + b  # noqa: E731
    assert same(read(tmp_path, Of(add), Of(add)))
    assert not same(read(tmp_path, Of(add), Of(add, change=True)))


def test_what_comes_in_may_differ(tmp_path: Path) -> None:
    add: Function = lambda x, a, b: x + b  # noqa: E731
    assert same(read(tmp_path, Of(add), Of(add), x=X + 1))


def test_a_constant_in_another_dtype_is_the_same(tmp_path: Path) -> None:
    add: Function = lambda x, a, b: x + b  # noqa: E731
    assert same(read(tmp_path, Of(add), Of(add).bfloat16(), x=X.bfloat16()))


class Children(nn.Module):
    def __init__(self, *, crossed: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6, bias=False) for _ in range(3))
        self.crossed = crossed

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.a(x), self.b(x)
        return self.c(second if self.crossed else first) + 0 * second


def test_each_child_is_handed_what_it_is_in_the_reference(tmp_path: Path) -> None:
    found = read(tmp_path, Children(crossed=False), Children(crossed=True))
    told = {found.runs.target.file.site(pair[1]): found.wiring.same(pair, "in[0]") for pair in found.body.children}
    assert {"a": True, "b": True, "c": False} == told


def test_scalars_are_kept_by_call(tmp_path: Path) -> None:
    found = read(tmp_path, Of(lambda x, a, b: x + 1e-5), Of(lambda x, a, b: x + 1e-6))
    call = found.call("reference", "aten.add.Tensor")
    assert "1e-05" in found.wiring.scalars.reference[call]
    assert "1e-06" in found.wiring.scalars.target[found.programs.aligned[call]]
