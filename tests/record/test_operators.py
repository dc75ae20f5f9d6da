"""Operators as they are recorded: calls, operands, versions, views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from layerdiff import Recorder
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.schema import CallKind, Storage


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 6)
        self.register_buffer("cache", torch.zeros(3, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.proj(x)
        self.cache[1:2].copy_(y[:1])
        return (self.cache * 2).t()


def recorded(path: Path, model: nn.Module, *args: torch.Tensor) -> TraceFile:
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(*args)
    return open_trace(path).files[0]


def operators(file: TraceFile) -> list[int]:
    return [c for c in range(len(file.calls)) if int(file.calls.kind[c]) == CallKind.OPERATOR]


def test_a_call_has_its_operands_and_its_place(tmp_path: Path) -> None:
    model, x = Block(), torch.randn(2, 4)
    file = recorded(tmp_path / "t.h5", model, x)
    by_site = {file.site(c): c for c in operators(file)}
    call = by_site["proj/aten.addmm.default#0"]
    edges = {edge.position: edge.value for edge in file.edges_of(call)}
    np.testing.assert_array_equal(model.proj.bias.detach().numpy(), file.read(edges["in[0]"]))
    np.testing.assert_array_equal(x.numpy(), file.read(edges["in[1]"]))
    np.testing.assert_array_equal(model.proj.weight.detach().t().numpy(), file.read(edges["in[2]"]))
    weight = int(file.values.base[edges["in[2]"]])
    assert ("proj.weight", Storage.VIEW) == (file.text(int(file.values.name[weight])), int(file.values.storage[edges["in[2]"]]))
    assert "proj" == file.site(int(file.calls.parent[call]))


def test_a_write_makes_a_version_and_names_what_it_wrote(tmp_path: Path) -> None:
    model = Block()
    file = recorded(tmp_path / "t.h5", model, torch.randn(2, 4))
    by_site = {file.site(c): c for c in operators(file)}
    copy, use = by_site["/aten.copy_.default#0"], by_site["/aten.mul.Tensor#0"]
    detail = file.json(int(file.calls.detail[copy]))
    assert ["in[0]"] == detail["writes"]
    before, after = ({e.position: e.value for e in file.edges_of(copy)}[p] for p in ("in[0]", "out"))
    assert int(file.values.memory[before]) == int(file.values.memory[after])
    assert int(file.values.version[before]) + 1 == int(file.values.version[after])
    assert 6 == int(file.values.memory_offset[after])
    np.testing.assert_array_equal(np.zeros((1, 6), np.float32), file.read(before))
    used = {e.position: e.value for e in file.edges_of(use)}["in[0]"]
    np.testing.assert_array_equal(model.cache.numpy(), file.read(used))


def test_the_source_line_is_the_model_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    file = recorded(tmp_path / "t.h5", Block(), torch.randn(2, 4))
    line = file.text(int(file.calls.stack[next(c for c in operators(file) if "copy_" in file.site(c))]))
    number = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.cache[1:2].copy_" in text)
    assert f"record/test_operators.py:{number} forward" == line  # from the working directory on: not where that lies
