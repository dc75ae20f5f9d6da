"""A cache that differs excuses who was handed it, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captures.llama import RMSNorm
from layerdiff import Recorder, compare_traces
from layerdiff.judge.tables import Verdict
from layerdiff.trace.schema import Role
from tests.judge.judging import Tables

CACHE = 1.5e-3


def decode_step(*, noted: bool = True, entry: str = "layers[3].keys", **cache: Any) -> Tables:
    """Root with a cache that differs, and layers 2 and 3 whose inputs agree and whose norm and attention are off by 2e-3."""
    tables = Tables()
    top = tables.site("", "LlamaForCausalLM")
    tables.pair(top, Role.INPUT, None, dtype="int64")
    for position, difference in ((f"in.cache.{entry}", CACHE), ("in.cache.layers[2].keys", None)):
        tables.pair(top, Role.INPUT, difference, position=tables.texts.intern(position), **(cache if difference else {}))
    for layer in (2, 3):
        block = tables.site(f"model.layers.{layer}", "LlamaDecoderLayer", top, handed_state=int(noted))
        tables.pair(block, Role.INPUT, None)
        for name, type, handed in (("norm", "LlamaRMSNorm", 0), ("attn", "LlamaAttention", int(noted))):
            row = tables.site(f"model.layers.{layer}.{name}", type, block, handed_state=handed)
            tables.pair(row, Role.INPUT, None)
            tables.pair(row, Role.OUTPUT, 2e-3)
        tables.pair(block, Role.OUTPUT, None)
    return tables


def verdicts(tables: Tables) -> dict[str, Verdict]:
    found = tables.judge().verdict
    names = [tables.texts[site] or "" for site in tables.sites["site"]]
    return {name.removeprefix("model.layers."): Verdict(int(found[row])) for row, name in enumerate(names) if name.count(".") == 3}


def test_a_norm_that_never_gets_the_cache_is_judged_by_its_own_input() -> None:
    tables = decode_step()
    assert verdicts(tables) == {
        "2.norm": Verdict.UNEXPLAINED,
        "2.attn": Verdict.UNEXPLAINED,  # the cache of a later layer does not reach it
        "3.norm": Verdict.UNEXPLAINED,
        "3.attn": Verdict.INHERITED,
    }
    assert tables.judge().allowed[5] == 18 * 2.0**-24


def test_entries_that_are_not_numbered_as_the_layers_are_reach_all_that_were_handed_the_cache() -> None:
    assert verdicts(decode_step(entry="layers[7].keys")) == {
        "2.norm": Verdict.UNEXPLAINED,
        "2.attn": Verdict.INHERITED,
        "3.norm": Verdict.UNEXPLAINED,
        "3.attn": Verdict.INHERITED,
    }


def test_a_cache_that_no_call_was_seen_to_be_handed_reaches_all_but_plain_leaves() -> None:
    assert verdicts(decode_step(noted=False, entry="keys")) == {
        "2.norm": Verdict.UNEXPLAINED,
        "2.attn": Verdict.INHERITED,
        "3.norm": Verdict.UNEXPLAINED,
        "3.attn": Verdict.INHERITED,
    }


def test_a_nan_of_the_cache_is_not_the_fault_of_who_reads_it() -> None:
    tables = decode_step(nonfinite_target=4, nonfinite_differ=4)
    for pair in (5, 7, 11, 13):  # the outputs of norms and attentions
        tables.pairs["nonfinite_target"][pair] = tables.pairs["nonfinite_differ"][pair] = 4
    assert verdicts(tables) == {
        "2.norm": Verdict.BROKEN,
        "2.attn": Verdict.BROKEN,
        "3.norm": Verdict.BROKEN,
        "3.attn": Verdict.INHERITED,
    }


@pytest.mark.parametrize(("position", "reaches"), [("in[0]", True), ("in[0].layers[2].keys", True), ("in[0].layers[3].keys", False)])
def test_the_number_of_an_argument_is_no_entry(position: str, reaches: bool) -> None:
    tables = decode_step(entry="unused")
    tables.pairs["position"][1] = tables.texts.intern(position)
    assert verdicts(tables)["2.attn"] == (Verdict.INHERITED if reaches else Verdict.UNEXPLAINED)


@pytest.mark.parametrize(
    ("position", "told"), [("out.cache.layers[2].keys", True), ("out[1].layers[2].keys", True), ("out.cache.layers[3].keys", False)]
)
def test_what_a_layer_made_of_its_entry_is_no_fault_of_the_root_that_returns_it(position: str, told: bool) -> None:
    tables = Tables()
    top = tables.site("", "LlamaForCausalLM")
    layer = tables.site("model.layers.2.attn", "LlamaAttention", top, handed_state=1)
    tables.pair(layer, Role.OUTPUT, 2e-3)
    tables.pair(top, Role.OUTPUT, 0.3, position=tables.texts.intern(position))
    assert [Verdict.INHERITED if told else Verdict.UNEXPLAINED, Verdict.UNEXPLAINED] == list(map(Verdict, tables.judge().verdict.tolist()))


@pytest.mark.parametrize(
    ("before", "handed", "compared", "excused"),
    [
        (1e-2, True, False, True),  # the cache is in two forms, and was made of what came in
        (1e-2, True, True, False),  # it was compared, and is the same
        (1e-2, False, False, False),  # a module beside it reads its own input alone
        (None, True, False, False),  # what made it was the same
    ],
)
def test_a_cache_in_two_forms_carries_what_came_in_before(before: float | None, handed: bool, compared: bool, excused: bool) -> None:
    tables = Tables()
    for step, given in enumerate((before, None)):
        top = tables.site("", "LlamaForCausalLM", step=step, handed_state=1)
        tables.pair(top, Role.INPUT, None, dtype="int64", position=tables.texts.intern("in.input_ids"))
        if compared:
            tables.pair(top, Role.INPUT, None, position=tables.texts.intern("in.cache.layers[2].keys"))
        row = tables.site("model.layers.2.attn", "LlamaAttention", top, step=step, handed_state=int(handed))
        tables.pair(row, Role.INPUT, given)
        tables.pair(row, Role.OUTPUT, given or 2e-3)
    found = tables.judge().verdict
    assert Verdict(int(found[row])) == (Verdict.INHERITED if excused else Verdict.UNEXPLAINED)


class Cache:
    """What an object carries from step to step."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        cache.keys.append(self.proj(x))
        return torch.cat(cache.keys, 1).mean(1, keepdim=True)


class Decoder(nn.Module):
    """A norm that is never handed the cache, and an attention that is."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.input_layernorm = RMSNorm(16, epsilon)
        self.attn = Attention()

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return self.attn(self.input_layernorm(x), cache)


def test_a_wrong_epsilon_is_found_at_a_decoded_token_too(tmp_path: Path) -> None:
    for name, epsilon in (("r", 1e-6), ("t", 1e-4)):
        model, cache = Decoder(epsilon), Cache()
        with torch.no_grad():
            x = 0.1 * torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))
            model(x[:, :4], cache)
            with Recorder(tmp_path / f"{name}.h5", model):  # the cache differs already
                model(x[:, 4:], cache)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert [(origin.site, origin.cause) for origin in comparison.origins] == [("input_layernorm", "rmsnorm-eps")]
    assert comparison.sites["handed_state"].tolist() == [0, 0, 1, 0]
