"""Rows that fill a vocabulary up in both runs are no weights; the last rows of any weight that something may depend on are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerdiff import Recorder
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison

LONGEST, HIDDEN = 64, 16
Ending = Callable[[Tensor, Tensor, int], object]


@dataclass(frozen=True)
class Case:
    """`ids` of `rows` count; what is handed on of the logits; the ids of further steps."""

    ending: Ending
    ids: int = 97
    rows: int = 128
    dtype: torch.dtype = torch.float32
    tied: bool = False
    positions: int = LONGEST
    further: tuple[int, ...] = ()


class Halves(nn.Module):
    """A fused projection that hands on its leading half; the other is used inside."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.both = nn.Linear(HIDDEN, rows, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.both(x).chunk(2, -1)
        return first + 0 * second.sum()


class Copied(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Model(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.case = case
        self.tokens, self.positions = nn.Embedding(case.rows, HIDDEN), nn.Embedding(case.positions, HIDDEN)
        self.halves, self.norm = Halves(2 * HIDDEN), nn.RMSNorm(HIDDEN, eps=1e-6)
        self.head, self.copied = nn.Linear(HIDDEN, case.rows), Copied()
        if case.tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> object:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        logits = self.copied(self.head(self.norm(x + self.halves(x))))
        return self.case.ending(logits, ids, self.case.ids)


def cut(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    return logits[..., :ids]


def beside_hidden_states(logits: Tensor, _: Tensor, ids: int) -> dict[str, Tensor]:
    return {"logits": logits.float()[..., :ids], "first": logits[..., 0]}


def hidden(logits: Tensor, _: Tensor, ids: int) -> tuple[Tensor, Tensor]:
    hides = logits.masked_fill(torch.arange(logits.shape[-1]) >= ids, float("-inf"))
    return hides, hides.argmax(-1)


def hidden_by_the_lowest(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    logits[..., ids:] = torch.finfo(logits.dtype).min
    return logits


def compared(
    folder: Path, case: Case, change: Callable[[Model], object], operators: bool, reference: torch.dtype | None = None
) -> Comparison:
    steps = [torch.randint(0, case.ids, (2, 12), generator=torch.Generator().manual_seed(1))]
    steps += [torch.full((2, 4), number) for number in case.further]
    for name in ("reference", "target"):
        model = Model(case).to(reference if name == "reference" and reference else case.dtype).eval()
        with torch.no_grad():
            if name == "target":
                change(model)
            with Recorder(folder / name, model, operators=operators, weights="used"):
                for ids in steps:
                    model(ids)
    return compare_traces(folder / "reference", folder / "target")


def others_from(row: int) -> Callable[[Model], None]:
    """Other numbers in all rows of the vocabulary from one on."""

    def change(model: Model) -> None:
        for weight in dict.fromkeys((model.tokens.weight, model.head.weight, model.head.bias)):
            weight[row:] = torch.randn(weight[row:].shape, generator=torch.Generator().manual_seed(7)).to(weight.dtype)

    return change


HARMLESS = {
    "cut": Case(cut),
    "few": Case(cut, 50, 64, tied=True, positions=12),
    "many": Case(beside_hidden_states, 1000, 1024, torch.bfloat16),
    "hidden": Case(hidden, 97, 104, further=(5, 96)),
    "lowest": Case(hidden_by_the_lowest, 100, 128, torch.bfloat16, tied=True),
    "lowest of float16": Case(hidden_by_the_lowest, 97, 128, torch.float16, further=(3,)),
}


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", HARMLESS)
def test_rows_that_nothing_depends_on_may_be_others(name: str, wide: bool, operators: bool, tmp_path: Path) -> None:
    case = HARMLESS[name]
    comparison = compared(tmp_path, case, others_from(case.ids), operators, torch.float32 if wide else None)
    assert not comparison.defect
    assert [] == [origin.site for origin in comparison.origins]
    said = [notice.statement for notice in comparison.notices if notice.kind == "unused-rows"]
    assert 1 == len(said)
    assert said[0].startswith(f"tokens.weight and {1 if case.tied else 2} more: rows {case.ids} to {case.rows - 1} of {case.rows} ")


@pytest.mark.parametrize("operators", [False, True])
def test_nothing_is_said_of_the_same_rows(operators: bool, tmp_path: Path) -> None:
    comparison = compared(tmp_path, Case(cut), lambda model: None, operators, torch.bfloat16)
    assert "unused-rows" not in [notice.kind for notice in comparison.notices]


# endings by which something depends on the rows


def whole(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    return logits


def beside_all(logits: Tensor, _: Tensor, ids: int) -> tuple[Tensor, Tensor]:
    return logits[..., :ids], logits


def last(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    return logits[..., -ids:]


def likely(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    return logits.log_softmax(-1)[..., :ids]


def best(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    return logits.topk(ids, -1).values


def only_best(logits: Tensor, _: Tensor, ids: int) -> Tensor:
    return logits.masked_fill(logits < logits.topk(5, -1).values[..., -1:], float("-inf"))


def with_loss(logits: Tensor, tokens: Tensor, ids: int) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), logits[..., :ids]


def chosen(logits: Tensor, _: Tensor, ids: int) -> tuple[Tensor, Tensor]:
    return logits[..., :ids], (logits + (torch.arange(logits.shape[-1]) >= ids)).argmax(-1)


class Masks:
    """Hides what fills the vocabulary up in the first step alone."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, logits: Tensor, _: Tensor, ids: int) -> Tensor:
        self.steps += 1
        return logits.masked_fill(torch.arange(logits.shape[-1]) >= ids, float("-inf")) if self.steps % 2 else logits


COUNT = {
    "all are handed on": Case(whole),
    "all are handed on, tied": Case(whole, tied=True),
    "all beside": Case(beside_all),
    "the first are cut": Case(last),
    "over all": Case(likely),
    "the best of all": Case(best),
    "hidden by what they are": Case(only_best),
    "a loss": Case(with_loss),
    "chosen": Case(chosen),
    "an id of a later step": Case(cut, further=(5, 100)),
    "hidden in one step": Case(Masks(), further=(5,)),
    "two tables of one size": Case(cut, positions=128),
}


@pytest.mark.parametrize(("operators", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
@pytest.mark.parametrize("name", COUNT)
def test_rows_that_something_depends_on_are_weights(name: str, dtype: torch.dtype, operators: bool, tmp_path: Path) -> None:
    case = COUNT[name]
    comparison = compared(tmp_path, case, others_from(case.ids), operators, dtype)
    assert "weight-differs" in [notice.kind for notice in comparison.notices if notice.defect]
    assert "unused-rows" not in [notice.kind for notice in comparison.notices]


def positions(model: Model) -> None:
    model.positions.weight[50:] *= -1


def projection(model: Model) -> None:
    model.halves.both.weight[HIDDEN:] *= -1


def tokens(model: Model) -> None:
    model.tokens.weight[90:] *= -1


def head(model: Model) -> None:
    model.head.weight[90:] *= -1


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("change", [positions, projection, tokens, head])
@pytest.mark.parametrize("rows", [97, 128])
def test_the_last_rows_of_a_weight_are_weights(change: Callable[[Model], None], rows: int, operators: bool, tmp_path: Path) -> None:
    comparison = compared(tmp_path, Case(cut, rows=rows), change, operators)
    assert "weight-differs" in [notice.kind for notice in comparison.notices if notice.defect]


def one_token(model: Model) -> None:
    model.tokens.weight[int(model.case.ids // 2)] *= -1


def bias(model: Model) -> None:
    model.head.bias[3] += 1.0


def epsilon(model: Model) -> None:
    model.norm.eps = 0.5


FAULTS = {"one_token": (one_token, "tokens"), "bias": (bias, "head"), "epsilon": (epsilon, "norm")}


@pytest.mark.parametrize(("operators", "name"), [(False, "cut"), (True, "hidden"), (True, "lowest")])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_beside(fault: str, name: str, operators: bool, tmp_path: Path) -> None:
    case, (change, site) = HARMLESS[name], FAULTS[fault]
    comparison = compared(tmp_path, case, lambda model: (others_from(case.ids)(model), change(model)), operators)
    assert comparison.defect
    found = [origin.site.partition("/")[0] for origin in comparison.origins if origin.defect]
    assert site in found or site in [notice.site for notice in comparison.notices if notice.defect]
