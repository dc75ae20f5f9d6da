"""What goes wrong over ranks: found at its site, named where its cause has a name, and nothing is found elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captures.layouts import Case, Fault
from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison

ATTENTION, MLP = "layers.0.self_attn", "layers.0.mlp"
Found = tuple[str, str | None]
"""Site and cause."""

FAULTS: dict[str, tuple[Case, set[Found]]] = {
    "sum_missing": (Case(), {(f"{ATTENTION}.o_proj", "allreduce-missing")}),
    "inner_sum_missing": (Case(), {(f"{MLP}.down_proj", "allreduce-missing")}),
    "sum_twice": (Case(), {(f"{ATTENTION}.o_proj", "allreduce-duplicated")}),
    "bias_every_rank": (Case(bias=True), {(f"{ATTENTION}.o_proj", "bias-added-per-rank")}),
    "inner_bias_every_rank": (Case(bias=True), {(f"{MLP}.down_proj", "bias-added-per-rank")}),
    "residual_every_rank": (Case(), {("layers.0", "residual-added-per-rank")}),
    "fused_one_block": (Case(separate=True, kv_heads=4), {(f"{ATTENTION}.{name}_proj", "tp-fused-shard") for name in "qkv"}),
    "duplicate_shard": (Case(), {(f"{ATTENTION}.qkv_proj", "tp-duplicate-shard")}),
    "vocabulary_padding": (Case(padded_head=True), {("", "parts-shifted")}),
    "local_norm": (Case(query_norm=True), {(f"{ATTENTION}.q_norm", "tp-norm-local-statistic")}),
    "gather_order": (Case("sequence"), {(f"{ATTENTION}.qkv_proj", "sequence-order")}),
    "contiguous_positions": (Case("context"), {(ATTENTION, None)}),
    "expert_offset": (Case("experts", experts=8), {(f"{MLP}.experts", None)}),
}
ALONE: dict[str, tuple[str, Case, str]] = {
    "kernel": ("kernel_off", Case(), f"{MLP}.gate_up_proj"),
    "kernel, whole model": ("kernel_off", Case("context"), f"{MLP}.gate_up_proj"),
}


def origins(comparison: Comparison) -> set[Found]:
    return {(origin.site, origin.cause) for origin in comparison.origins}


@pytest.mark.parametrize(("size", "dtype"), [(2, "float32"), (4, "float32"), (4, "bfloat16")])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_all_ranks_is_found(name: str, size: int, dtype: str, processes: Processes, tmp_path: Path) -> None:
    case, found = FAULTS[name]
    case = replace(case, dtype=dtype, faults=(Fault(name),))
    comparison = compare_traces(*record_ranks(tmp_path, case, size, processes))
    assert found == origins(comparison)
    assert comparison.defect


@pytest.mark.parametrize("rank", [1, 0])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ALONE)
def test_a_rank_that_is_off_alone_is_named(name: str, size: int, rank: int, processes: Processes, tmp_path: Path) -> None:
    fault, case, site = ALONE[name]
    case = replace(case, faults=(Fault(fault, rank=rank),))
    comparison = compare_traces(*record_ranks(tmp_path, case, size, processes))
    assert [(site, rank)] == [(origin.site, origin.rank) for origin in comparison.origins]


@pytest.mark.parametrize("size", [2, 4])
def test_a_second_fault_on_one_rank_is_found_beside_one_of_all(size: int, processes: Processes, tmp_path: Path) -> None:
    faults = (Fault("sum_missing", layer=0), Fault("kernel_off", layer=1, rank=size - 1))
    comparison = compare_traces(*record_ranks(tmp_path, Case(faults=faults), size, processes, operators=True))
    found = [(origin.site, origin.cause, origin.rank) for origin in comparison.origins]
    assert (f"{ATTENTION}.o_proj", "allreduce-missing", None) in found
    assert ("layers.1.mlp.gate_up_proj/aten.mm.default#0", "k-range-missing", size - 1) in found
