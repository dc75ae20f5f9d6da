"""A user's rules, and those that are proposed."""

from __future__ import annotations

import pytest

from layerdiff.align.aligning import align
from layerdiff.align.alignment import RenameRule
from layerdiff.errors import ProfileError
from tests.align.trees import calls, names, pairs


def llama(layers: int = 3, outer: str = "model.") -> list[str]:
    lines = ["- : LlamaForCausalLM", f"  {outer}embed_tokens : Embedding"]
    for i in range(layers):
        at = f"{outer}layers.{i}"
        lines += [f"  {at} : LlamaDecoderLayer", f"    {at}.input_layernorm : LlamaRMSNorm", f"    {at}.self_attn : LlamaAttention"]
        lines += [f"      {at}.self_attn.q_proj : Linear", f"      {at}.self_attn.o_proj : Linear"]
        lines += [f"    {at}.mlp : LlamaMLP", f"      {at}.mlp.down_proj : Linear"]
    return [*lines, f"  {outer}norm : LlamaRMSNorm", "  lm_head : Linear"]


def engine(layers: int = 3) -> list[str]:
    lines = ["- : Engine", "  transformer.wte : VocabEmbedding"]
    for i in range(layers):
        at = f"transformer.h.{i}"
        lines += [f"  {at} : Layer", f"    {at}.ln_1 : RMSNorm", f"    {at}.attn : EngineAttention"]
        lines += [f"      {at}.attn.query : ColumnLinear", f"      {at}.attn.out : RowLinear"]
        lines += [f"    {at}.mlp : EngineMLP", f"      {at}.mlp.down_proj : RowLinear"]
    return [*lines, "  transformer.ln_f : RMSNorm", "  lm_head : Linear"]


def test_a_rule_matches_the_whole_site() -> None:
    rule = RenameRule(r"h\.(\d+)(.*)", r"layers.\1\2")
    found = align(calls("-", "  layers.0", "    layers.0.a"), calls("-", "  h.0", "    h.0.a", "  x.h.0"), [rule])
    assert [(0, 0), (1, 1), (2, 2)] == pairs(found)
    assert ["", "layers.0", "layers.0.a", "x.h.0"] == list(found.sites.target)
    assert r"rename rule 1 (h\.(\d+)(.*) -> layers.\1\2) renamed 2 sites of the target" in found.remarks


def test_rules_follow_one_another_and_groups_may_have_names() -> None:
    rules = [RenameRule(r"h\.(?P<i>\d+)(?P<rest>\..*)?", r"layers.\g<i>\g<rest>"), RenameRule(r"(layers\.\d+)\.attn", r"\1.self_attn")]
    found = align(calls("-", "  layers.0", "    layers.0.self_attn"), calls("-", "  h.0", "    h.0.attn"), rules)
    assert ["", "layers.0", "layers.0.self_attn"] == names(found)


def test_operators_follow_their_module_or_a_rule_of_their_own() -> None:
    reference = calls("-", "  a", "    a/aten.mm#0", "    a/aten.norm#0")
    target = calls("-", "  b", "    b/aten.mm#0", "    b/npu.norm#0")
    rules = [RenameRule("b", "a"), RenameRule(r"(.*)/npu\.norm#(\d+)", r"\1/aten.norm#\2")]
    found = align(reference, target, rules)
    assert [(i, i) for i in range(4)] == pairs(found)
    assert "a/aten.mm#0" == found.sites.target[2]


def test_copies_mapped_onto_one_shared_module() -> None:
    found = align(calls("-", "  a", "  a", "  a"), calls("-", "  a0", "  a1", "  a2"), [RenameRule(r"a\d", "a")])
    assert [(i, i) for i in range(4)] == pairs(found)


def test_a_rule_that_matches_nothing_says_so() -> None:
    assert ("rename rule 1 (x -> y) matches no site of the target",) == align(calls("-"), calls("-"), [RenameRule("x", "y")]).remarks


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (RenameRule("a(", "b"), r"rename rule 2, target = 'a\('.*no regular expression"),
        (RenameRule("a", r"\1"), r"rename rule 2, target = 'a'.*'\\\\1' is no replacement"),
        (RenameRule("(a)", r"\g<x>"), "rename rule 2.*is no replacement"),
        (RenameRule("(?x) a # b", r"\3"), "rename rule 2.*is no replacement"),
    ],
)
def test_a_wrong_rule_is_named(rule: RenameRule, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        align(calls("-"), calls("-"), [RenameRule("fine", "fine"), rule])


@pytest.mark.parametrize(
    ("reference", "target"),
    [(llama(), llama(outer="")), (llama(outer=""), llama()), (llama(), engine()), (engine(), llama()), (llama(2), engine(12))],
)
def test_proposals_pair_what_names_alone_do_not(reference: list[str], target: list[str]) -> None:
    ours, theirs = calls(*reference), calls(*target)
    found = align(ours, theirs)
    assert 2 * len(found.pairs) < min(len(reference), len(target))
    assert found.proposed
    again = align(ours, theirs, found.proposed)
    assert min(len(reference), len(target)) == len(again.pairs)
    assert not again.proposed


def test_nothing_is_proposed_between_models_that_have_nothing_in_common() -> None:
    reference = calls("- : A", *(f"  conv{i} : Conv2d" for i in range(9)))
    target = calls("- : B", *(f"  head.{i}.gate : Gate" for i in range(9)))
    assert () == align(reference, target).proposed
