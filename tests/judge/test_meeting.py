"""Programs that part and meet again in the module around them, all that does not count left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerdiff.compare import compare_traces
from layerdiff.record.recorder import Recorder
from layerdiff.saved.comparison import Comparison
from tests.programs import Record, origins, random, seeded

X = random(2, 6, 16)
MASK = torch.ones(2, 6, dtype=torch.long)
MASK[1, :2] = 0


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.linear, self.by = nn.Linear(16, 16, bias=False), by

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.by


class Attention(nn.Module):
    """The scale in the query, or in the scores; what is made at padded positions is kept, or is zero."""

    def __init__(self, *, early: bool, zero: bool, by: float) -> None:
        super().__init__()
        self.query, self.key, self.value = Scaled(by if early else 1.0), Scaled(1.0), Scaled(1.0)
        self.by, self.zero = (None if early else by), zero

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT
        scores = scores if self.by is None else scores * self.by
        made = scores.masked_fill((attention_mask == 0)[:, None, :], -torch.inf).softmax(-1) @ self.value(x)
        return made.masked_fill((attention_mask == 0)[:, :, None], 0.0) if self.zero else made


class Model(nn.Module):
    def __init__(self, *, early: bool, zero: bool, by: float = 0.25) -> None:
        super().__init__()
        self.attention, self.out = Attention(early=early, zero=zero, by=by), nn.Linear(16, 16)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return self.out(self.attention(x, attention_mask=attention_mask))


def compared(folder: Path, *models: Model) -> Comparison:
    paths = []
    for number, model in enumerate(models):
        paths.append(folder / f"{number}.h5")
        with Recorder(paths[-1], seeded(model), operators=True), torch.no_grad():
            model(X, attention_mask=MASK)
    return compare_traces(*paths)


@pytest.mark.parametrize("turn", [1, -1])
def test_what_is_made_at_padded_positions_keeps_no_programs_from_meeting(tmp_path: Path, turn: int) -> None:
    found = origins(compared(tmp_path, *[Model(early=False, zero=False), Model(early=True, zero=True)][::turn]))
    assert not [site for site, verdict, _ in found if verdict != "reconverges"]


def test_another_scale_does_not_meet(tmp_path: Path) -> None:
    found = origins(compared(tmp_path, Model(early=False, zero=False), Model(early=True, zero=True, by=0.26)))
    assert [site for site, verdict, _ in found if verdict != "reconverges"]


class Projected(nn.Module):
    """Returns what it makes, and a mask: of truth values, or of numbers to add. A gain is kept, or folded into the projection."""

    def __init__(self, *, folded: bool, numbers: bool, wrong: float = 1.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16) if folded else random(16, seed=3).abs() + 0.5)
        self.weight = nn.Parameter(random(16, 16, seed=4) * ((random(16, seed=3).abs() + 0.5) * wrong if folded else 1.0))
        self.numbers = numbers

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        if self.numbers:
            mask = torch.zeros(6, 6, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        return (x * self.gain) @ self.weight.T, mask


class Masked(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.projected = Projected(**options)

    def forward(self, x: Tensor) -> Tensor:
        made, mask = self.projected(x)
        scores = made @ made.mT
        return (scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ made


@pytest.mark.parametrize("numbers", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_masks_in_two_forms_keep_no_folded_weights_from_meeting(write: Record, numbers: tuple[bool, bool], dtype: torch.dtype) -> None:
    reference = write(Masked(folded=False, numbers=numbers[0]), X)
    right, wrong = (
        compare_traces(reference, write(Masked(folded=True, numbers=numbers[1], wrong=by).to(dtype), X.to(dtype))) for by in (1.0, 1.02)
    )
    assert [] == [origin.site for origin in right.origins if origin.defect]
    assert [origin.site for origin in wrong.origins if origin.defect]
