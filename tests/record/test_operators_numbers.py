"""Statistics of operators without bytes: of what was read and made at that time, however it lay, and whoever wrote to it since."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from layerdiff import Recorder
from layerdiff.trace.reader import open_trace
from layerdiff.trace.schema import CallKind, Role

Numbers = tuple[float, float, float, float]


def numbers_of(tensor: Tensor) -> Numbers:
    wide = tensor.detach().double()
    return wide.min().item(), wide.max().item(), wide.mean().item(), wide.square().mean().sqrt().item()


class Witness(TorchDispatchMode):
    """The numbers of every operand before a call, and of every result after it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[list[Numbers], list[Numbers]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.numbers((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self.seen.append((before, self.numbers(result)))
        return result

    def numbers(self, things: Any) -> list[Numbers]:
        with _disable_current_modes(), torch.no_grad():
            return [numbers_of(thing) for thing in tree_leaves(things) if isinstance(thing, Tensor)]


class Program(nn.Module):
    def __init__(self, run: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.run = run
        self.weight = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def turned(module: nn.Module, x: Tensor) -> Tensor:
    y = x.t().contiguous() @ x
    return y.t() + y.view(-1).unflatten(0, (6, 6)) + y[:3].sum() + y.t()[1:].mean() + y.expand(2, 6, 6)[1]


def of_weights(module: nn.Module, x: Tensor) -> Tensor:
    return x @ module.weight.t() + (module.weight @ module.weight.t()).sum() + module.weight.view(6, 5).sum()


def written_between(module: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    first = y.t() + 1
    y[0].add_(10.0)
    second = y.t() + 1
    y.t().mul_(3.0)
    return first + second + y.view(6, 4)[:, :4].sum() + y.t()


def written_unseen(module: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    first = y.t() + 1
    values = [float(-i) for i in range(y.numel())]
    ctypes.memmove(y.data_ptr(), (ctypes.c_float * len(values))(*values), 4 * len(values))
    return first + y.t()


@pytest.mark.parametrize("fingerprints", [False, True])
@pytest.mark.parametrize("run", [turned, of_weights, written_between, written_unseen])
def test_every_operand_and_result_has_the_numbers_that_it_had(tmp_path: Path, run: Any, fingerprints: bool) -> None:
    torch.manual_seed(0)
    witness, model = Witness(), Program(run)
    path = tmp_path / "t.h5"
    with torch.no_grad(), witness, Recorder(path, model, operators=True, keep="statistics", weights="none", fingerprints=fingerprints):
        model(torch.randn(4, 6))
    file = open_trace(path).files[0]
    calls = [call for call in range(len(file.calls)) if file.calls.kind[call] == CallKind.OPERATOR]
    assert len(witness.seen) == len(calls)
    for call, (operands, results) in zip(calls, witness.seen, strict=True):
        name = file.text(int(file.calls.operator[call]))
        for role, expected in ((Role.INPUT, operands), (Role.OUTPUT, results)):
            values = [edge.value for edge in file.edges_of(call) if edge.role == role]
            if role == Role.OUTPUT and len(values) > len(expected):
                values = values[: len(expected)]  # what was written to besides
            assert len(expected) == len(values), name
            for value, numbers in zip(values, expected, strict=True):
                found = file.statistics(value)
                assert found is not None
                assert numbers == pytest.approx((found.minimum, found.maximum, found.mean, found.rms), rel=1e-5, abs=1e-6), name
                assert (file.fingerprint(value) is not None) == fingerprints


def test_fingerprints_are_those_of_the_elements_in_their_order(tmp_path: Path) -> None:
    x = torch.randn(4, 6)

    def run(module: nn.Module, given: Tensor) -> Tensor:
        y = given * 1
        return y.view(6, 4).sum() + y.t().sum() + y.sum()

    path = tmp_path / "t.h5"
    with torch.no_grad(), Recorder(path, Program(run), operators=True, keep="statistics"):
        model = Program(run)
        model(x)
    file = open_trace(path).files[0]
    prints = {}
    for call in range(len(file.calls)):
        if file.calls.kind[call] == CallKind.OPERATOR and file.text(int(file.calls.operator[call])) == "aten.sum.default":
            value = next(edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT)
            prints[file.shape(value), len(prints)] = file.fingerprint(value)
    as_is, turned_print, plain = prints[(6, 4), 0], prints[(6, 4), 1], prints[(4, 6), 2]
    assert as_is == plain
    assert turned_print != plain
