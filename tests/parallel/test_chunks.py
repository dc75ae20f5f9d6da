"""Interleaved pipelines whose chunks are roots of their own: their layers get the numbers of the whole model, by their weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind
from tests.parallel.chunks import LAYERS, Halves, record, record_halves, record_rank


def compared(
    processes: Processes,
    folder: Path,
    wrong: str,
    operators: bool,
    inside: bool = False,
    size: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Comparison:
    processes.run(record_rank, folder / "target", wrong, operators, dtype, size=size)
    return compare_traces(record(folder / "reference.h5", operators, inside), folder / "target")


@pytest.mark.parametrize(("operators", "inside", "size"), [(False, False, 2), (True, False, 4), (False, True, 4)])
def test_every_layer_of_every_chunk_pairs(operators: bool, inside: bool, size: int, processes: Processes, tmp_path: Path) -> None:
    comparison = compared(processes, tmp_path, "", operators, inside, size)
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    sites, texts = comparison.sites, comparison.texts
    paired = (sites["reference_call"] >= 0) & (sites["target_call"] >= 0) & (sites["kind"] == CallKind.MODULE)
    layers = [(texts[int(site)], int(step)) for site, step in zip(sites["site"][paired], sites["step"][paired], strict=True)]
    head = "model." if inside else ""
    assert {(f"{head}layers.{number}", step) for number in range(LAYERS) for step in (0, 1)} <= set(layers)


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize(("wrong", "found"), [("epsilon", "layers.6.norm")])
def test_a_fault_of_a_later_chunk_is_found_at_its_layer(
    wrong: str, found: str, operators: bool, processes: Processes, tmp_path: Path
) -> None:
    comparison = compared(processes, tmp_path, wrong, operators)
    assert {found} == {origin.site.split("/")[0] for origin in comparison.origins}


HOLDS = {
    "offset": ((4,), 0, 2),
    "4 as 2": ((4, 5), 0, 2),
    "2 as 6": ((2, 3), 1, 1),
    "6 as 0": ((6, 7), 1, 3),
}
"""The layers that are on no rank, and the rank that has others, of two and of four."""


@pytest.mark.parametrize(("operators", "inside", "dtype", "size"), [(False, False, torch.bfloat16, 4), (True, True, torch.float32, 2)])
@pytest.mark.parametrize("wrong", HOLDS)
def test_a_chunk_that_holds_the_layers_of_another_is_said(
    wrong: str, size: int, operators: bool, inside: bool, dtype: torch.dtype, processes: Processes, tmp_path: Path
) -> None:
    comparison = compared(processes, tmp_path, wrong, operators, inside, size, dtype)
    layers, *ranks = HOLDS[wrong]
    head = "model." if inside else ""
    assert [(f"{head}layers.{layers[0]}", "pp-layer-offset", ranks[size // 4])] == [
        (origin.site, origin.cause, origin.rank) for origin in comparison.origins
    ]
    origin = comparison.origins[0]
    assert list(layers) == origin.evidence["layers"]
    assert f"on what the reference gives {head}layers.{layers[0]}" in origin.statement
    assert origin.evidence["residual"] < 0.02


def test_roots_that_the_reference_has_too_are_no_chunks(processes: Processes, tmp_path: Path) -> None:
    processes.run(record_halves, tmp_path / "target", size=2)
    comparison = compare_traces(Halves().record(tmp_path / "reference.h5"), tmp_path / "target")
    assert not comparison.defect
    modules = comparison.sites["kind"] == CallKind.MODULE
    assert (comparison.sites["reference_call"][modules] >= 0).all() and (comparison.sites["target_call"][modules] >= 0).all()
