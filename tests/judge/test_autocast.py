"""Weights that autocast rounds: a cast that it keeps from step to step, or made before the recording, is the weight all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff.compare import compare_traces
from layerdiff.record.recorder import Recorder
from tests.judge.test_folded import defects, gains, scales
from tests.programs import IDS, Decoder, Record, decoder, kinds, seeded

OTHER = torch.randint(0, 31, (2, 6), generator=torch.Generator().manual_seed(4))
STEPS = [(IDS,), (OTHER,), (IDS,)]
Change = Callable[[Decoder], Any]


def fused(model: Decoder) -> None:
    for layer in model.layers:
        layer.self_attn.fused = True


def projection(model: Decoder) -> None:
    model.layers[1].self_attn.o_proj.weight.mul_(1.02)


def epsilon(model: Decoder) -> None:
    model.layers[1].input_layernorm.variance_epsilon = 1e-5


def epsilon_among_gains(model: Decoder) -> None:
    gains(model)
    epsilon(model)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.fixture(scope="module")
def plain(write: Record) -> Path:
    return write(decoder(), steps=STEPS)


@pytest.fixture(scope="module")
def cast(write: Record) -> Path:
    return write(decoder(), steps=STEPS, below=[autocast()])


@pytest.mark.parametrize("change", [lambda _: None, fused, gains, scales])
def test_casts_that_are_kept_from_step_to_step_are_the_weights(write: Record, plain: Path, change: Change) -> None:
    comparison = compare_traces(plain, write(decoder(change), steps=STEPS, below=[autocast()]))
    assert [] == defects(comparison)
    assert ("weight-differs" in kinds(comparison)) == (change in (gains, scales))


@pytest.mark.parametrize("change", [lambda _: None, fused])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_so_are_those_of_the_reference(write: Record, cast: Path, change: Change, dtype: torch.dtype) -> None:
    assert [] == defects(compare_traces(cast, write(decoder(change).to(dtype), steps=STEPS)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (projection, ("layers.1.self_attn.o_proj/aten.mm.default#0", "defect", "weight-differs")),
        (epsilon, ("layers.1.input_layernorm/aten.add.Tensor#0", "defect", "rmsnorm-eps")),
        (epsilon_among_gains, ("layers.1.input_layernorm/aten.add.Tensor#0", "defect", "rmsnorm-eps")),
    ],
)
def test_faults_are_named_as_without(write: Record, plain: Path, change: Change, expected: tuple[str, str, str]) -> None:
    assert [expected] == defects(compare_traces(plain, write(decoder(change), steps=STEPS, below=[autocast()])))


def warmed_up(path: Path, change: Change = lambda _: None, after: Change = lambda _: None, *, enabled: bool = True) -> Path:
    """A run that casts its weights before it is recorded. `after`: what is done to them then."""
    model = decoder(change)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled), torch.no_grad():
        model(IDS)
        after(model)
        with Recorder(path, model, operators=True):
            model(OTHER)
    return path


@pytest.mark.parametrize("change", [lambda _: None, fused, gains])
def test_casts_that_were_made_before_anything_was_recorded(tmp_path: Path, change: Change) -> None:
    reference, target = warmed_up(tmp_path / "r.h5", enabled=False), warmed_up(tmp_path / "t.h5", change)
    assert [] == defects(compare_traces(reference, target))
    assert [] == defects(compare_traces(target, warmed_up(tmp_path / "again.h5", change, enabled=False)))


def test_a_cast_of_what_the_weight_was_before_is_another_weight(tmp_path: Path) -> None:
    reference = warmed_up(tmp_path / "r.h5", projection, enabled=False)
    comparison = compare_traces(reference, warmed_up(tmp_path / "t.h5", after=projection))
    assert ["layers.1.self_attn.o_proj"] == [site.partition("/")[0] for site, _, _ in defects(comparison)]


class Rounded(nn.Module):
    """Computes in fp32, with weights that were rounded to bf16: beforehand, or in the first step."""

    def __init__(self, which: str, *, beforehand: bool, wide: bool) -> None:
        super().__init__()
        self.embed, self.linear, self.out = nn.Embedding(31, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.which, self.beforehand, self.wide, self.kept = which, beforehand, wide, {}

    def keep(self) -> None:
        weight = getattr(self, self.which).weight.detach().bfloat16()
        self.kept[self.which] = weight.float() if self.wide else weight

    def forward(self, ids: Tensor) -> Tensor:
        if self.which and not self.kept:
            self.keep()
        weights = {name: self.kept.get(name, getattr(self, name).weight) for name in ("embed", "linear")}
        x = functional.embedding(ids, weights["embed"]).float()
        return self.out(functional.linear(x, weights["linear"].float()))


@pytest.mark.parametrize("which", ["embed", "linear"])
@pytest.mark.parametrize("beforehand", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_weights_that_a_run_rounds_though_it_multiplies_in_more_are_others(write: Record, which: str, beforehand: bool, wide: bool) -> None:
    model = seeded(Rounded(which, beforehand=beforehand, wide=wide))
    if beforehand:
        model.keep()
    reference = write(seeded(Rounded("", beforehand=False, wide=False)), steps=STEPS)
    assert defects(compare_traces(reference, write(model, steps=STEPS)))
