"""What operators read and made, held against copies taken by a mode of the test's own, whatever they do to memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from layerdiff import Recorder
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.schema import CallKind, Role, Storage

Bits = tuple[str, tuple[int, ...], bytes]


def bits(tensor: Tensor) -> Bits:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return (
        str(tensor.dtype)[6:],
        tuple(tensor.shape),
        plain.reshape(-1).view(torch.uint8).clone().numpy().tobytes() if plain.numel() else b"",
    )


class Witness(TorchDispatchMode):
    """Copies the operands of every call before it, and the results after it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, list[Bits], list[Bits], bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = self.copies((args, kwargs))
        result = func(*args, **kwargs)
        unwritten = "empty" in str(func)
        self.calls.append((str(func), before, [] if unwritten else self.copies(result), unwritten))
        return result

    def copies(self, things: Any) -> list[Bits]:
        with _disable_current_modes(), torch.no_grad():
            return [bits(thing) for thing in tree_leaves(things) if isinstance(thing, Tensor)]


class Program(nn.Module):
    def __init__(self, run: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.run = run
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("cache", torch.arange(48.0).reshape(2, 4, 6))

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def operators(file: TraceFile) -> Iterator[int]:
    return (call for call in range(len(file.calls)) if int(file.calls.kind[call]) == CallKind.OPERATOR)


def recorded_bits(file: TraceFile, value: int) -> Bits:
    return file.dtype_name(value), file.shape(value), file.raw(value).tobytes()


def check(path: Path, run: Callable[[nn.Module, Tensor], Any], x: Tensor | None = None, **options: Any) -> tuple[TraceFile, nn.Module]:
    torch.manual_seed(0)
    program = Program(run)
    x = torch.randn(3, 4) if x is None else x
    witness = Witness()
    with torch.no_grad(), Recorder(path, program, operators=True, **options), witness:
        program(x)
    file = open_trace(path).files[0]
    assert file.complete, file.meta
    found = list(operators(file))
    assert [name for name, *_ in witness.calls] == [file.text(int(file.calls.operator[call])) for call in found]
    for call, (name, before, after, unwritten) in zip(found, witness.calls, strict=True):
        edges = list(file.edges_of(call))
        inputs = [edge.value for edge in edges if edge.role == Role.INPUT]
        assert len(before) == len(inputs), name
        for expected, value in zip(before, inputs, strict=True):
            assert expected == recorded_bits(file, value), f"operand of {name}"
        outputs = [edge.value for edge in edges if edge.role == Role.OUTPUT and edge.position.startswith("out")]
        if not unwritten:
            assert len(after) == len(outputs), name
            for expected, value in zip(after, outputs, strict=True):
                assert expected == recorded_bits(file, value), f"result of {name}"
    return file, program


def views(m: Any, x: Tensor) -> Any:
    y = x @ m.weight
    t = y.t()
    a = t[1:4, ::2] + 1
    b = y.expand(2, 3, 6) * 2
    c = y.unfold(1, 3, 1).sum(-1)
    d = y.view(torch.int16)[:, 1::2] + 1
    e = y.diagonal() + torch.as_strided(y, (3,), (7,), 1)
    return a.sum() + b.sum() + c.sum() + d.sum() + e.sum()


def slices_written(m: Any, x: Tensor) -> Any:
    m.cache[:, 1:2] = x[0, 0]
    first = m.cache * 1
    m.cache[1, :, 2:4].mul_(3)
    m.cache[0].t()[1] = 7
    m.cache.view(-1).view(torch.int32)[::5] = 9
    part = m.cache[:, 2]
    part += 1
    part.zero_()
    return first + m.cache + m.cache.transpose(0, 1).reshape(2, 4, 6)


def indices_written(m: Any, x: Tensor) -> Any:
    at = torch.tensor([2, 0])
    source = torch.randn(2, 2, 6)
    m.cache.index_copy_(1, at, source)
    one = m.cache + 0
    m.cache[:, torch.tensor([-1])] = 5.0
    m.cache[1].index_add_(0, torch.tensor([1, 1, 3]), torch.ones(3, 6))
    m.cache.index_fill_(-1, torch.tensor([5]), -2)
    m.cache[m.cache > 30] = 0
    m.cache.index_copy_(1, at, m.cache[:, 1:3].clone())
    m.cache[:, :, 1:3].index_copy_(0, torch.tensor([1, 0]), m.cache[:, :, 4:6].contiguous())
    m.cache[torch.tensor([0]), torch.tensor([1])] = 3
    m.cache.scatter_(1, torch.zeros(2, 1, 6, dtype=torch.long), 4)
    return one + m.cache


def outs_and_lists(m: Any, x: Tensor) -> Any:
    out = torch.empty(3, 6)
    torch.matmul(x, m.weight, out=out)
    buffer = torch.zeros(2, 3, 6)
    torch.add(out, 1, out=buffer[1])
    torch._foreach_add_([buffer[0], out], 2.0)
    low, high = torch.empty(0), torch.empty(0)
    torch.aminmax(out, dim=1, out=(low, high))
    pieces = torch.cat([low, high, buffer.view(-1)])
    torch.sort(out, dim=1, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))
    return pieces.sum() + buffer.sum() + torch.split(buffer, 1)[1].sum()


def odd_tensors(m: Any, x: Tensor) -> Any:
    z = torch.complex(x, x + 1)
    w = (z.conj() * 2).mH
    real = torch.view_as_real(z.conj().resolve_conj()) + z.conj().imag.sum()
    empty = torch.zeros(0, 3)[:, 1] + 1
    scalar = torch.tensor(3.0) * x.sum().item()
    index = torch.searchsorted(torch.arange(4.0), x)
    clamped = torch.clamp(x, None, torch.tensor(0.5))
    return w, real, empty, scalar, index, clamped, x.to(torch.bfloat16) @ x.bfloat16().t(), x > 0, x.flip(0), x.neg().abs()


def storage_moved(m: Any, x: Tensor) -> Any:
    y = torch.ones(4)
    y.resize_(2)
    y.resize_(8).fill_(2)
    z = torch.zeros(3)
    z.set_(y.untyped_storage(), 1, (2, 2), (1, 2))
    z.add_(5)
    x = x.clone()
    x.data = y
    x.data.mul_(2)
    m.cache.data[0] = 8
    return z.sum() + x.sum() + y + m.cache.sum()


def random_ones(m: Any, x: Tensor) -> Any:
    x = nn.functional.dropout(x, 0.5, training=True)
    return (
        x + torch.rand_like(x) + torch.empty(3, 4).normal_(generator=torch.Generator().manual_seed(1)) + torch.multinomial(x.abs() + 1, 4)
    )


PROGRAMS = {f.__name__: f for f in (views, slices_written, indices_written, outs_and_lists, odd_tensors, storage_moved, random_ones)}


@pytest.mark.parametrize("fingerprints", [True, False], ids=["fingerprints", "none"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_operands_and_results_are_what_they_were(tmp_path: Path, name: str, fingerprints: bool) -> None:
    check(tmp_path / "t.h5", PROGRAMS[name], fingerprints=fingerprints)


def test_inputs_that_are_parts_of_something(tmp_path: Path) -> None:
    whole = torch.randn(6, 4, 3)
    check(tmp_path / "a.h5", lambda m, x: (x + 1, x.sum(0), x.t() * 2), whole[::2, :, 1])
    check(tmp_path / "b.h5", lambda m, x: (x + 1, x[1] * 2, x.t().contiguous()), torch.randn(1, 1, 4).expand(5, 3, 4)[0])


def test_writes_that_torch_does_not_see(tmp_path: Path) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = x * 2
        z = y.t() + 1
        with _disable_current_modes():
            address = y.data_ptr()
        ctypes.memset(address, 0, 16)
        out = torch.empty(5)
        ctypes.memset(out.data_ptr(), 0x5A, 20)  # not what was there by chance
        return (y + 1).sum() + (y.t() + z).sum() + out.sum() + y[:1].sum()

    file, _ = check(tmp_path / "t.h5", run)
    calls = {file.site(call): call for call in operators(file)}
    made, read = (
        {e.position: e.value for e in file.edges_of(calls[site])} for site in ("/aten.empty.memory_format#0", "/aten.sum.default#2")
    )
    assert int(file.values.version[made["out"]]) < int(file.values.version[read["in[0]"]]), "written by nobody that was recorded"


def test_memory_that_was_never_written(tmp_path: Path) -> None:
    file, _ = check(tmp_path / "t.h5", lambda m, x: torch.empty(7).mul(1))
    made, read = ({e.position: e.value for e in file.edges_of(call)} for call in list(operators(file))[-2:])
    assert Storage.NONE == int(file.values.storage[made["out"]])
    assert file.text(int(file.values.reason[made["out"]])) == "memory that nothing was written to yet"
    assert int(file.values.memory[made["out"]]) == int(file.values.memory[read["in[0]"]])
    assert int(file.values.version[made["out"]]) == int(file.values.version[read["in[0]"]])


def test_the_bytes_of_a_cache_grow_with_what_is_written(tmp_path: Path) -> None:
    tokens = 64

    class Caching(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind
            self.keys = torch.zeros(1, 4, 256, 16)

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            new = x.view(1, 1, 4, 16).transpose(1, 2)
            if self.kind == "index":
                self.keys.index_copy_(2, at, new)
            else:
                i = int(at)
                self.keys[:, :, i : i + 1] = new
            return (self.keys @ new.transpose(-1, -2)).sum()

    for kind in ("index", "slice"):
        model = Caching(kind)
        with torch.no_grad(), Recorder(tmp_path / f"{kind}.h5", model, operators=True):
            for i in range(tokens):
                model(torch.randn(64) if i else torch.ones(64), torch.tensor([i]))
        file = open_trace(tmp_path / f"{kind}.h5").files[0]
        cache = model.keys.numel() * 4
        matmuls = [c for c in operators(file) if "bmm" in file.site(c)]
        last = {e.position: e.value for e in file.edges_of(matmuls[-1])}["in[0]"]
        np.testing.assert_array_equal(model.keys.numpy().reshape(4, 256, 16), file.read(last))
        of_cache = np.asarray(file.values.memory) == int(file.values.memory[last])
        assert cache <= int(file.values.nbytes[of_cache].sum()) <= cache + tokens * 64 * 4
        made_by_all = int(file.values.nbytes.sum())
        assert made_by_all < cache + tokens * (5 * 64 * 4 + 4 * 256 * 4 + 64)
