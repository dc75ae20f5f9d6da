"""By modules: tokens that both runs' masks hide are left out, all but their NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces
from layerdiff.judge.pairs.padded_rows import Hidden

IDS = torch.arange(24).reshape(2, 12) % 7
MASK = torch.ones(2, 12, dtype=torch.long)
MASK[0, :5] = 0


class Mixer(nn.Module):
    """Hands on a mean of what came before; of tokens that are hidden what `hidden` makes of it."""

    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.heads_first, self.hidden, self.fault = heads_first, 1.0, 0.0

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        seen = x * kept[..., None]
        mean = seen.cumsum(1) / kept.cumsum(1).clamp(min=1)[..., None]
        mean[1, 3] += self.fault
        mean = torch.where(kept[..., None].bool(), mean, self.hidden * x)
        if self.heads_first:
            return self.proj(mean.view(2, 12, -1, 4).transpose(1, 2)).transpose(1, 2).flatten(2)  # type: ignore[no-any-return]
        return self.proj(mean.view(24, -1)).view(2, 12, -1)  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 8 if heads_first else 4
        self.embed, self.mixer, self.norm = nn.Embedding(7, width), Mixer(heads_first), nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        return self.norm(x + self.mixer(x, attention_mask))  # type: ignore[no-any-return]


def origins(
    tmp_path: Path, heads_first: bool, hidden: float, fault: float = 0.0, mask: Tensor = MASK, keep: str = "full"
) -> list[tuple[str, str]]:
    for name in ("r", "t"):
        model = Model(heads_first)
        if name == "t":
            model.mixer.hidden, model.mixer.fault = hidden, fault
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model, keep=keep):
            model(input_ids=IDS, attention_mask=mask)
    return [(origin.site, origin.verdict.label) for origin in compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins]


@pytest.mark.parametrize("heads_first", [False, True])
def test_what_is_made_of_hidden_tokens_is_no_difference(heads_first: bool, tmp_path: Path) -> None:
    assert not origins(tmp_path, heads_first, 30.0)


def test_faults_of_others_are_found_beside_it(tmp_path: Path) -> None:
    assert [site for site, _ in origins(tmp_path, False, 30.0, fault=0.5)] == ["mixer"]


def test_statistics_of_both_are_no_difference(tmp_path: Path) -> None:
    assert not origins(tmp_path, False, 30.0, keep="statistics")
    assert [site for site, _ in origins(tmp_path, False, 1.0, fault=0.5, mask=torch.ones_like(MASK), keep="statistics")] == ["mixer"]


def test_nan_of_hidden_tokens_is_said(tmp_path: Path) -> None:
    assert origins(tmp_path, False, float("nan")) == [("mixer", "broken")]


def test_where_the_mask_hides_nothing_all_counts(tmp_path: Path) -> None:
    every = torch.ones_like(MASK)
    assert not origins(tmp_path, False, 30.0, mask=every)
    assert [site for site, _ in origins(tmp_path, False, 30.0, fault=0.5, mask=every)] == ["mixer"]


@pytest.mark.parametrize(
    ("tokens", "shape", "hidden"),
    [
        (6, (2, 6, 8), [2, 0]),
        (6, (12, 8), [2, 0]),
        (6, (2, 4, 6, 8), [2, 0]),
        (6, (2, 4, 6, 6), [2, 0]),  # what each query sees
        (1, (2, 2, 6, 8), [2, 0]),  # a cache that is handed on
        (1, (2, 2, 5, 8), [2, 0]),  # and came in
        (1, (2, 2, 16, 8), [2, 0]),  # and has room
        (1, (2, 1, 8), None),
        (1, (2, 8), None),
        (6, (6, 8), None),
        (6, (2, 8), None),
    ],
)
def test_which_rows_are_hidden_is_told_by_shapes(tokens: int, shape: tuple[int, ...], hidden: list[int] | None) -> None:
    keys = np.zeros((2, 6), np.bool_)
    keys[0, :2] = True
    found = Hidden(keys, tokens).among(shape)
    if hidden is None or found is None:
        assert found is None and hidden is None
        return
    assert found.shape == shape
    rows = found[..., 0]
    by_request = rows.reshape(2, 6) if len(shape) == 2 else rows.any(axis=1) if rows.ndim == 3 else rows
    assert by_request.sum(axis=1).tolist() == hidden


def test_a_cache_that_a_padded_generation_hands_on(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()  # type: ignore[arg-type]
    for name, attention in (("r", "eager"), ("t", "sdpa")):
        model.set_attn_implementation(attention)
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model.generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert not compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins
