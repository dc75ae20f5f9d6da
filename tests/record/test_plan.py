from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerdiff import Recorder
from layerdiff.record.plan import Plan, Planner
from layerdiff.trace.schema import CALLS, EDGES, VALUES
from tests.models import MiniLlama, tokens


def plan_forward(model: nn.Module, x: torch.Tensor, path: Path | None = None, **options: Any) -> Plan:
    with Planner(path, model, **options) as planner:
        model(x)
    return planner.plan()


@pytest.mark.parametrize("options", [{}, {"modules": "*.mlp*"}, {"keep": "statistics"}, {"weights": "all"}, {"keep": "full:5KB"}])
def test_the_plan_is_what_the_recording_holds(options: dict[str, Any], tmp_path: Path, recorded: Any) -> None:
    model = MiniLlama()
    with torch.no_grad():
        plan = plan_forward(model, tokens(), tmp_path / "trace.h5", **options)
        assert [] == list(tmp_path.iterdir())
        with Recorder(tmp_path / "trace.h5", model, **options):
            model(tokens())
    trace = recorded(tmp_path / "trace.h5")
    values = trace.file.values
    assert (1, len(trace), len(values.kind)) == (plan.steps, plan.calls, plan.values)
    assert (int(values.nbytes.sum()), int((values.nbytes > 0).sum())) == (plan.value_bytes, plan.kept)
    widths = [sum(column.itemsize for column in table.values()) for table in (CALLS, VALUES, EDGES)]
    columns = len(trace) * widths[0] + len(values.kind) * widths[1] + len(trace.file.edges.call) * widths[2]
    assert columns < plan.index_bytes < 2 * columns  # texts come on top
    assert plan.fits and plan.free_bytes > 0  # type: ignore[operator]
    for module in model.modules():
        assert not module._forward_hooks


def test_a_plan_needs_no_memory_on_the_meta_device() -> None:
    real = plan_forward(MiniLlama(layers=1), tokens())
    assert real == plan_forward(MiniLlama(layers=1).to("meta"), tokens().to("meta"))
    assert real.value_bytes > 0


def test_a_planner_counts_every_forward() -> None:
    model = MiniLlama()
    with torch.no_grad(), Planner(model=model, steps="1:") as planner:
        for _ in range(3):
            model(tokens())
    plan = planner.plan()
    with torch.no_grad():
        one = plan_forward(model, tokens())
    assert (3, 2 * one.calls) == (plan.steps, plan.calls)
    assert plan.free_bytes is None and plan.fits is None


def test_an_option_that_the_recorder_does_not_have_is_refused_as_the_recorder_refuses_it() -> None:
    for make in (Planner, Recorder):
        with pytest.raises(TypeError, match="kept"):
            make("trace.h5", kept="full")  # type: ignore[call-arg]
