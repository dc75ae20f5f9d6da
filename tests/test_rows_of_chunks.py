"""Rows that chunks of a prompt make, by modules: several of each token are compared in their places, and wrong ones are not reordered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from captures.llama import RMSNorm
from layerdiff import Recorder, compare_traces

HEADS, WIDTH, VOCABULARY = 4, 64, 4096


def prompt(length: int, batch: int = 1) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


class Mixer(nn.Module):
    """Norms each head by itself, as rows. `sized`: of its result beside what it is added to."""

    def __init__(self, *, heads_first: bool, sized: float) -> None:
        super().__init__()
        self.heads_first, self.sized, self.fault = heads_first, sized, ""
        self.in_proj, self.norm, self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False), RMSNorm(WIDTH // HEADS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, begun: bool) -> Tensor:
        made = self.in_proj(x)
        if self.fault == "forgotten" and begun:
            made = torch.cat([made[:, :1] * 0.1 + 1.0, made[:, 1:]], 1)
        if self.fault == "negated":
            made = -made
        heads = made.view(*made.shape[:2], HEADS, -1)
        if self.heads_first:
            heads = self.norm(heads.transpose(1, 2).reshape(-1, WIDTH // HEADS)).view(len(x), HEADS, -1, WIDTH // HEADS).transpose(1, 2)
        else:
            heads = self.norm(heads.reshape(-1, WIDTH // HEADS))
        return x + self.sized * self.out_proj(heads.reshape(x.shape))


class Rowed(nn.Module):
    def __init__(self, **options: bool | float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens, self.mixer = nn.Embedding(VOCABULARY, WIDTH), Mixer(**options)  # type: ignore[arg-type]
        self.begun = False

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.mixer(self.embed_tokens(input_ids), self.begun)  # type: ignore[no-any-return]


def origins(folder: Path, ids: Tensor, pieces: tuple[int, ...], fault: str, **options: bool | float) -> list[str]:
    for name, sizes in (("r.h5", (ids.shape[1],)), ("t.h5", pieces)):
        model = Rowed(**options)
        model.mixer.fault = fault if name == "t.h5" else ""
        with torch.no_grad(), Recorder(folder / name, model):
            for piece in ids.split(sizes, 1):
                model(piece)
                model.begun = True
    comparison = compare_traces(folder / "r.h5", folder / "t.h5")
    assert "steps-joined" in {notice.kind for notice in comparison.notices}
    return [origin.site for origin in comparison.origins]


@pytest.mark.parametrize("pieces", [(9, 1, 1, 1), (4, 4, 4)], ids=["steps", "even"])
def test_several_rows_of_each_token_are_compared_in_their_places(tmp_path: Path, pieces: tuple[int, ...]) -> None:
    ids = prompt(12, 2)
    for heads_first in (False, True):
        assert not origins(tmp_path, ids, pieces, "", heads_first=heads_first, sized=1.0)
    assert ["mixer"] == origins(tmp_path, ids, pieces, "forgotten", heads_first=False, sized=1.0)


def test_wrong_rows_are_not_the_right_ones_in_another_order(tmp_path: Path) -> None:
    """They have the same numbers, nearly, if these are sorted; and what the module hands on is hardly off."""
    found = origins(tmp_path, prompt(1024), (600, 424), "negated", heads_first=False, sized=0.05)
    assert ["mixer"] == found
