"""Programs that part by less than rounding: frequencies kept as a buffer, or made anew; what is coarser beside them is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.programs import kinds, random, record, seeded

sizes = pytest.mark.parametrize(("length", "width"), [(4, 8), (12, 16), (40, 16)])


class Rotated(nn.Module):
    """Positions are turned by angles whose frequencies are a buffer; or made in place, of which `coarse` is kept in bfloat16."""

    def __init__(self, width: int, *, anew: bool = False, coarse: str = "") -> None:
        super().__init__()
        self.before, self.after, self.anew, self.coarse = nn.Linear(width, width), nn.Linear(width, width), anew, coarse
        if not anew:
            self.register_buffer("frequencies", 1000.0 ** (-torch.arange(0, width, 2).float() / width))

    def rounded(self, what: str, x: Tensor) -> Tensor:
        return x.bfloat16().float() if what == self.coarse else x

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        frequencies = 1000.0 ** (-torch.arange(0, x.shape[-1], 2).float() / x.shape[-1]) if self.anew else self.frequencies
        angles = torch.arange(x.shape[1]).float()[:, None] * self.rounded("frequencies", frequencies)
        angles = self.rounded("angles", angles)
        cos, sin = self.rounded("tables", angles.cos()), self.rounded("tables", angles.sin())
        first, second = x.chunk(2, -1)
        return self.after(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))


def compared(folder: Path, length: int, width: int, coarse: str) -> Comparison:
    x = random(2, length, width)
    reference = record(folder / "r.h5", seeded(Rotated(width)), x)
    return compare_traces(reference, record(folder / "t.h5", seeded(Rotated(width, anew=True, coarse=coarse)), x))


@sizes
def test_frequencies_made_anew(tmp_path: Path, length: int, width: int) -> None:
    comparison = compared(tmp_path, length, width, "")
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)
    assert {"below-rounding", "weight-differs"} & kinds(comparison)


@sizes
@pytest.mark.parametrize("coarse", ["frequencies", "angles", "tables"])
def test_what_is_kept_coarser_beside_them_is_found(tmp_path: Path, coarse: str, length: int, width: int) -> None:
    (origin,) = compared(tmp_path, length, width, coarse).origins
    assert ("precision", "lower-precision") == (origin.verdict.label, origin.cause)
