"""An encoder that is called by itself before the model, and a decoder that has a cache in one run and all tokens again in the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from captures.llama import RMSNorm
from layerdiff import Recorder
from layerdiff.cli.exits import OK, code_of
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison

HIDDEN, WORDS = 16, 50
IDS, TOKENS = torch.tensor([[3, 9, 4, 7, 1]]), torch.tensor([[2, 8, 5, 6]])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))

    def forward(self, x: Tensor, read: Tensor, cache: list[Tensor] | None = None, *, causal: bool = False) -> Tensor:
        q, k, v = self.q(x), self.k(read), self.v(read)
        if cache is not None:
            k, v = (torch.cat([old, new], 1) for old, new in zip(cache, (k, v), strict=True)) if cache else (k, v)
            cache[:] = [k, v]
        scores = q @ k.transpose(1, 2) * HIDDEN**-0.5
        if causal:
            first = k.shape[1] - x.shape[1]
            scores = scores.masked_fill(torch.arange(k.shape[1]) > torch.arange(first, k.shape[1])[:, None], -torch.inf)
        return scores.softmax(-1) @ v


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.attention = nn.Embedding(WORDS, HIDDEN), RMSNorm(HIDDEN), Attention()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        read = self.norm(x)
        return x + self.attention(read, read)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.embed, self.norm = Encoder(), nn.Embedding(WORDS, HIDDEN), RMSNorm(HIDDEN)
        self.attention, self.cross, self.head = Attention(), Attention(), nn.Linear(HIDDEN, WORDS)

    def forward(self, decoder_input_ids: Tensor, encoded: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        x = self.embed(decoder_input_ids)
        read = self.norm(x)
        x = x + self.attention(read, read, cache, causal=True)
        return self.head(x + self.cross(x, encoded))  # type: ignore[no-any-return]


def record(path: Path, *, cached: bool, operators: bool, change: Callable[[Translator], object] = lambda model: None) -> Path:
    change(model := Translator())
    with torch.no_grad(), Recorder(path, model, operators=operators):
        encoded, cache = model.encoder(IDS), list[Tensor]() if cached else None
        for place in range(TOKENS.shape[1]):
            model(TOKENS[:, place if cached else 0 : place + 1], encoded, cache)
    return path


def compared(folder: Path, change: Callable[[Translator], object] = lambda model: None, *, cached: bool, operators: bool) -> Comparison:
    """`cached`: the target has a cache, and not the reference."""
    reference = record(folder / "r.h5", cached=not cached, operators=operators)
    return compare_traces(reference, record(folder / "t.h5", cached=cached, operators=operators, change=change))


BOTH_WAYS = pytest.mark.parametrize(("operators", "cached"), [(True, True), (True, False), (False, True), (False, False)])


@BOTH_WAYS
def test_all_tokens_again_or_a_cache_is_no_fault(tmp_path: Path, operators: bool, cached: bool) -> None:
    comparison = compared(tmp_path, cached=cached, operators=operators)
    assert not comparison.origins and not comparison.defect, (comparison.origins, comparison.notices)
    assert OK == code_of(comparison)
    assert "steps-joined" in {notice.kind for notice in comparison.notices}


def epsilon(norm: str) -> Callable[[Translator], object]:
    return lambda model: setattr(model.get_submodule(norm), "variance_epsilon", 1e-1)


@BOTH_WAYS
@pytest.mark.parametrize("norm", ["encoder.norm", "norm"])
def test_a_fault_of_the_encoder_or_of_the_decoder_is_found(tmp_path: Path, norm: str, operators: bool, cached: bool) -> None:
    comparison = compared(tmp_path, epsilon(norm), cached=cached, operators=operators)
    assert [f"{norm}/aten.add.Tensor#0" if operators else norm] == [origin.site for origin in comparison.origins]


class Whole(Translator):
    """Calls its encoder where it is not given what that makes."""

    def forward(self, decoder_input_ids: Tensor, ids: Tensor | None = None, encoded: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(decoder_input_ids, self.encoder(ids) if encoded is None else encoded)


def whole_and_apart(folder: Path, change: Callable[[Translator], object], *, apart: str, operators: bool) -> Comparison:
    """One of the two runs, `apart`, calls the encoder itself."""
    for name in ("r.h5", "t.h5"):
        model = Whole()
        if name == "t.h5":
            change(model)
        with torch.no_grad(), Recorder(folder / name, model, operators=operators):
            model(decoder_input_ids=TOKENS, **({"encoded": model.encoder(IDS)} if name == apart else {"ids": IDS}))
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize("operators", [True, False])
@pytest.mark.parametrize("apart", ["r.h5", "t.h5"])
def test_an_encoder_that_the_other_run_calls_inside_is_part_of_the_model(tmp_path: Path, apart: str, operators: bool) -> None:
    comparison = whole_and_apart(tmp_path, lambda model: None, apart=apart, operators=operators)
    assert OK == code_of(comparison) and not comparison.origins and not comparison.notices, comparison.notices
    comparison = whole_and_apart(tmp_path, epsilon("encoder.norm"), apart=apart, operators=operators)
    assert [f"encoder.norm{'/aten.add.Tensor#0' if operators else ''}"] == [origin.site for origin in comparison.origins]
