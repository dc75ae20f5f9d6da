"""The calls of a body run again in the memory that they shared: views, writes, versions, what is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff.replay.program import Child, Part, contents, positions_of, run_calls
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay, NotRecorded
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.reader import open_trace
from layerdiff.trace.schema import Role
from tests.programs import random, record

X = random(4, 6)
Array = np.ndarray


class Watching:
    """Takes what comes in as it was recorded, and keeps what is made and handed on."""

    def __init__(self, run: Recorded) -> None:
        self.run = run
        self.came: list[int] = []
        self.results: dict[str, list[dict[str, Array]]] = {}
        self.handed_on: dict[tuple[int, str], Array] = {}
        self.refused: list[str] = []
        self.replaced: dict[str, dict[str, Array]] = {}

    def incoming(self, value: int) -> Array:
        self.came.append(value)
        return contents(self.run, value)

    def instead(self, operation: Operation) -> Mapping[str, Array] | None:
        return self.replaced.get(operation.name)

    def made(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> None:
        self.results.setdefault(operation.name, []).append({name: np.array(made) for name, made in results.items()})

    def handed(self, call: int, position: str, contents: Array) -> None:
        self.handed_on[call, position] = contents

    def cannot(self, operation: Operation, reason: str) -> Mapping[str, Array]:
        self.refused.append(reason)
        return {position: contents(self.run, value) for position, value in operation.outputs.items()}


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self._buffers.values())


def run(folder: Path, model: nn.Module, *, steps: Any = None, change: Callable[[Watching], None] | None = None) -> tuple[Watching, Array]:
    """The last call of the root, run again; and what it returns."""
    file = open_trace(record(folder / "t.h5", model, X, steps=steps)).files[0]
    recorded = Recorded(file)
    call = max(c for c in range(len(file.calls)) if int(file.calls.parent[c]) < 0)
    children = {
        child: Child(recorded.edges(child, Role.INPUT), tuple(recorded.edges(child, Role.OUTPUT).values()))
        for child in recorded.children[call]
        if recorded.is_module(child)
    }
    watching = Watching(recorded)
    if change is not None:
        change(watching)
    items = list(recorded.walk(call, set(children)))
    inputs, outputs = recorded.edges(call, Role.INPUT), recorded.edges(call, Role.OUTPUT)
    run_calls(Part(recorded, call, items, children, tuple(inputs.values()), outputs), watching)
    return watching, watching.handed_on[call, "out"]


def viewed(x: Tensor) -> Tensor:
    return x.reshape(2, 12).T[3:9].unflatten(0, (2, 3)).transpose(0, 2).reshape(-1, 3) / 3


def written_through_a_view(x: Tensor) -> Tensor:
    kept = torch.zeros(4, 6)
    rows = kept[1:3]
    columns = kept.T[2]
    rows += x[1:3]
    columns.mul_(10)
    return kept + rows.sum() + columns.sum()


def partly_written(x: Tensor) -> Tensor:
    made = torch.empty(4, 6)
    made[:2] = x[:2]
    made[2:] = x[2:] * 3
    return made * 2


def expanded(x: Tensor) -> Tensor:
    row = x[:1] + 1
    return row.expand(4, 6) * x + x[:, :1].expand(-1, 6)


def filled(x: Tensor) -> Tensor:
    made = x.clone()
    made.fill_(2.0)
    made[:, 0].copy_(x[:, 1])
    made.index_put_((torch.tensor([3]), torch.tensor([4])), torch.tensor(9.0))
    return made


def split_and_joined(x: Tensor) -> Tensor:
    first, second = (x / 3).chunk(2, -1)
    return torch.cat([second, first], -1)


def read_before_and_after(x: Tensor) -> Tensor:
    made = x + 0
    before = made.sum(-1)
    made *= 5
    return before + made.sum(-1)


FUNCTIONS = [viewed, written_through_a_view, partly_written, expanded, filled, split_and_joined, read_before_and_after]


@pytest.mark.parametrize("function", FUNCTIONS, ids=[function.__name__ for function in FUNCTIONS])
def test_what_is_returned_is_what_the_function_computes_in_float64(tmp_path: Path, function: Callable[[Tensor], Tensor]) -> None:
    watching, returned = run(tmp_path, Of(function))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        expected = function(X.double())
    finally:
        torch.set_default_dtype(default)
    assert np.allclose(expected.numpy(), returned, rtol=1e-15, atol=1e-15)
    assert [] == watching.refused


def test_only_what_the_body_was_given_comes_in(tmp_path: Path) -> None:
    watching, _ = run(tmp_path, Of(read_before_and_after))
    assert [(4, 6)] == [watching.run.file.shape(value) for value in watching.came]


def test_a_buffer_that_a_child_writes_is_read_anew(tmp_path: Path) -> None:
    """The parent reads the cache before and after its child wrote to it."""

    class Child_(nn.Module):
        def __init__(self, cache: Tensor) -> None:
            super().__init__()
            self.held = [cache]

        def forward(self, x: Tensor) -> Tensor:
            self.held[0].add_(x)
            return x.sum()

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.ones(4, 6))
            self.child = Child_(self.cache)

        def forward(self, x: Tensor) -> Tensor:
            before = self.cache * 2
            total = self.child(x)
            return before + self.cache * total

    _, returned = run(tmp_path, Parent())
    after = (torch.ones(4, 6) + X).double()  # as recorded, in float32: the child is judged by itself
    assert np.allclose((2 + after * X.sum().double()).numpy(), returned, rtol=1e-15)


def test_state_of_the_step_before_comes_in(tmp_path: Path) -> None:
    def counting(x: Tensor, total: Tensor) -> Tensor:
        total += x.sum(0)
        return total * 2

    steps = [(X,), (X * 2,)]
    watching, returned = run(tmp_path, Of(counting, total=torch.zeros(6)), steps=steps)
    first = X.sum(0).double()  # recorded by the first step
    assert np.allclose(((first + (X.double() * 2).sum(0)) * 2).numpy(), returned, rtol=1e-7)
    assert (6,) in [watching.run.file.shape(value) for value in watching.came]


def test_results_in_place_of_a_call(tmp_path: Path) -> None:
    def replace(watching: Watching) -> None:
        watching.replaced["aten.add.Tensor"] = {"out": np.full((4, 6), 5.0)}

    watching, returned = run(tmp_path, Of(lambda x: (x + 1) * 2), change=replace)
    assert np.full((4, 6), 10.0).tolist() == returned.tolist()
    assert "aten.add.Tensor" not in watching.results


def test_results_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def replace(watching: Watching) -> None:
        watching.replaced["aten.add.Tensor"] = {"out": np.zeros((5, 5))}

    with pytest.raises(CannotReplay, match=r"\[5, 5\] in one run and \[4, 6\] in the other"):
        run(tmp_path, Of(lambda x: (x + 1) * 2), change=replace)


def test_floats_read_as_other_bits_are_read_as_recorded(tmp_path: Path) -> None:
    _, returned = run(tmp_path, Of(lambda x: x.view(torch.int32).bitwise_and(-2).view(torch.float32) * 2))
    expected = X.view(torch.int32).bitwise_and(-2).view(torch.float32).double() * 2
    assert expected.tolist() == returned.tolist()


def test_overlapping_windows(tmp_path: Path) -> None:
    """A view in which elements lie twice."""
    _, returned = run(tmp_path, Of(lambda x: (x + 0).unfold(1, 3, 1) * 2))
    assert (X.double().unfold(1, 3, 1) * 2).tolist() == returned.tolist()


def test_several_results_and_a_number(tmp_path: Path) -> None:
    watching, returned = run(tmp_path, Of(lambda x: x.max(-1).values * x.topk(2).values.T[0] + x.amax().item()))
    top = X.double().amax(-1)
    assert np.allclose((top * top + X.double().amax()).numpy(), returned, rtol=1e-15)
    assert {"out[0]", "out[1]"} == set(watching.results["aten.topk.default"][0])


@pytest.mark.parametrize(
    ("count", "outputs", "expected"), [(1, {"out": 1}, ["out"]), (2, {"out[0]": 1}, ["out[0]", "out[1]"]), (1, {"out[0]": 1}, ["out[0]"])]
)
def test_where_results_stand(count: int, outputs: dict[str, int], expected: list[str]) -> None:
    assert expected == positions_of(Operation(0, "aten.x.default", {}, {}, outputs, (), False, None, True), count)


def test_bytes_that_were_not_kept_are_named(tmp_path: Path) -> None:
    file = open_trace(record(tmp_path / "t.h5", Of(lambda x, w: x * w, w=random(6)), X, keep="statistics", weights="none")).files[0]
    recorded = Recorded(file)
    named = next(v for v in range(len(file.values)) if recorded.weight(v) is not None)
    with pytest.raises(NotRecorded, match="the bytes of w were not recorded"):
        contents(recorded, named)


def test_what_is_read_of_each_kind_of_dtype(tmp_path: Path) -> None:
    def kinds(x: Tensor) -> tuple[Tensor, ...]:
        return x.bfloat16(), x > 0, x.to(torch.int8), torch.complex(x, x)

    file = open_trace(record(tmp_path / "t.h5", Of(kinds), X)).files[0]
    recorded = Recorded(file)
    read = {position: contents(recorded, value) for position, value in recorded.edges(0, Role.OUTPUT).items()}
    assert ["float64", "bool", "int8", "complex128"] == [str(read[f"out[{i}]"].dtype) for i in range(4)]
    assert X.bfloat16().double().tolist() == read["out[0]"].tolist()


def test_a_literal_has_no_maker_and_a_view_makes_nothing(tmp_path: Path) -> None:
    file = open_trace(record(tmp_path / "t.h5", Of(lambda x: (x.T + 1) * torch.tensor(0.5)), X)).files[0]
    recorded = Recorded(file)
    multiply = next(c for c in range(len(file.calls)) if (file.text(int(file.calls.operator[c])) or "").startswith("aten.mul"))
    inputs = recorded.operation(multiply).inputs
    assert "aten.add.Tensor" == recorded.operation(int(recorded.producer[inputs["in[0]"]])).name
    assert -1 == int(recorded.producer[inputs["in[1]"]])
    given = recorded.edges(0, Role.INPUT)["in[0]"]
    assert recorded.place(given).memory[0] not in recorded.made_memories
    assert recorded.place(inputs["in[1]"]).memory[0] not in recorded.made_memories
    assert recorded.place(inputs["in[0]"]).memory[0] in recorded.made_memories


def test_what_is_lent_to_a_program_is_not_written_to(tmp_path: Path) -> None:
    """A reader keeps what it read: a write in place goes to a copy, through whatever view it is made."""
    lent: dict[int, Array] = {}

    def lending(watching: Watching) -> None:
        def incoming(value: int) -> Array:
            if value not in lent:
                lent[value] = np.array(contents(watching.run, value), order="K")
                lent[value].flags.writeable = False
            return lent[value]

        watching.incoming = incoming  # type: ignore[method-assign]

    def model(x: Tensor, table: Tensor, fresh: Tensor) -> Tensor:
        fresh.sub_(1.0)  # written to before anything reads it
        turned = table.t() @ x  # read through a view, then written to through another
        table[1:].mul_(3.0)
        table.add_(1.0)
        return turned + table.t() @ x + fresh.sum()

    watching, made = run(tmp_path, Of(model, table=random(4, 6), fresh=torch.ones(3)), change=lending)
    before = {value: array.copy() for value, array in lent.items()}
    table = random(4, 6).double()
    written = table.clone()
    written[1:] *= 3.0
    expected = table.t() @ X.double() + (written + 1.0).t() @ X.double()
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-12)
    for value, array in lent.items():
        np.testing.assert_array_equal(contents(watching.run, value), array)
        np.testing.assert_array_equal(before[value], array)
