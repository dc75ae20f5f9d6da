"""Where a difference begins that another order of a sum may explain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from captures.kernels import Kernel
from layerdiff.compare import compare_traces
from layerdiff.rows.sites.summed import summed_otherwise
from layerdiff.text.summary import summary
from tests.programs import IDS, decoder, record

CAPTURES = Path(__file__).parents[2] / "captures"


def reversed_sum(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    x, w = args
    return func(x.flip(-1), w.flip(0))


def rounded(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    return (result.double() * (1 + 2.0**-24)).to(result.dtype)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    ("operator", "change", "found"),
    [("aten.mm.default", reversed_sum, "aten.mm.default#0"), ("aten.silu.default", rounded, None)],
    ids=["sum", "function"],
)
def test_a_sum_is_found_where_it_begins(tmp_path: Path, layer: int, operator: str, change: Callable[..., Any], found: str | None) -> None:
    """What comes after it differs too, and so do the modules around it; a function of one element is no sum."""
    reference = record(tmp_path / "r.h5", decoder(), IDS)
    model = decoder()
    inside = model.layers[layer].mlp.up_proj if found else model.layers[layer].mlp
    comparison = compare_traces(reference, record(tmp_path / "t.h5", model, IDS, below=[Kernel(inside, (operator,), change)]))
    assert not comparison.defect
    assert (None if found is None else (f"layers.{layer}.mlp.up_proj/{found}", 0)) == summed_otherwise(comparison)


def test_a_sum_in_parts_is_its_modules() -> None:
    folder = CAPTURES / "split_k"
    comparison = compare_traces(folder / "reference.h5", folder / "target.h5")
    assert ("layers.1.mlp.down_proj", 0) == summed_otherwise(comparison)
    command = f"order    layerdiff order {folder}/reference.h5 {folder}/target.h5 layers.1.mlp.down_proj"
    assert command == [line.plain for line in summary(comparison)][-1]


def test_nothing_is_found_between_two_dtypes(tmp_path: Path) -> None:
    """Whatever a run in bf16 makes of the same tokens differs, and no order of a sum can say why."""
    reference = record(tmp_path / "r.h5", decoder(), IDS)
    comparison = compare_traces(reference, record(tmp_path / "t.h5", decoder().bfloat16(), IDS))
    assert not comparison.defect
    assert summed_otherwise(comparison) is None


def test_nothing_is_found_in_equal_runs_nor_without_operators(tmp_path: Path) -> None:
    trace = record(tmp_path / "r.h5", decoder(), IDS)
    assert summed_otherwise(compare_traces(trace, trace)) is None
    folder = CAPTURES / "clean_bf16"
    assert summed_otherwise(compare_traces(folder / "reference.h5", folder / "target.h5")) is None
