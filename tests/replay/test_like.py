"""Recorded calls as a probe takes them: numbers of a trace, and a form from a fixed table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from layerdiff import Recorder
from layerdiff.arithmetic.orders.probing import ProbeError
from layerdiff.replay.like import like
from layerdiff.replay.probing import probe_like
from layerdiff.trace.reader import Trace, open_trace


class Summing(nn.Module):
    """One of each kind of sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 16)
        self.conv = nn.Conv1d(16, 8, 3, padding=1, groups=2)
        self.odd = nn.ConvTranspose1d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.up(x)
        z = self.conv(y.transpose(1, 2))
        return z.softmax(-1), y.sum(-1), y.mean(), y @ y.transpose(1, 2), self.odd(z), x.bfloat16().sum((0, 2), dtype=torch.float32)


def record_summing(path: Path) -> Path:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Summing()
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(torch.randn(2, 5, 48))
        model(torch.randn(3, 5, 48))
    torch.set_num_threads(before)
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return open_trace(record_summing(tmp_path_factory.mktemp("like") / "like.h5"))


@pytest.mark.parametrize(
    ("site", "form", "shapes", "terms"),
    [
        ("up", "addmm", ((16,), (10, 48), (48, 16)), 49),
        ("up/aten.addmm.default#0", "addmm", ((16,), (10, 48), (48, 16)), 49),
        ("conv", "convolution", ((2, 16, 5), (8, 8, 3)), 24),
        ("/aten._softmax.default#0", "softmax", ((2, 8, 5),), 5),
        ("/aten.sum.dim_IntList#0", "sum", ((2, 5, 16),), 16),
        ("/aten.mean.default#0", "mean", ((2, 5, 16),), 160),
        ("/aten.bmm.default#0", "bmm", ((2, 5, 16), (2, 16, 5)), 16),
    ],
)
def test_a_recorded_call(trace: Trace, site: str, form: str, shapes: tuple[tuple[int, ...], ...], terms: int) -> None:
    recording = like(trace, site)
    assert (form, shapes, "float32", 1, "cpu") == (recording.form, recording.shapes, recording.dtype, recording.threads, recording.device)
    found = probe_like(recording)
    assert (form, shapes, terms) == (found.operator, found.shapes, found.tree.leaves)


def test_strides_dtype_and_step(trace: Trace) -> None:
    assert (1, 48) == like(trace, "up").strides[2]
    assert ("bfloat16", (0, 2)) == (like(trace, "/aten.sum.dim_IntList#1").dtype, like(trace, "/aten.sum.dim_IntList#1").dims)
    assert (15, 48) == like(trace, "up", step=1).shapes[1]


def test_padding_leaves_terms_out_at_the_border(trace: Trace) -> None:
    found = probe_like(like(trace, "conv"))
    assert (80, 48) == (sum(one.outputs for one in found.trees) + found.outputs_elsewhere, found.trees[0].outputs)


WRONG = [
    ("up/aten.addmm.default#1", "Did you mean 'up/aten.addmm.default#0'?"),
    ("", "is a module with "),
    ("/aten.transpose.int#0", "and no sum that can be probed"),
    ("odd", "A transposed convolution"),
    ("nothing like it", "has no call at 'nothing like it'."),
]


@pytest.mark.parametrize(("site", "said"), WRONG)
def test_what_is_no_recorded_sum(trace: Trace, site: str, said: str) -> None:
    with pytest.raises(ProbeError) as refusal:
        like(trace, site)
    assert said in str(refusal.value)


def test_a_step_without_the_call(trace: Trace) -> None:
    with pytest.raises(ProbeError, match="no call at 'up' in step 7"):
        like(trace, "up", step=7)
