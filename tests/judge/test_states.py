"""State that a body leaves in memory: judged where it is made, though only a later step reads it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from layerdiff.compare import compare_traces
from layerdiff.record.recorder import Recorder
from layerdiff.saved.comparison import Comparison
from tests.programs import random, record, seeded

Record = Callable[..., Path]
STEPS = [(random(2, 5, 16),), (random(2, 1, 16, seed=3),), (random(2, 1, 16, seed=4),)]


class Prefill(nn.Module):
    """Attention that reads its cache in decoding only: prefill attends to its own keys. Changes are to what prefill leaves behind."""

    keys: Tensor
    kept: Tensor

    def __init__(self, key: float = 1.0, values: bool = True, shift: int = 0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.key, self.values, self.shift, self.seen = key, values, shift, 0
        self.register_buffer("keys", torch.zeros(2, 8, 16))
        self.register_buffer("kept", torch.zeros(2, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        first = x.shape[1] > 1
        begin = self.seen + (self.shift if first else 0)
        self.keys[:, begin : begin + x.shape[1]] = k * self.key if first and self.key != 1.0 else k
        self.kept[:, self.seen : self.seen + x.shape[1]] = v if self.values or not first else k
        self.seen += x.shape[1]
        if first:
            k_read, v_read = k, v
        else:
            k_read, v_read = self.keys[:, : self.seen], self.kept[:, : self.seen]
        return cast(Tensor, self.out((q @ k_read.mT * 0.25).softmax(-1) @ v_read))


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Records a model into a file of its own."""
    folder, numbers = tmp_path_factory.mktemp("traces"), count()
    return lambda model, steps=STEPS: record(folder / f"{next(numbers)}.h5", model, steps=steps)


@pytest.fixture(scope="module")
def reference(write: Record) -> Path:
    return write(seeded(Prefill()))


def first_steps(comparison: Comparison) -> list[tuple[str, int]]:
    return [(origin.site, int(comparison.sites["step"][origin.row])) for origin in comparison.origins]


def test_harmless(write: Record, reference: Path) -> None:
    steps = [(x.bfloat16(),) for (x,) in STEPS]
    for target in (write(seeded(Prefill())), write(seeded(Prefill()).bfloat16(), steps)):
        comparison = compare_traces(reference, target)
        assert ([], False) == (first_steps(comparison), comparison.defect)


@pytest.mark.parametrize(
    ("change", "site"),
    [({"key": 1.1}, "/aten.mul.Tensor#0"), ({"values": False}, "/aten.copy_.default#1"), ({"shift": 1}, "/aten.copy_.default#0")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_only_decoding_reads(write: Record, reference: Path, change: dict[str, Any], site: str, dtype: torch.dtype) -> None:
    """Prefill returns the right thing and leaves the wrong one behind."""
    target = write(seeded(Prefill(**change)).to(dtype), [(x.to(dtype),) for (x,) in STEPS])
    assert [(site, 0)] == first_steps(compare_traces(reference, target))


def test_what_nobody_reads_is_not_looked_at(write: Record) -> None:
    paths = [write(seeded(Prefill(shift=shift)), STEPS[:1]) for shift in (0, 1)]
    assert [] == first_steps(compare_traces(*paths))


class Grown(nn.Module):
    """Attention over keys that grow by a token a step, in a list that it is handed; in one step its own key is written over the second."""

    def __init__(self, over: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.over = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False), over

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        cache[:] = [torch.cat([old, new], 1) for old, new in zip(cache, (k, v), strict=True)]
        if self.over and cache[0].shape[1] == 6:
            cache[0][:, 1:2] = k
        return cast(Tensor, self.out((q @ cache[0].mT * 0.25).softmax(-1) @ cache[1]))


class Handing(nn.Module):
    """A root that hands on the cache, too."""

    def __init__(self, over: bool) -> None:
        super().__init__()
        self.attention, self.cache = Grown(over), [torch.zeros(2, 0, 16)] * 2

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.cache = [one.to(x.dtype) for one in self.cache]
        return self.attention(x, self.cache), *self.cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_slot_that_is_written_over_is_named_once(write: Record, dtype: torch.dtype) -> None:
    """Not of the root that hands the cache on, nor in the steps that read it afterwards."""
    steps = [(x.to(dtype),) for (x,) in STEPS]
    comparison = compare_traces(write(seeded(Handing(False))), write(seeded(Handing(True)).to(dtype), steps))
    assert [("attention/aten.copy_.default#0", 1)] == first_steps(comparison)
    assert "the target adds copy_" == comparison.origins[0].statement


class Normalised(nn.Module):
    """Batch norm in training: its operator writes the running statistics, though its schema does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(16, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.inner(x)))


def trained(momentum: float = 0.1) -> Normalised:
    model = seeded(Normalised())
    model.norm.momentum = momentum
    return model.train()


def test_running_statistics_are_state(write: Record) -> None:
    steps = [(random(12, 16, seed=seed),) for seed in range(3)]
    reference = write(trained(), steps)
    same = compare_traces(reference, write(trained().bfloat16(), [(x.bfloat16(),) for (x,) in steps]))
    assert ([], False) == (first_steps(same), same.defect)
    other = compare_traces(reference, write(trained(momentum=0.2), steps))
    assert [("norm/aten.native_batch_norm.default#0", 0)] == first_steps(other)


class Averaged(nn.Module):
    """A running average, corrected for its start: a product by a number, added in place, and a division by a number."""

    average: Tensor

    def __init__(self, in_place: bool = True, by: float = 0.9) -> None:
        super().__init__()
        self.inner, self.calls, self.in_place, self.by = nn.Linear(16, 16), 0, in_place, by
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if self.in_place:
            self.average.mul_(self.by).add_(h.mean(0), alpha=1 - self.by)
        else:
            self.average = self.average * self.by + (1 - self.by) * h.mean(0)
        self.calls += 1
        return cast(Tensor, h - self.average / (1 - 0.9**self.calls))


def test_numbers_rounded_to_the_dtype_of_tensors(write: Record) -> None:
    """Torch's CPU rounds alpha, and what it multiplies, to bf16; a quotient beside a middle is in the middle in fp32."""
    steps = [(random(4, 16, seed=seed),) for seed in range(4)]
    comparison = compare_traces(write(seeded(Averaged()), steps), write(seeded(Averaged()).bfloat16(), [(x.bfloat16(),) for (x,) in steps]))
    assert ([], False) == (first_steps(comparison), comparison.defect)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_that_is_kept_in_another_form(write: Record, dtype: torch.dtype) -> None:
    """A buffer written in place against one made anew: each program reads its own, which rounding has moved; a fault moves more."""
    steps = [(random(4, 16, seed=seed),) for seed in range(4)]
    reference = write(seeded(Averaged()), steps)
    right, wrong = (write(seeded(Averaged(False, by)).to(dtype), [(x.to(dtype),) for (x,) in steps]) for by in (0.9, 0.8))
    assert [] == first_steps(compare_traces(reference, right))
    assert [] != first_steps(compare_traces(reference, wrong))


class Twice(nn.Module):
    """Two stages that may be called one after the other, each from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, made: Tensor) -> Tensor:
        return cast(Tensor, self.second(made)) + x


@pytest.mark.parametrize(("factor", "defect"), [(1.0, False), (1.01, True)])
def test_an_input_that_an_earlier_call_returned(tmp_path: Path, factor: float, defect: bool) -> None:
    """An encoder's states in bf16 are not the reference's, and nobody chose them; changed on the way, they are an input."""
    x, paths = random(4, 16), []
    for dtype in (torch.float32, torch.bfloat16):
        model = seeded(Twice()).to(dtype)
        paths.append(tmp_path / f"{dtype}.h5")
        with Recorder(paths[-1], model, operators=True), torch.no_grad():
            made = model.first(x.to(dtype))
            model(x.to(dtype), made if factor == 1.0 or dtype == torch.float32 else made * factor)
    assert defect == compare_traces(*paths).defect
