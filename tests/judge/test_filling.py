"""Weights that one side filled up: what is taken for filling is judged by what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff import Recorder, compare
from layerdiff.compare import compare_traces
from layerdiff.trace.reader import TraceFile
from tests.programs import Record, origins

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


class Words(nn.Module):
    """A head over `words` of which 20 are real, and before it something that is done in a way of its own."""

    def __init__(self, words: int, hidden: int, *, wrong: bool) -> None:
        super().__init__()
        self.embed, self.up, self.head = (
            nn.Embedding(words, hidden),
            nn.Linear(hidden, hidden, bias=False),
            nn.Linear(hidden, words, bias=False),
        )
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                real = torch.randn(min(parameter.shape[0], 20 if parameter is not self.up.weight else hidden), hidden, generator=generator)
                parameter.zero_()[: len(real)] = real / hidden**0.5
        self.wrong = wrong

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        made = self.up(h)
        return self.head(functional.silu(made) * 1.5 if self.wrong else h + functional.gelu(made) * 1.5)  # type: ignore[no-any-return]


@pytest.mark.parametrize("other_way", [False, True])
@pytest.mark.parametrize("hidden", [24, 32])
def test_a_size_that_both_have_is_no_filling_though_words_are_filled_up_to_it(hidden: int, other_way: bool, write: Record) -> None:
    ids = torch.arange(12).reshape(2, 6)
    words = (32, 20) if other_way else (20, 32)
    right, wrong = (write(Words(words[1], hidden, wrong=wrong), ids) for wrong in (False, True))
    reference = write(Words(words[0], hidden, wrong=False), ids)
    assert [] == origins(compare_traces(reference, right))
    assert [
        ("/aten.silu.default#0", "defect", "operator-differs"),
        ("/aten.add.Tensor#0", "defect", "operator-missing"),
    ] == origins(compare_traces(reference, wrong))


def test_of_values_that_differ_only_whole_numbers_are_read_for_what_fills_up(write: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are read once, where they are measured: of a large run they take long."""
    read: list[str] = []
    reading, looking = TraceFile.read, compare.chosen_filling

    def counted(file: TraceFile, value: int) -> Any:
        read.append(file.dtype_name(value))
        return reading(file, value)

    def looked(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(TraceFile, "read", counted)
            return looking(*given)

    class Choosing(Words):
        def forward(self, ids: Tensor) -> Any:
            logits = super().forward(ids)
            return logits, (logits + torch.arange(logits.shape[-1]) * (10.0 if self.wrong else 0.0)).argmax(-1)

    monkeypatch.setattr(compare, "chosen_filling", looked)
    ids = torch.arange(12).reshape(2, 6)
    paths = [write(Choosing(words, 24, wrong=wrong).bfloat16(), ids) for words, wrong in ((20, False), (32, True))]
    compare_traces(*paths)
    assert {"int64"} == set(read)
