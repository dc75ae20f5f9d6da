"""The exact judge on choices, state, draws, weights, literals, and numbers that are none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.kernels import PRODUCTS, Kernel
from layerdiff.compare import compare_traces
from layerdiff.judge.tables import Verdict
from layerdiff.saved.file import open_comparison, save
from layerdiff.verdicts import judge_again
from tests.programs import IDS, Cached, Experts, Record, decoder, experts, kinds, origins, quantised, random, seeded

BF16 = torch.bfloat16
LOWEST = torch.finfo(torch.float32).min


@pytest.fixture(scope="module")
def reference(write: Record) -> Path:
    return write(decoder(), IDS)


# choices

X = random(3, 5, 16)


def test_a_choice_that_hangs_by_a_rounding(write: Record) -> None:
    comparison = compare_traces(write(experts(), X), write(experts(dtype=BF16), X.to(BF16)))
    assert ([], False) == (origins(comparison), comparison.defect)
    assert "carried-flip" in kinds(comparison)


def test_a_choice_from_scores_that_were_rounded_more_than_the_run_rounds(write: Record) -> None:

    def coarse(model: Experts) -> None:
        model.choose = lambda scores: (scores.to(BF16).float() * 1.0).topk(2, -1)

    comparison = compare_traces(write(experts(apart=1e-4), X), write(experts(coarse, apart=1e-4), X))
    assert ["/aten.topk.default#0"] == [origin.site for origin in comparison.origins]
    assert comparison.defect


def test_a_wrong_choice(write: Record) -> None:
    model = experts()
    other = Kernel(model, ("aten.topk.default",), lambda func, args, kwargs, result: (result[0].clone(), (result[1] + 1) % 4))
    comparison = compare_traces(write(experts(), X), write(model, X, below=[other]))
    assert ["/aten.topk.default#0"] == [origin.site for origin in comparison.origins]
    assert comparison.defect


def test_the_least_in_place_of_the_most(write: Record) -> None:
    def least(model: Experts) -> None:
        model.choose = lambda scores: scores.topk(2, -1, largest=False)

    comparison = compare_traces(write(experts(), X), write(experts(least), X))
    assert ["/aten.topk.default#0"] == [origin.site for origin in comparison.origins]
    assert comparison.defect


def test_values_that_tie_in_another_order(write: Record) -> None:
    model = experts(apart=0.0)

    def exchanged(func: Any, args: Any, kwargs: Any, result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values, indices = result
        return values.clone(), torch.where(indices < 2, 1 - indices, indices)

    comparison = compare_traces(write(experts(apart=0.0), X), write(model, X, below=[Kernel(model, ("aten.topk.default",), exchanged)]))
    assert ([], False) == (origins(comparison), comparison.defect)
    assert "tie-order" in kinds(comparison)


def test_a_sort_in_place_of_a_top_k(write: Record) -> None:
    def sort(model: Experts) -> None:
        def choose(scores: Tensor) -> tuple[Tensor, Tensor]:
            values, indices = scores.sort(-1, descending=True)
            return values[..., :2], indices[..., :2]

        model.choose = choose

    comparison = compare_traces(write(experts(apart=0.5), X), write(experts(sort, apart=0.5), X))
    assert ([], False) == (origins(comparison), comparison.defect)


# state and draws

STEPS = [(random(2, length, 16, seed=length + number),) for number, length in enumerate((3, 1, 1))]


@pytest.fixture(scope="module")
def decoded(write: Record) -> Path:
    return write(seeded(Cached()), steps=STEPS)


def test_decoding_with_a_static_cache(write: Record, decoded: Path) -> None:
    same = compare_traces(decoded, write(seeded(Cached()), steps=STEPS))
    assert (Verdict.IDENTICAL, []) == (same.verdict, origins(same))
    coarse = compare_traces(decoded, write(seeded(Cached()).to(BF16), steps=[(x.to(BF16),) for (x,) in STEPS]))
    assert ([], False) == (origins(coarse), coarse.defect)


def test_a_cache_that_is_written_one_place_too_early(write: Record, decoded: Path) -> None:
    model = seeded(Cached())
    forward = model.forward

    def early(x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            model.seen.sub_(1)
        return forward(x)

    model.forward = early
    comparison = compare_traces(decoded, write(model, steps=STEPS))
    assert ["/aten.sub_.Tensor#0"] == [origin.site for origin in comparison.origins]
    assert [1] == [origin.step for origin in comparison.origins]


class Dropping(nn.Module):
    def __init__(self, drop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(16, 16), drop, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(self.first(x)).relu())


def mask_and_scale(x: Tensor, drawn: float, kept: float = 0.7) -> Tensor:
    return x * torch.empty_like(x).bernoulli_(drawn) / kept


def dropped(write: Record, drop: Callable[[Tensor], Tensor], seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(seed)
    return write(seeded(Dropping(drop)).to(dtype), X[:, 0].to(dtype))


def test_draws_are_taken_as_they_were_recorded(write: Record) -> None:
    reference = dropped(write, partial(functional.dropout, p=0.3))
    assert Verdict.IDENTICAL == compare_traces(reference, dropped(write, partial(functional.dropout, p=0.3))).verdict
    coarse = compare_traces(reference, dropped(write, partial(functional.dropout, p=0.3), dtype=BF16))
    assert ([], False) == (origins(coarse), coarse.defect)
    other = compare_traces(reference, dropped(write, partial(functional.dropout, p=0.3), seed=1))
    assert ([], {"seed-differs"}) == (origins(other), kinds(other))


def test_another_probability_shows_in_the_scale_and_in_the_draw(write: Record) -> None:
    comparison = compare_traces(dropped(write, partial(functional.dropout, p=0.3)), dropped(write, partial(functional.dropout, p=0.5)))
    assert [("/aten.div_.Scalar#0", "defect", "scalar-differs")] == origins(comparison)
    drawn = compare_traces(dropped(write, partial(mask_and_scale, drawn=0.7)), dropped(write, partial(mask_and_scale, drawn=0.6)))
    assert [("/aten.bernoulli_.float#0", "defect", "scalar-differs")] == origins(drawn)
    assert "bernoulli_(0.6), reference bernoulli_(0.7)" == drawn.origins[0].statement


# weights and values without a recorded maker


class WithTable(nn.Module):
    """Adds a table that it made before anything was recorded, and that is no buffer."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(16, 16), [table]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.table[0]


def test_a_source_that_differs(write: Record) -> None:
    table = random(16, seed=5)
    reference = write(seeded(WithTable(table)), X)
    other = table.clone()
    other[3] += 0.5
    (origin,) = compare_traces(reference, write(seeded(WithTable(other)), X)).origins
    assert ("/aten.add.Tensor#0", "source.in[1]") == (origin.site, origin.value)
    assert "1 of 16 elements" in origin.statement
    coarse = compare_traces(reference, write(seeded(WithTable(table)).to(BF16), X.to(BF16)))
    assert [] == origins(coarse)
    rounded = compare_traces(reference, write(seeded(WithTable(table.to(BF16).float())), X))
    assert ([], False) == ([o for o in origins(rounded) if o[1] != "precision"], rounded.defect)


def test_weights_of_eight_bits(write: Record, reference: Path, tmp_path: Path) -> None:
    comparison = compare_traces(reference, write(decoder(quantised), IDS))
    assert ["layers.0.mlp.up_proj/aten.mm.default#0"] == [origin.site for origin in comparison.origins]
    assert comparison.defect
    save(comparison, tmp_path / "int8.ldiff")
    relaxed = judge_again(open_comparison(tmp_path / "int8.ldiff"), profile="relaxed")
    assert [("layers.0.mlp.up_proj/aten.mm.default#0", "precision", "quantised-weight")] == origins(relaxed)
    assert not relaxed.defect


# numbers that are none


def test_a_row_of_nan_in_both(write: Record, reference: Path) -> None:
    x = X[:, 0].clone()
    x[1] = torch.nan
    model = seeded(Dropping(nn.Identity()))
    ours = write(model, x)
    clean = compare_traces(ours, write(seeded(Dropping(nn.Identity())).to(BF16), x.to(BF16)))
    assert ([], False) == (origins(clean), clean.defect)
    with torch.no_grad():
        model.second.bias[0] += 1
    assert ["second/aten.addmm.default#0"] == [origin.site for origin in compare_traces(ours, write(model, x)).origins]


def test_a_new_nan_is_broken_where_it_enters(write: Record, reference: Path) -> None:
    model = decoder()

    def lost(func: Any, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        changed = result.clone()
        changed[..., 0] = torch.nan
        return changed

    comparison = compare_traces(reference, write(model, IDS, below=[Kernel(model.layers[0].mlp.up_proj, PRODUCTS, lost)]))
    assert [("layers.0.mlp.up_proj/aten.mm.default#0", "broken")] == [o[:2] for o in origins(comparison)]


class Flat(nn.Module):
    """Two parameters that are parts of one storage, as sharded training keeps them."""

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        flat = random(48)
        flat[24:] *= by
        self.a = nn.Parameter(flat[:24].view(4, 6), requires_grad=False)
        self.b = nn.Parameter(flat[24:].view(6, 4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.a) @ self.b


def test_parameters_in_one_storage_are_told_apart(write: Record) -> None:
    x = random(3, 4)
    reference = write(Flat(), x)
    assert [] == origins(compare_traces(reference, write(Flat().bfloat16(), x.to(BF16))))
    assert [("/aten.mm.default#1", "defect", "weight-differs")] == origins(compare_traces(reference, write(Flat(1.01), x)))


class Picking(nn.Module):
    """Picks columns by a literal of the program."""

    def __init__(self, *columns: int) -> None:
        super().__init__()
        self.linear, self.columns = nn.Linear(16, 16), columns

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, torch.tensor(self.columns)]


def test_a_literal_that_differs(write: Record) -> None:
    x = X[:, 0]
    reference = write(seeded(Picking(0, 1)), x)
    assert [] == origins(compare_traces(reference, write(seeded(Picking(0, 1)).bfloat16(), x.to(BF16))))
    (origin,) = compare_traces(reference, write(seeded(Picking(2, 1)), x)).origins
    assert ("source.in[0]", True) == (origin.value, "1 of 2 elements" in origin.statement)
