"""By modules: tokens that both runs' masks hide are left out, all but their NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces

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
