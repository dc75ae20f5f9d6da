"""A program that has the tokens before the requests, [positions, requests, hidden], against one that has the requests first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captures.llama import small_llama, tokens
from layerdiff import Recorder, compare_traces
from layerdiff.saved.comparison import Comparison
from tests.sequence_first import HIDDEN, LAYERS, SequenceFirst, opens_as_compared


def compared(
    folder: Path,
    fault: str = "",
    dtype: torch.dtype = torch.float32,
    *,
    batch: int = 2,
    operators: bool = True,
    padding: int = 0,
    turned: bool = False,
) -> Comparison:
    ids = tokens(batch=batch)
    counts = torch.ones_like(ids)
    counts[0, :padding] = 0
    length = ids.shape[1]
    hidden_at = torch.ones(length, length, dtype=torch.bool).triu(1) | (counts == 0)[:, None, None, :]
    model = small_llama(hidden=HIDDEN, layers=LAYERS)
    other = SequenceFirst(small_llama(hidden=HIDDEN, layers=LAYERS), fault).to(dtype)
    names = ("t.h5", "r.h5") if turned else ("r.h5", "t.h5")
    with torch.no_grad(), Recorder(folder / names[0], model, operators=operators):
        model(input_ids=ids, **({"attention_mask": counts} if padding else {}))
    with torch.no_grad(), Recorder(folder / names[1], other, operators=operators):
        other(ids, hidden_at)
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize(
    ("operators", "batch", "padding", "turned"), [(True, 2, 0, False), (True, 3, 5, True), (False, 3, 5, False), (False, 1, 0, True)]
)
def test_tokens_before_requests_are_no_fault(tmp_path: Path, operators: bool, batch: int, padding: int, turned: bool) -> None:
    comparison = compared(tmp_path, "", torch.bfloat16, batch=batch, operators=operators, padding=padding, turned=turned)
    assert [] == [(origin.site, origin.statement) for origin in comparison.origins]
    assert not comparison.defect
    assert ("layout-turned" in {notice.kind for notice in comparison.notices}) is (batch > 1)


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("epsilon", "layers.1.input_layernorm/aten.add.Tensor#0"),
        ("scale", "layers.1.self_attn.core_attention/aten.baddbmm.default#0"),
        ("split", "layers.1.self_attn.linear_qkv/aten.mm.default#0"),
        ("halves", "layers.1.mlp.linear_fc1/aten.mm.default#0"),
        ("residual", "layers.1/aten.add.Tensor#0"),
    ],
)
def test_a_fault_is_found_at_its_call(tmp_path: Path, fault: str, place: str) -> None:
    (origin,) = compared(tmp_path, fault, torch.bfloat16, padding=3).origins
    assert place == origin.site


def test_each_value_opens_as_it_was_compared(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "epsilon", padding=3)
    opens_as_compared(comparison)


@pytest.mark.parametrize(("fault", "place"), [("epsilon", "input_layernorm"), ("residual", "")])
def test_a_fault_is_found_in_its_module(tmp_path: Path, fault: str, place: str) -> None:
    (origin,) = compared(tmp_path, fault, operators=False).origins
    assert f"layers.1.{place}".rstrip(".") == origin.site
