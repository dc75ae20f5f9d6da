"""Modules whose calls cannot be seen: compiled and scripted ones. They are named, and never disturbed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(compiled: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    if compiled == "wrapped":
        model[1] = torch.compile(model[1], backend="eager")
    elif compiled == "in place":
        model[1].compile(backend="eager")
    elif compiled == "its forward":
        model[1].forward = torch.compile(model[1].forward, backend="eager")
    elif compiled == "scripted":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model[1] = torch.jit.script(model[1])
    return model.eval()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("compiled", "seen", "hint"),
    [
        *((compiled, True, "TORCHDYNAMO_DISABLE=1") for compiled in ("wrapped", "in place", "its forward")),
        ("scripted", False, "PYTORCH_JIT=0"),
    ],
)
def test_compiled_and_scripted_modules(compiled: str, seen: bool, hint: str, named: bool, tmp_path: Path, recorded: Any) -> None:
    model = make(compiled)
    x = torch.ones(2, 4)
    with torch.no_grad():
        expected = model(x)
        frames = torch._dynamo.utils.counters["frames"]["ok"]
        with Recorder(tmp_path / "trace.h5", model if named else None):
            actual = [model(x), model(x)]
        after = model(x)
    assert all(torch.equal(expected, result) for result in (*actual, after))
    if named:  # a global hook makes dynamo compile again
        assert frames == torch._dynamo.utils.counters["frames"]["ok"]
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    assert ["", "0", "0.linear", *(["1"] if seen else [])] * 2 == trace.sites
    assert hint in trace.meta["skipped"]["1"]


def test_a_model_compiled_as_a_whole_is_recorded_from_outside(tmp_path: Path, recorded: Any) -> None:
    model = torch.compile(make(""), backend="eager")
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model):
        result = model(torch.ones(2, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert [""] == trace.sites
    assert (result.numpy() == trace.array(0, "out")).all()
    assert "TORCHDYNAMO_DISABLE=1" in trace.meta["skipped"][""]


@pytest.mark.parametrize("operators", [False, True])
def test_a_model_compiled_in_place_is_a_call_and_stays_compiled(operators: bool, tmp_path: Path, recorded: Any) -> None:
    model, graphs, x = make(""), [], torch.ones(2, 4)

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    model.compile(backend=backend)
    compiled = vars(model)["_compiled_call_impl"]
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, operators=operators):
        result = model(x)
    trace = recorded(tmp_path / "trace.h5")
    assert [""] == trace.sites
    assert (result.numpy() == trace.array(0, "out")).all()
    assert 1 == len(graphs)
    assert compiled is vars(model)["_compiled_call_impl"]


def test_what_the_compiler_left_alone_is_not_said_to_be_compiled(tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("")
    monkeypatch.setitem(vars(model), "_compiled_call_impl", model._call_impl)  # what compile() leaves with TORCHDYNAMO_DISABLE=1
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model):
        model(torch.ones(2, 4))
    assert ["", "0", "0.linear", "1", "1.linear"] == recorded(tmp_path / "trace.h5").sites


def test_a_compiled_caller_of_an_unnamed_model_has_no_calls(tmp_path: Path, recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = make("")
    model.compile(backend="eager")
    with torch.no_grad(), Recorder(tmp_path / "trace.h5"):
        model(torch.ones(2, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert 0 == len(trace)
    assert "TORCHDYNAMO_DISABLE=1" in trace.meta["empty_reason"]
    assert "a trace without calls" in capsys.readouterr().err


def test_an_unnamed_model_that_was_compiled_in_place_returns_where_operators_are_recorded(tmp_path: Path, recorded: Any) -> None:
    model, x = make(""), torch.ones(2, 4)
    model.compile(backend="eager")
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", operators=True):
        result = [model(x), model(x)]
    trace = recorded(tmp_path / "trace.h5")
    calls = [trace.find("", step=step) for step in range(2)]
    assert all((result[step].numpy() == trace.array(call, "out")).all() for step, call in enumerate(calls))
    assert not any("no submodule" in reason for reason in trace.meta["skipped"].values())


def test_operators_of_a_compiled_caller_are_those_of_the_model_and_that_is_said(tmp_path: Path, recorded: Any) -> None:
    model = make("")
    call = torch.compile(lambda x: model(x), backend="eager")
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, operators=True):
        call(torch.ones(2, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    assert {"0.linear", "1.linear"} <= set(trace.sites)
    assert ["ran uncompiled"] == [reason[:14] for reason in trace.meta["skipped"].values()]


def test_modules_that_nothing_registers_are_named(tmp_path: Path, recorded: Any) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(4, 4)]  # the classic mistake

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](x)

    model = Plain()
    with Recorder(tmp_path / "trace.h5"):
        model(torch.ones(1, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert [""] == trace.sites
    assert "no submodule" in trace.meta["skipped"]["(root) > Linear"]
