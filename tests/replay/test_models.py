"""Every call of small transformers, run again: in float32 within its rounding, in float64 to the last digits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from layerdiff.replay.operators import is_random, run64
from tests.replay.recording import Call, record

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2**-7}
MODELS = ["llama", "qwen3_moe", "mixtral", "bert"]


def model(name: str, dtype: torch.dtype) -> Any:
    import transformers

    torch.manual_seed(0)
    if name == "llama":
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=2))
    elif name == "qwen3_moe":
        sparse = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        made = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SMALL, num_key_value_heads=2, **sparse))
    elif name == "mixtral":
        made = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4))
    else:
        made = transformers.BertModel(transformers.BertConfig(**SMALL))
    if dtype == torch.float64:
        made.config._experts_implementation = "eager"  # grouped products have no kernel in float64
    return made.to(dtype).eval()


def recorded(name: str, dtype: torch.dtype) -> list[Call]:
    """A prefill with padding on the left, and for decoders a step after it."""
    made = model(name, dtype)
    ids = torch.arange(14).reshape(2, 7)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside transformers
            if name == "bert":
                made(ids, attention_mask=mask)
                return
            first = made(ids, attention_mask=mask, use_cache=True)
            made(ids[:, :1], past_key_values=first.past_key_values, attention_mask=torch.cat([mask, mask[:, :1]], 1))

    return record(run)


def narrowest(call: Call) -> torch.dtype:
    floats = {result.dtype for result in call.results if isinstance(result, Tensor) and result.is_floating_point()} | call.floats
    return max(floats, key=TOLERANCE.__getitem__, default=torch.float64)


def assert_same(call: Call) -> None:
    made = run64(call.name, call.args)
    assert len(call.results) == len(made), call.name
    for recorded, again in zip(call.results, made, strict=True):
        if not isinstance(recorded, Tensor):
            assert recorded == again.item(), call.name
            continue
        assert recorded.shape == again.shape, call.name
        if not recorded.is_floating_point():
            assert torch.equal(recorded, again), call.name
            continue
        assert again.dtype == torch.float64, call.name
        finite = recorded.isfinite()
        assert torch.equal(recorded[~finite].to(torch.float64), again[~finite]), call.name
        allowed = TOLERANCE[narrowest(call)] * float(recorded[finite].abs().max()) if bool(finite.any()) else 0.0
        assert (again[finite] - recorded[finite].to(torch.float64)).abs().max().item() <= allowed if bool(finite.any()) else True, call.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_call_of_a_model(name: str, dtype: torch.dtype) -> None:
    calls = recorded(name, dtype)
    assert len(calls) > 100
    for call in calls:
        assert not is_random(call.name)
        if not call.name.startswith("aten.empty"):
            assert_same(call)
