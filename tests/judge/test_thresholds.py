"""Each rule of the threshold judge on numbers written by hand. u is 2^-24 for float32 and 2^-8 for bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.judge.profiles import Profile, Threshold, load_profile
from layerdiff.judge.tables import Source, Verdict
from layerdiff.trace.schema import CallKind, Role
from tests.judge.judging import Tables, one_module

U32, U16 = 2.0**-24, 2.0**-8


def verdict(tables: Tables, row: int = 0, profile: Profile | None = None) -> Verdict:
    return Verdict(int(tables.judge(profile).verdict[row]))


@pytest.mark.parametrize(
    ("type", "dtype", "limit"),
    [
        ("LlamaRMSNorm", "float32", 18 * U32),
        ("Linear", "float32", 66 * U32),
        ("SiLUActivation", "float32", 10 * U32),
        ("Linear", "bfloat16", 2 * U16 + 64 * U32),
        ("Embedding", "bfloat16", 2 * U16),
        ("Linear", "float16", 2 * 2.0**-11 + 64 * U32),
        ("Linear", "float64", 66 * 2.0**-53),
    ],
)
def test_what_a_module_may_add_on_equal_inputs(type: str, dtype: str, limit: float) -> None:
    assert verdict(one_module(type, None, 0.99 * limit, dtype=dtype)) == Verdict.ORDER_CONSISTENT
    assert verdict(one_module(type, None, 1.01 * limit, dtype=dtype)) == Verdict.UNEXPLAINED
    judged = one_module(type, None, 1.01 * limit, dtype=dtype).judge()
    assert judged.allowed[0] == pytest.approx(limit, rel=1e-12)
    assert judged.measured[0] == 1.01 * limit


def test_the_coarser_dtype_of_the_two_counts() -> None:
    assert verdict(one_module("Linear", None, U16, dtype="float32", target_dtype="bfloat16")) == Verdict.ORDER_CONSISTENT
    assert verdict(one_module("Linear", None, U16, dtype="float32")) == Verdict.UNEXPLAINED


def test_what_came_in_may_be_magnified_by_the_gain_of_the_class() -> None:
    came = 1e-4
    assert verdict(one_module("Linear", came, 7.9 * came)) == Verdict.INHERITED
    assert verdict(one_module("Linear", came, 8.1 * came + 66 * U32)) == Verdict.UNEXPLAINED


def test_equal_bits_are_identical_whatever_came_in() -> None:
    assert verdict(one_module("Linear", None, None)) == Verdict.IDENTICAL
    assert verdict(one_module("Linear", 0.1, None)) == Verdict.IDENTICAL


def test_one_wrong_row_shows_in_the_largest_element_alone() -> None:
    tables = one_module("Linear", None, 1e-6, max_abs=0.5, max_reference=1.0)
    judged = tables.judge()
    assert Verdict(int(judged.verdict[0])) == Verdict.UNEXPLAINED
    assert judged.measured[0] == 0.5
    assert judged.allowed[0] == pytest.approx(4 * 66 * U32)
    assert tables.texts[int(judged.rule[0])] == "threshold: largest element error, linear, float32"


def test_a_new_nan_is_broken_and_one_that_came_in_is_not() -> None:
    nan = {"nonfinite_target": 3, "nonfinite_differ": 3}
    judged = one_module("Linear", None, 0.0, **nan).judge()
    assert (Verdict(int(judged.verdict[0])), judged.measured[0], judged.allowed[0]) == (Verdict.BROKEN, 3.0, 0.0)
    tables = Tables()
    row = tables.site("m", "Linear")
    tables.pair(row, Role.INPUT, 0.0, **nan)
    tables.pair(row, Role.OUTPUT, 0.0, **nan)
    assert verdict(tables) == Verdict.INHERITED


def test_finite_where_the_reference_is_not_is_unexplained() -> None:
    assert verdict(one_module("Linear", None, 0.0, nonfinite_reference=3, nonfinite_differ=3)) == Verdict.UNEXPLAINED


def test_integers_decided_from_floats_flip_and_excuse_what_follows() -> None:
    tables = Tables()
    top = tables.site("", "Moe")
    tables.pair(top, Role.INPUT, 1e-3, dtype="bfloat16")
    router = tables.site("router", "Router", top)
    tables.pair(router, Role.INPUT, 1e-3, dtype="bfloat16")
    tables.pair(router, Role.OUTPUT, 0.0, dtype="int64", mismatched=2)
    experts = tables.site("experts", "Experts", top)
    tables.pair(experts, Role.INPUT, 0.0, dtype="int64", mismatched=2)
    tables.pair(experts, Role.OUTPUT, 0.9, dtype="bfloat16")
    assert [verdict(tables, row) for row in (router, experts)] == [Verdict.FLIP, Verdict.INHERITED]


def test_integers_made_from_equal_integers_have_no_excuse() -> None:
    tables = Tables()
    row = tables.site("positions", "Positions")
    tables.pair(row, Role.INPUT, None, dtype="int64")
    tables.pair(row, Role.OUTPUT, 0.0, dtype="int64", mismatched=1)
    assert verdict(tables) == Verdict.UNEXPLAINED


def test_a_mask_that_differs_while_floats_agree_is_the_fault_of_who_made_it() -> None:
    tables = Tables()
    top = tables.site("", "Model")
    tables.pair(top, Role.INPUT, None, dtype="int64")
    embedding = tables.site("embed", "Embedding", top)
    tables.pair(embedding, Role.OUTPUT, 1e-3, dtype="bfloat16")
    layer = tables.site("layer", "Layer", top)
    tables.pair(layer, Role.INPUT, 0.0, dtype="bool", mismatched=5)
    tables.pair(layer, Role.OUTPUT, 0.5, dtype="bfloat16")
    assert [verdict(tables, row) for row in (top, embedding, layer)] == [Verdict.UNEXPLAINED, Verdict.ORDER_CONSISTENT, Verdict.INHERITED]


class TestRegions:
    """A root with children a, b: b's input is what the root's own glue makes of a's output."""

    def tables(self, *, out_a: float | None, into_b: float | None, out_b: float | None, out: float | None) -> Tables:
        tables = Tables()
        top = tables.site("", "Model")
        tables.pair(top, Role.INPUT, None)
        for name, into, returned in (("a", None, out_a), ("b", into_b, out_b)):
            row = tables.site(name, "Linear", top)
            tables.pair(row, Role.INPUT, into)
            tables.pair(row, Role.OUTPUT, returned)
        tables.pair(top, Role.OUTPUT, out)
        return tables

    def test_a_faulty_child_is_the_only_origin(self) -> None:
        tables = self.tables(out_a=0.1, into_b=0.1, out_b=0.1, out=0.1)
        assert [verdict(tables, row) for row in range(3)] == [Verdict.INHERITED, Verdict.UNEXPLAINED, Verdict.INHERITED]

    def test_a_second_fault_behind_a_small_first_is_found(self) -> None:
        tables = self.tables(out_a=1e-4, into_b=1e-4, out_b=0.1, out=0.1)
        assert [verdict(tables, row) for row in range(3)] == [Verdict.INHERITED, Verdict.UNEXPLAINED, Verdict.UNEXPLAINED]

    def test_glue_between_children_is_the_parents(self) -> None:
        tables = self.tables(out_a=None, into_b=0.1, out_b=0.1, out=0.1)
        assert [verdict(tables, row) for row in range(3)] == [Verdict.UNEXPLAINED, Verdict.IDENTICAL, Verdict.INHERITED]
        judged = tables.judge()
        assert tables.pairs["site"][int(judged.pair[0])] == 2

    def test_glue_after_the_last_child_is_the_parents(self) -> None:
        tables = self.tables(out_a=None, into_b=None, out_b=None, out=0.1)
        assert [verdict(tables, row) for row in range(3)] == [Verdict.UNEXPLAINED, Verdict.IDENTICAL, Verdict.IDENTICAL]


def test_another_weight_excuses_its_own_module_only() -> None:
    tables = Tables()
    for name, weight in (("a", 0.3), ("b", None)):
        row = tables.site(name, "Linear")
        tables.pair(row, Role.INPUT, None)
        tables.pair(row, Role.WEIGHT, weight)
        tables.pair(row, Role.OUTPUT, 0.4)
    assert [verdict(tables, row) for row in (0, 1)] == [Verdict.INHERITED, Verdict.UNEXPLAINED]


def test_a_weight_rounded_to_the_run_s_dtype_is_no_other_weight() -> None:
    tables = Tables()
    row = tables.site("a", "Linear")
    tables.pair(row, Role.INPUT, None)
    tables.pair(row, Role.WEIGHT, 0.4 * U16, dtype="float32", target_dtype="bfloat16")
    tables.pair(row, Role.OUTPUT, 0.5, dtype="float32", target_dtype="bfloat16")
    assert verdict(tables) == Verdict.UNEXPLAINED


def test_recorded_statistics_decide_where_there_are_no_bytes() -> None:
    tables = one_module("Linear", None, 0.0, source=int(Source.STATISTICS), max_abs=np.nan, statistic=0.2)
    tables.pairs["rel_l2"][1] = np.nan
    tables.pairs["equal"][1] = 0
    judged = tables.judge()
    assert Verdict(int(judged.verdict[0])) == Verdict.UNEXPLAINED
    assert judged.measured[0] == 0.2
    assert tables.texts[int(judged.rule[0])] == "threshold: recorded statistics, linear, float32"


def test_nothing_recorded_is_not_comparable() -> None:
    assert verdict(one_module("Linear", None, 0.0, source=int(Source.NOTHING))) == Verdict.NOT_COMPARABLE


def test_an_unpaired_call_keeps_its_verdict_and_makes_its_work_the_parents() -> None:
    tables = Tables()
    top = tables.site("", "LlamaAttention")
    tables.pair(top, Role.INPUT, 1e-4)
    tables.site("fused", "Linear", top, reference_call=-1, verdict=int(Verdict.NOT_COMPARABLE))
    child = tables.site("o", "Linear", top)
    tables.pair(child, Role.INPUT, 1.5e-3)
    tables.pair(child, Role.OUTPUT, 1.5e-3)
    tables.pair(top, Role.OUTPUT, 1.5e-3)
    assert [verdict(tables, row) for row in range(3)] == [Verdict.INHERITED, Verdict.NOT_COMPARABLE, Verdict.INHERITED]


class TestProfiles:
    def test_relaxed_lets_matrix_products_be_coarser_and_norms_not(self) -> None:
        relaxed = load_profile("relaxed")
        assert verdict(one_module("Linear", None, 1e-3)) == Verdict.UNEXPLAINED
        assert verdict(one_module("Linear", None, 1e-3), profile=relaxed) == Verdict.ORDER_CONSISTENT
        assert verdict(one_module("LlamaRMSNorm", None, 1e-3), profile=relaxed) == Verdict.UNEXPLAINED

    def test_tf32_alone_allows_two_of_its_roundoffs(self) -> None:
        profile = Profile("mine", frozenset({"tf32"}))
        assert verdict(one_module("Linear", None, 1.9 * 2.0**-11), profile=profile) == Verdict.ORDER_CONSISTENT
        assert verdict(one_module("Linear", None, 2.1 * 2.0**-11), profile=profile) == Verdict.UNEXPLAINED

    def test_the_first_threshold_that_matches_holds(self) -> None:
        tables = one_module("Linear", None, 1e-3)
        wide, narrow = Threshold("*", local=1.0), Threshold("m", "float32", local=1e-9)
        assert verdict(tables, profile=Profile("mine", thresholds=(wide, narrow))) == Verdict.ORDER_CONSISTENT
        assert verdict(tables, profile=Profile("mine", thresholds=(narrow, wide))) == Verdict.UNEXPLAINED
        assert verdict(tables, profile=Profile("mine", thresholds=(Threshold("m", "bfloat16", local=1.0),))) == Verdict.UNEXPLAINED


def test_an_empty_table_is_judged() -> None:
    assert len(Tables().judge().verdict) == 0


def test_integers_that_glue_makes_of_equal_values_have_no_excuse() -> None:
    tables = Tables()
    top = tables.site("", "Model")
    tables.pair(top, Role.INPUT, None, dtype="int64")
    embedding = tables.site("embed", "Embedding", top)
    tables.pair(embedding, Role.OUTPUT, None)
    rotary = tables.site("rotary", "Rotary", top)
    tables.pair(rotary, Role.INPUT, 0.0, dtype="int64", mismatched=7)
    tables.pair(rotary, Role.OUTPUT, 0.5)
    tables.pair(top, Role.OUTPUT, 0.5)
    assert [verdict(tables, row) for row in range(3)] == [Verdict.UNEXPLAINED, Verdict.IDENTICAL, Verdict.INHERITED]


def test_integers_that_glue_makes_of_floats_that_differ_flip() -> None:
    tables = Tables()
    top = tables.site("", "Model")
    embedding = tables.site("embed", "Embedding", top)
    tables.pair(embedding, Role.OUTPUT, 1e-3, dtype="bfloat16")
    experts = tables.site("experts", "Experts", top)
    tables.pair(experts, Role.INPUT, 0.0, dtype="int64", mismatched=1)
    tables.pair(experts, Role.OUTPUT, 0.5, dtype="bfloat16")
    assert [verdict(tables, row) for row in (0, 2)] == [Verdict.FLIP, Verdict.INHERITED]


def test_positions_are_decided_by_no_float() -> None:
    """What a rotary module is handed counts tokens, in a run in bf16 too, where the embeddings before it differ."""
    tables = Tables()
    top = tables.site("", "Model")
    embedding = tables.site("embed", "Embedding", top)
    tables.pair(embedding, Role.OUTPUT, 1e-3, dtype="bfloat16")
    rotary = tables.site("rotary_emb", "LlamaRotaryEmbedding", top)
    tables.pair(rotary, Role.INPUT, 0.0, dtype="int64", mismatched=7)
    tables.pair(rotary, Role.OUTPUT, 0.5, dtype="bfloat16")
    assert [verdict(tables, row) for row in (0, 2)] == [Verdict.UNEXPLAINED, Verdict.INHERITED]


def test_positions_magnify_only_what_comes_in_through_frequencies() -> None:
    for role, expected in ((Role.WEIGHT, Verdict.INHERITED), (Role.INPUT, Verdict.UNEXPLAINED)):
        tables = Tables()
        row = tables.site("rotary", "RotaryEmbedding")
        tables.pair(row, role, 1e-3, dtype="float32", target_dtype="bfloat16")
        tables.pair(row, Role.OUTPUT, 0.3, dtype="float32", target_dtype="bfloat16", target_shape=tables.texts.intern("[1,400,16]"))
        assert verdict(tables) == expected


def test_statistics_that_differ_bound_nothing_from_above() -> None:
    tables = Tables()
    row = tables.site("m", "Linear")
    unknown = {"source": int(Source.STATISTICS), "max_abs": np.nan}
    tables.pair(row, Role.INPUT, 0.0, statistic=1e-6, **unknown)
    tables.pair(row, Role.OUTPUT, 0.0, statistic=0.3, **unknown)
    assert verdict(tables) == Verdict.INHERITED


@pytest.mark.parametrize(("says", "expected"), [(1, Verdict.INHERITED), (0, Verdict.UNEXPLAINED)])
def test_fingerprints_tell_another_weight_from_a_rounded_one(says: int, expected: Verdict) -> None:
    tables = Tables()
    row = tables.site("m", "Linear")
    tables.pair(row, Role.INPUT, None)
    weight = {"source": int(Source.STATISTICS), "max_abs": np.nan, "statistic": 1e-9, "mismatched": says}
    tables.pair(row, Role.WEIGHT, 0.0, dtype="float32", target_dtype="bfloat16", **weight)
    tables.pair(row, Role.OUTPUT, 0.5, dtype="float32", target_dtype="bfloat16")
    assert verdict(tables) == expected


def test_a_child_whose_results_were_not_compared_excuses_what_follows() -> None:
    tables = Tables()
    top = tables.site("", "Model")
    tables.pair(top, Role.INPUT, None)
    child = tables.site("layer", "Layer", top, statement=tables.texts.intern("Not compared: out only in the reference"))
    tables.pair(child, Role.INPUT, None)
    after = tables.site("next", "Layer", top)
    tables.pair(after, Role.INPUT, 0.9)
    tables.pair(after, Role.OUTPUT, 0.9)
    tables.pair(top, Role.OUTPUT, 0.9)
    assert [verdict(tables, row) for row in range(3)] == [Verdict.INHERITED, Verdict.NOT_COMPARABLE, Verdict.INHERITED]


@pytest.mark.parametrize(("statistic", "expected"), [(0.9 * 2.0**-20, Verdict.UNEXPLAINED), (1.2 * 2.0**-20, Verdict.INHERITED)])
def test_statistics_of_one_weight_in_two_dtypes_are_sums_with_errors_of_their_own(statistic: float, expected: Verdict) -> None:
    tables = Tables()
    row = tables.site("m", "Linear")
    tables.pair(row, Role.INPUT, None)
    weight = {"source": int(Source.STATISTICS), "max_abs": np.nan, "statistic": statistic}
    tables.pair(row, Role.WEIGHT, 0.0, dtype="float32", target_dtype="float64", **weight)
    tables.pair(row, Role.OUTPUT, 0.5, dtype="float32", target_dtype="float64")
    assert verdict(tables) == expected


@pytest.mark.parametrize(("position", "expected"), [(399.0, Verdict.INHERITED), (9.0, Verdict.UNEXPLAINED)])
def test_a_short_table_at_a_far_position_has_that_many_positions(position: float, expected: Verdict) -> None:
    tables = Tables()
    row = tables.site("rotary", "RotaryEmbedding")
    tables.pair(row, Role.INPUT, None, dtype="int64", max_reference=position, mismatched=0)
    tables.pair(row, Role.WEIGHT, 1e-3, dtype="float32", target_dtype="bfloat16")
    tables.pair(row, Role.OUTPUT, 0.3, dtype="float32", target_dtype="bfloat16", target_shape=tables.texts.intern("[1,1,16]"))
    assert verdict(tables) == expected


@pytest.mark.parametrize(("factor", "expected"), [(0.9, Verdict.INHERITED), (1.2, Verdict.UNEXPLAINED)])
def test_frequencies_known_by_statistics_alone_may_have_been_rounded_by_half_a_roundoff(factor: float, expected: Verdict) -> None:
    tables = Tables()
    row = tables.site("rotary", "RotaryEmbedding")
    tables.pair(row, Role.INPUT, None, dtype="int64", max_reference=99.0, mismatched=0)
    numbers = {"source": int(Source.STATISTICS), "max_abs": np.nan, "statistic": 1e-9}
    tables.pair(row, Role.WEIGHT, 0.0, dtype="float32", target_dtype="bfloat16", **numbers)
    tables.pair(row, Role.OUTPUT, factor * (100 * U16 / 2 + 2 * U16), dtype="float32", target_dtype="bfloat16")
    assert verdict(tables) == expected


def test_operators_excuse_nothing_and_are_handed_nothing() -> None:
    """What an operator makes inside a module does not come into it: only the module's own inputs do."""
    tables = Tables()
    norm = tables.site("m", "RMSNorm")
    tables.pair(norm, Role.INPUT, None)
    add = tables.site("m/aten.add.Tensor#0", "", norm, kind=int(CallKind.OPERATOR))
    tables.pair(add, Role.INPUT, None)
    tables.pair(add, Role.OUTPUT, 1e-2)
    rsqrt = tables.site("m/aten.rsqrt.default#0", "", norm, kind=int(CallKind.OPERATOR))
    tables.pair(rsqrt, Role.INPUT, 1e-2)
    tables.pair(rsqrt, Role.OUTPUT, 5e-3)
    tables.pair(norm, Role.OUTPUT, 1e-4)
    judged = tables.judge()
    assert Verdict.UNEXPLAINED == judged.verdict[norm]
    assert 1e-4 == judged.measured[norm]  # the output, not what it hands to rsqrt


@pytest.mark.parametrize(("out", "verdict"), [(1.0, Verdict.UNEXPLAINED), (0.1, Verdict.INHERITED)])
def test_values_that_are_not_put_together_excuse_only_what_dealt_tokens_make(out: float, verdict: Verdict) -> None:
    """A module around a child whose result is in parts that fit nowhere: wholly wrong results of its own are not that child's."""
    tables = Tables()
    top = tables.site("mlp", "MLP")
    tables.pair(top, Role.INPUT, 1e-7)
    apart = {"source": int(Source.NOTHING)}
    act, down = tables.site("mlp.act", "SiLU", top), tables.site("mlp.down", "Linear", top)
    tables.pair(act, Role.INPUT, 1e-7)
    tables.pair(act, Role.OUTPUT, np.inf, **apart)
    tables.pair(down, Role.INPUT, np.inf, **apart)
    tables.pair(down, Role.OUTPUT, out)
    tables.pair(top, Role.OUTPUT, out)
    assert verdict == Verdict(int(tables.judge().verdict[top]))
