"""Weights that one side filled up: what is taken for filling is judged by what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder
from layerdiff.compare import compare_traces

INNER = 24


class Mlp(nn.Module):
    """`inner` channels, of which the first `real` are the same whatever there is beside; the others hold numbers of this size."""

    def __init__(self, inner: int, beside: float, real: int = INNER) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        up, down = torch.randn(2, real, 16, generator=random).unbind()
        more = beside * torch.randn(2, inner - real, 16, generator=random)
        self.up, self.act, self.down = nn.Linear(16, inner, bias=False), nn.SiLU(), nn.Linear(inner, 16, bias=False)
        self.up.weight = nn.Parameter(torch.cat([up, more[0]]))
        self.down.weight = nn.Parameter(torch.cat([down, more[1]]).T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


def record(path: Path, model: nn.Module, operators: bool) -> Path:
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        model(x)
    return path


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("other_way", [False, True])
@pytest.mark.parametrize(("beside", "found"), [(0.0, False), (1.0, True)])
def test_channels_that_were_added_are_judged_by_what_they_do(
    beside: float, found: bool, other_way: bool, operators: bool, tmp_path: Path
) -> None:
    """Zeros add nothing to a sum; other numbers do, and a run that lacks such channels lacks what they do."""
    paths = [record(tmp_path / "plain.h5", Mlp(INNER, 0.0), operators), record(tmp_path / "filled.h5", Mlp(32, beside), operators)]
    comparison = compare_traces(*(reversed(paths) if other_way else paths))
    assert found == comparison.defect
    sites = {origin.site.split("/")[0] for origin in comparison.origins}
    assert sites <= {"", "down"} and bool(sites) == found
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]


def test_a_weight_of_another_shape_that_does_not_agree_is_another(tmp_path: Path) -> None:
    """Rows that are not the same say that it is no filling, but another weight."""
    other = Mlp(32, 0.0)
    with torch.no_grad():
        other.up.weight[:INNER] = torch.randn(INNER, 16, generator=torch.Generator().manual_seed(9))
    comparison = compare_traces(record(tmp_path / "r.h5", Mlp(INNER, 0.0), False), record(tmp_path / "t.h5", other, False))
    assert ["up"] == [notice.site for notice in comparison.notices if notice.kind == "weight-differs" and notice.defect]
