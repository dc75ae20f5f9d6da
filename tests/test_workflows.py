"""Ways to run one model that users have: each says no more than it should, and hides no fault. From the recording to what is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Comparison, Recorder, compare_traces
from tests.programs import IDS, Decoder, decoder, kinds, origins, random, seeded


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu())


def convolved(path: Path, dtype: torch.dtype, memory_format: torch.memory_format, eps: float = 1e-5) -> Path:
    model, x = seeded(Convolutions()).to(dtype, memory_format=memory_format), random(2, 3, 8, 8).to(dtype, memory_format=memory_format)
    model.norm.eps = eps
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(x)
    return path


def test_weights_that_lie_channels_last_and_are_rounded_are_no_others(tmp_path: Path) -> None:
    def compared(eps: float) -> Comparison:
        target = convolved(tmp_path / f"{eps}.h5", torch.bfloat16, torch.channels_last, eps)
        return compare_traces(reference, target)

    reference = convolved(tmp_path / "r.h5", torch.float32, torch.contiguous_format)
    assert [] == origins(compared(1e-5))
    assert ["norm/aten.native_group_norm.default#0"] == [origin.site for origin in compared(1e-3).origins]


def compiled(model: Decoder) -> Callable[[], object]:
    for layer in model.layers:
        layer.compile(backend="eager")
    return lambda: model(IDS)


def in_a_thread(model: Decoder) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(IDS)

    def start() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return start


@pytest.mark.parametrize(("way", "place"), [(compiled, "layers.1"), (in_a_thread, "layers.1.input_layernorm")])
def test_a_run_whose_operators_are_not_seen_is_judged_by_thresholds(
    way: Callable[[Decoder], Callable[[], object]], place: str, tmp_path: Path
) -> None:
    def recorded(name: str, eps: float, way: Callable[[Decoder], Callable[[], object]]) -> Path:
        model = decoder()
        model.layers[1].input_layernorm.variance_epsilon = eps
        run = way(model)
        with torch.no_grad(), Recorder(tmp_path / name, model, operators=True):
            run()
        return tmp_path / name

    seen, unseen = recorded("r.h5", 1e-6, lambda model: lambda: model(IDS)), recorded("t.h5", 1e-6, way)
    clean = compare_traces(seen, unseen)
    assert ([], {"recording-skipped"}) == (origins(clean), kinds(clean))
    faulty = recorded("f.h5", 1e-2, way)
    for reference in (seen, unseen):
        assert [place] == [origin.site for origin in compare_traces(reference, faulty).origins]
