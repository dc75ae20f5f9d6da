"""Experts whose tokens were routed otherwise for a few: the rest is judged all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces
from tests.programs import MLP, Record, record, seeded


class Experts(nn.Module):
    """A loop over experts, each for its tokens alone: how many those are is in the recorded shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(1)))
        self.factor = 1.0

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(len(self.weights)):
            tokens = (chosen == expert).any(dim=1).nonzero().reshape(-1)
            out.index_add_(0, tokens, x[tokens] @ self.weights[expert] * self.factor)
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts()

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return self.experts(x, chosen)


def recorded(path: Path, model: Model, chosen: Tensor) -> Path:
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(x, chosen)
    return path


def test_a_fault_behind_a_flip_is_found_and_a_flip_alone_is_none(tmp_path: Path) -> None:
    chosen = torch.arange(24).reshape(12, 2) % 4
    flipped = chosen.clone()
    flipped[3, 0] = (flipped[3, 0] + 1) % 4
    reference = recorded(tmp_path / "r.h5", Model(), chosen)
    harmless = compare_traces(reference, recorded(tmp_path / "t.h5", Model(), flipped))
    assert [] == [origin.site for origin in harmless.origins if origin.site.startswith("experts")]
    wrong = Model()
    wrong.experts.factor = 1.01
    faulty = compare_traces(reference, recorded(tmp_path / "w.h5", wrong, flipped))
    assert {"experts"} == {origin.site.partition("/")[0] for origin in faulty.origins}
    assert faulty.defect and {"unexplained", "defect"} >= {origin.verdict.label for origin in faulty.origins}  # none is said to cancel
    assert any("mul(1.01), reference mul(1.0)" in origin.statement for origin in faulty.origins)


class Chooser(nn.Module):
    """The larger of some scores, two of which part only by what bf16 does not have, and a row of a table for it."""

    def __init__(self, way: str, *, wrong: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.wrong = way, wrong
        self.scores, self.table = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(5, 8))
        with torch.no_grad():
            self.scores[:, 1] = self.scores[:, 0] * (1 + 2e-4 * torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "topk":
            best, chosen = (x @ self.scores).topk(1)
        elif self.way == "sort":
            best, chosen = (x @ self.scores).sort(-1, descending=True)
            best, chosen = best[..., :1], chosen[..., :1]
        elif self.way == "smallest":
            best, chosen = (-(x @ self.scores)).topk(1, largest=False)
            best = -best
        elif self.way == "argmax":
            chosen = (x @ self.scores).argmax(-1, keepdim=True)
            best = (x @ self.scores).gather(-1, chosen)
        elif self.way == "max":
            best, chosen = (x @ self.scores).max(-1, keepdim=True)
        else:  # from the other end, as a router does whose kernel sorts upwards alone
            best, chosen = (-(x @ self.scores)).sort(-1)
            best, chosen = -best[..., :1], chosen[..., :1]
        return self.table[chosen[..., 0]] * best * (1.5 if self.wrong else 1.0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("way", ["sort", "smallest", "other end", "argmax", "max"])
def test_another_way_to_choose_decides_the_same(tmp_path: Path, way: str, wrong: bool) -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    reference = record(tmp_path / "r.h5", Chooser("topk"), x)
    target = record(tmp_path / "t.h5", Chooser(way, wrong=wrong).bfloat16(), x.bfloat16())
    comparison = compare_traces(reference, target)
    assert wrong == comparison.defect
    assert any(notice.kind in ("flip", "tie-order") for notice in comparison.notices)


class Groups(nn.Module):
    """Experts chosen in the groups whose two best are worth most; the weights are the scores without the bias that decided."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.scores, self.bias = nn.Parameter(torch.randn(16, 12)), nn.Parameter(torch.randn(12) / 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ self.scores).float().sigmoid()
        biased = scores if self.fault == "no bias" else scores + self.bias
        groups = biased.view(-1, 4, 3)
        worth = groups.topk(1 if self.fault == "best alone" else 2).values.sum(-1)
        if self.fault == "largest sum":
            worth = groups.sum(-1)
        chosen = worth.topk(3 if self.fault == "more groups" else 2, sorted=False).indices
        mask = torch.zeros_like(worth).scatter_(1, chosen, 1.0).unsqueeze(-1).expand_as(groups).reshape(biased.shape)
        if self.fault != "no groups":
            biased = biased.masked_fill(~mask.bool(), float("-inf"))
        best = biased.topk(3, sorted=False).indices
        return torch.zeros_like(scores).scatter(1, best, scores.gather(1, best))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", ["", "no bias", "best alone", "largest sum", "more groups", "no groups"])
def test_a_choice_that_another_choice_decided_is_asked_too(tmp_path: Path, fault: str, dtype: torch.dtype) -> None:
    """Followed, the last choice would hide that the groups before it were chosen by other numbers."""
    torch.manual_seed(3)
    x = torch.randn(60, 16)
    reference = record(tmp_path / "r.h5", Groups(), x)
    target = record(tmp_path / "t.h5", Groups(fault).to(dtype), x.to(dtype))
    found = compare_traces(reference, target)
    assert ([], False) == ([o.site for o in found.origins], found.defect) if not fault else found.defect
    assert not fault or all(origin.site.startswith("/") or "/" not in origin.site for origin in found.origins)


@pytest.mark.parametrize("way", ["argmax", "max"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_top_k_in_place_of_an_argmax_decides_the_same(tmp_path: Path, way: str, wrong: bool) -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    reference = record(tmp_path / "r.h5", Chooser(way), x)
    comparison = compare_traces(reference, record(tmp_path / "t.h5", Chooser("topk", wrong=wrong).bfloat16(), x.bfloat16()))
    assert wrong == comparison.defect
    assert any(notice.kind in ("flip", "tie-order") for notice in comparison.notices)


@pytest.mark.parametrize("way", ["argmax", "max"])
def test_an_argmax_that_chooses_by_other_numbers_is_a_fault(tmp_path: Path, way: str) -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    reference, wrong = record(tmp_path / "r.h5", Chooser("topk"), x), Chooser(way)
    wrong.scores.data[:, 2] *= 1.5
    comparison = compare_traces(reference, record(tmp_path / "t.h5", wrong, x))
    assert comparison.defect


class Two(nn.Module):
    """Rows of a table for the two largest scores, by a top-k or by one argmax after another."""

    def __init__(self, way: str, *, wrong: bool = False) -> None:
        super().__init__()
        self.chooser, self.way, self.wrong = Chooser("topk"), way, wrong

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ self.chooser.scores).softmax(-1)
        if self.way == "topk":
            best, chosen = scores.topk(2)
        else:
            first = scores.argmax(-1, keepdim=True)
            left = scores.scatter(-1, first, -1.0)
            chosen = torch.cat([first, first if self.wrong else left.argmax(-1, keepdim=True)], -1)
            best = scores.gather(-1, chosen)
        return (self.chooser.table[chosen] * best[..., None]).sum(-2)


@pytest.mark.parametrize("wrong", [False, True])
def test_one_argmax_after_another_decides_as_a_top_k(tmp_path: Path, wrong: bool) -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    reference = record(tmp_path / "r.h5", Two("topk"), x)
    comparison = compare_traces(reference, record(tmp_path / "t.h5", Two("rounds", wrong=wrong).bfloat16(), x.bfloat16()))
    assert wrong == comparison.defect
    assert wrong or any(notice.kind in ("flip", "tie-order") for notice in comparison.notices)


class Router(nn.Module):
    """Hands out the largest score and its place, by a top-k, or by what equals the largest."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.scores, self.way, self.factor = Chooser("topk").scores, way, 1.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = x @ self.scores
        if self.way == "topk":
            return scores.topk(1)
        chosen = (scores == scores.amax(-1, keepdim=True)).int().argmax(-1, keepdim=True)
        return scores.gather(-1, chosen) * self.factor, chosen


class Routed(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.router, self.table = Router(way), Chooser("topk").table

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.router(x)
        return self.table[chosen[..., 0]] * best


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_what_follows_from_a_place_that_is_as_good_is_followed(tmp_path: Path, factor: float) -> None:
    """The places differ by less than rounding, and the values at them differ too: those are no fault where the places are none."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    reference, target = record(tmp_path / "r.h5", Routed("topk"), x), Routed("equal").bfloat16()
    target.router.factor = factor
    comparison = compare_traces(reference, record(tmp_path / "t.h5", target, x.bfloat16()))
    assert (factor != 1.0) == comparison.defect
    assert any(notice.kind in ("flip", "tie-order") and notice.site == "router/aten.topk.default#0" for notice in comparison.notices)


class OneExpert(nn.Module):
    """Some tokens go through an expert: these alone, or all, of which these count."""

    def __init__(self, *, every: bool) -> None:
        super().__init__()
        self.embed, self.expert, self.out, self.every = nn.Embedding(31, 16), MLP(), nn.Linear(16, 16), every

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        chosen = ids % 7 == 0
        made = torch.zeros_like(x)
        if self.every:
            made = torch.where(chosen[..., None], self.expert(x), made)
        else:
            made[chosen] = self.expert(x[chosen])
        return self.out(x + made)


@pytest.mark.parametrize("places", [((0, 5), (1, 2)), ((0, 5), (0, 3)), ((0, 1), (1, 5))])
def test_as_many_tokens_of_an_expert_as_there_are_requests_are_no_ends(write: Record, places: tuple[tuple[int, int], ...]) -> None:
    ids = torch.full((2, 6), 1) + torch.arange(5).repeat(3)[:12].reshape(2, 6)
    for place in places:
        ids[place] = 7
    reference = write(seeded(OneExpert(every=False)), ids)
    comparison = compare_traces(reference, write(seeded(OneExpert(every=True)), ids))
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)
