"""Bodies: which operators belong to which pair of module calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerdiff.align.beside import AS_THEY_ARE
from layerdiff.judge.programs.bodies import Body, bodies, both_ways, interface, whole_body
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from tests.programs import module_pairs, opened, random, record, seeded

X = random(2, 4)


class Twice(nn.Module):
    """y = b(a(x) * 2) + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * 2) + 1


class Pair(nn.Module):
    """Two linear layers in one module; returns a pair where it is asked to."""

    def __init__(self, *, pair: bool) -> None:
        super().__init__()
        self.inner, self.pair = nn.Linear(4, 4, bias=False), pair

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x).neg()
        return (y, x) if self.pair else y


class Around(nn.Module):
    def __init__(self, *, pair: bool) -> None:
        super().__init__()
        self.part = Pair(pair=pair)

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        return y[0] + y[1] if isinstance(y, tuple) else y + x


def found(folder: Path, reference: nn.Module, target: nn.Module) -> tuple[Both[Recorded], dict[str, Body]]:
    files = opened(record(folder / "r.h5", seeded(reference), X), record(folder / "t.h5", seeded(target), X))
    pairs, runs = module_pairs(files), files.map(Recorded)
    roots = [(r, t) for r, t in pairs.items() if int(files.target.calls.parent[t]) < 0]
    return runs, {files.target.site(body.calls[1]): body for body in bodies(runs, both_ways(pairs), roots)}


def names(run: Recorded, items: tuple[int, ...]) -> list[str]:
    return [run.file.site(item) if run.is_module(item) else run.operation(item).name.split(".")[1] for item in items]


def test_a_body_is_a_module_without_its_children(tmp_path: Path) -> None:
    runs, body = found(tmp_path, Twice(), Twice())
    assert ["", "a", "b"] == list(body)
    assert ["a", "mul", "b", "add"] == names(runs.target, body[""].items.target)
    assert ["t", "mm"] == names(runs.target, body["a"].items.target)
    assert ["in[0]"] == [position for position, _ in body["a"].interface.inputs]
    assert ["out"] == [position for position, _ in body["a"].interface.outputs]
    assert {"a", "b"} == {runs.target.file.site(t) for _, t in body[""].children}


def test_every_operator_belongs_to_exactly_one_body(tmp_path: Path) -> None:
    runs, body = found(tmp_path, Around(pair=False), Around(pair=True))
    for run, side in ((runs.reference, "reference"), (runs.target, "target")):
        held = [item for one in body.values() for item in getattr(one.items, side) if not run.is_module(item)]
        assert [call for call in range(len(run.file.calls)) if not run.is_module(call)] == sorted(held)


def test_a_child_with_another_interface_is_dissolved_and_its_own_children_are_not(tmp_path: Path) -> None:
    runs, body = found(tmp_path, Around(pair=False), Around(pair=True))
    assert ["", "part.inner"] == list(body)
    assert ["part.inner", "neg", "add"] == names(runs.target, body[""].items.target)
    assert ["part"] == [runs.target.file.site(call) for call in body[""].dissolved.target]


def test_children_with_one_interface_are_kept(tmp_path: Path) -> None:
    _, body = found(tmp_path, Around(pair=True), Around(pair=True))
    assert ["", "part", "part.inner"] == list(body)
    assert ((), ()) == (body[""].dissolved.reference, body[""].dissolved.target)
    assert ["out[0]", "out[1]"] == [position for position, _ in body["part"].interface.outputs]


def test_a_module_of_one_side_belongs_to_what_is_around_it(tmp_path: Path) -> None:
    class Plain(Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.b((x @ self.a.weight.T) * 2) + 1

    runs, body = found(tmp_path, Twice(), Plain())
    assert ["", "b"] == list(body)
    assert ["t", "mm", "mul", "b", "add"] == names(runs.reference, body[""].items.reference)
    assert "mm" in names(runs.target, body[""].items.target)


class Deeper(nn.Module):
    """The reference's `inner`, one module further down."""

    def __init__(self, *, deep: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.deep = deep
        self.around = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.deep:
            self.around.forward = self.inner  # type: ignore[assignment]
            return self.around(x) * 2
        return self.around(self.inner(x)) * 2


def test_a_pair_of_which_one_call_lies_deeper_is_no_child_of_either(tmp_path: Path) -> None:
    runs, body = found(tmp_path, Deeper(deep=False), Deeper(deep=True))
    for run, side in ((runs.reference, "reference"), (runs.target, "target")):
        held = [item for one in body.values() for item in getattr(one.items, side) if not run.is_module(item)]
        assert [call for call in range(len(run.file.calls)) if not run.is_module(call)] == sorted(held)


def test_a_whole_body_has_no_children(tmp_path: Path) -> None:
    runs, body = found(tmp_path, Twice(), Twice())
    whole = whole_body(runs, body[""].calls, AS_THEY_ARE)
    assert whole is not None
    assert ["t", "mm", "mul", "t", "mm", "add"] == names(runs.target, whole.items.target)
    assert {} == whole.children


def test_another_interface_has_no_whole_body(tmp_path: Path) -> None:
    runs, _ = found(tmp_path, Around(pair=False), Around(pair=True))
    files = runs.map(lambda run: run.file)
    calls = {site: pair for pair in module_pairs(files).items() if (site := files.target.site(pair[1])) == "part"}
    assert interface(runs, calls["part"], AS_THEY_ARE) is None
    assert whole_body(runs, calls["part"], AS_THEY_ARE) is None


@pytest.mark.parametrize("size", [3, 5])
def test_other_shapes_are_another_interface(tmp_path: Path, size: int) -> None:
    """A width that differs inside: the children are dissolved, the module around them is kept."""

    class Wide(nn.Module):
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, inner, bias=False), nn.Linear(inner, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.relu(self.up(x)))

    _, body = found(tmp_path, Wide(4), Wide(size))
    assert [""] == list(body)
