"""Models that libraries cut over ranks: transformers' own plans, and those of torch.distributed.tensor.parallel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.parallel import real_models
from tests.parallel.expected import ALONE, REPLICATED, Parts, Rule, along, expected, placements

DTYPES = [torch.float32, torch.bfloat16]
BLOCKS = "2 blocks, each contiguous"

BY_TP_PLAN: list[Rule] = [
    ("model.embed_tokens", "weight", along(0)),
    ("lm_head", "weight", along(0)),
    ("*.self_attn", "out[[]1]", along(1)),  # probabilities, by head
    ("*.self_attn.[qkv]_proj", "weight", along(0)),
    ("*.self_attn.[qkv]_proj", "out", along(2)),
    ("*.self_attn.[qk]_norm", "weight", REPLICATED),
    ("*.self_attn.[qk]_norm", "*", along(2)),  # heads
    ("*.o_proj", "in[[]0]", along(2)),
    ("*.o_proj", "weight", along(1)),
    ("*.mlp.gate_proj", "weight", along(0)),
    ("*.mlp.up_proj", "weight", along(0)),
    ("*.mlp.gate_proj", "out", along(2)),
    ("*.mlp.up_proj", "out", along(2)),
    ("*.mlp.act_fn", "*", along(2)),
    ("*.mlp.down_proj", "in[[]0]", along(2)),
    ("*.mlp.down_proj", "weight", along(1)),
    ("*.experts", "gate_up_proj", along(1, BLOCKS)),
    ("*.experts", "down_proj", along(2)),
    ("*.experts.act_fn", "*", along(1)),
    ("*", "*", REPLICATED),
]
BY_TORCH: list[Rule] = [
    ("embed", "weight", along(0)),
    ("head", "weight", along(0)),
    ("head", "bias", along(0)),
    ("*.up_proj", "weight", along(0)),
    ("*.up_proj", "bias", along(0)),
    ("*.up_proj", "out", along(2)),
    ("*.act", "*", along(2)),
    ("*.down_proj", "in[[]0]", along(2)),
    ("*.down_proj", "weight", along(1)),
]
BETWEEN: list[Rule] = [
    ("*", "weight", REPLICATED),
    ("*", "bias", REPLICATED),
    ("embed", "out", along(1)),
    ("blocks.*.up_proj", "in*", REPLICATED),
    ("blocks.*", "*", along(1)),
]


def nothing_is_found(comparison: Comparison) -> None:
    assert [] == [(origin.site, origin.cause) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]


def routed_otherwise(comparison: Comparison) -> bool:
    """Whether some choice of an expert is another one in the target, by rounding."""
    pairs, texts = comparison.pairs, comparison.texts
    whole = [(texts[int(name)] or "").startswith("int") for name in pairs["reference_dtype"]]
    return any(pairs["equal"][pair] == 0 for pair in range(len(whole)) if whole[pair])


@pytest.mark.parametrize(("operators", "factor"), [(False, 1.0), (True, 1.0), (False, 3.0)])
def test_a_padded_batch_with_a_mask_of_another_kind(operators: bool, factor: float, processes: Processes, tmp_path: Path) -> None:
    """Eager attention is given numbers that are added, the ranks' kernel which keys are seen; of padding they make other things."""
    reference = real_models.save_and_record("llama", tmp_path, torch.float32, operators, **real_models.padded())
    processes.run(real_models.record_padded, tmp_path, operators, factor, size=2)
    found = [(origin.site, origin.cause) for origin in compare_traces(reference, tmp_path / "target").origins]
    assert found == ([] if factor == 1.0 else [("model.layers.1.self_attn", None)])


@pytest.mark.parametrize(("size", "dtype"), [(2, DTYPES[0]), (4, DTYPES[1])], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_by_the_plan_of_transformers(family: str, dtype: torch.dtype, size: int, processes: Processes, tmp_path: Path) -> None:
    reference = real_models.save_and_record(family, tmp_path, dtype)
    processes.run(real_models.record_by_tp_plan, tmp_path, size=size)
    comparison = compare_traces(reference, tmp_path / "target")
    nothing_is_found(comparison)
    found = placements(comparison)
    if routed_otherwise(comparison):  # then experts are given other tokens
        found = {(site, value): where for (site, value), where in found.items() if not site.endswith("experts.act_fn")}
    assert {key: expected(BY_TP_PLAN, *key) for key in found} == found
    assert len(found) > 70


def test_whole_experts_on_each_rank_by_transformers(processes: Processes, tmp_path: Path) -> None:
    """Each rank's grouped products make the rows of its own experts first, and what is masked after them."""
    reference = real_models.save_and_record("qwen3_moe", tmp_path, torch.float32)
    processes.run(real_models.record_by_tp_plan, tmp_path, {"tp_size": 2, "ep_size": 2}, size=2)
    comparison = compare_traces(reference, tmp_path / "target")
    nothing_is_found(comparison)
    found = placements(comparison)["model.layers.0.mlp.experts.act_fn", "out"]
    assert isinstance(found, Parts)
    assert 2 * 12 * 2 == sum(end - begin for runs in found.runs for begin, end in runs if begin < 0)  # of each token's two


def test_stages_by_transformers(processes: Processes, tmp_path: Path) -> None:
    """An identity stands on each stage for every layer, and for the last norm, that another stage has."""
    reference = real_models.save_and_record("llama", tmp_path, torch.float32)
    processes.run(real_models.record_by_tp_plan, tmp_path, {"pp_size": 2}, size=2)
    comparison = compare_traces(reference, tmp_path / "target")
    nothing_is_found(comparison)
    found = placements(comparison)
    assert {ALONE} == {found[site, "out"] for site in ("model.layers.0", "model.layers.1", "model.norm")}


@pytest.mark.parametrize(("size", "dtype"), [(2, DTYPES[1]), (4, DTYPES[0])], ids=str)
@pytest.mark.parametrize("sequence", [False, True])
def test_by_a_plan_of_torch(sequence: bool, dtype: torch.dtype, size: int, processes: Processes, tmp_path: Path) -> None:
    reference = real_models.record_stack(tmp_path, dtype)
    processes.run(real_models.record_by_torch_plan, tmp_path, dtype, sequence, size=size)
    comparison = compare_traces(reference, tmp_path / "target")
    nothing_is_found(comparison)
    rules = [*BY_TORCH, *(BETWEEN if sequence else []), ("*", "*", REPLICATED)]
    found = placements(comparison)
    assert {key: expected(rules, *key) for key in found} == found
    assert len(found) > 35
