"""The table of sites: roll-up, folds, views, words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.listing import Sort
from layerdiff.rows.sites.table import Rows
from layerdiff.saved.comparison import Comparison
from tests.comparisons import comparison, filling_in, of_size, sites_per_step

NORM = "model.layers.3.input_layernorm"
ACT = "model.layers.20.mlp.act_fn"
FAULTS = {NORM: Verdict.DEFECT, ACT: Verdict.BROKEN}


@pytest.fixture
def rows() -> Rows:
    return Rows(comparison(faults=FAULTS))


def names(rows: Rows) -> list[str]:
    """The first cell of every line, without the type."""
    return [rows.line(i).plain[: rows.columns.site].strip().split("  ")[0] for i in range(len(rows))]


def site_of(rows: Rows, index: int) -> str | None:
    return rows.comparison.texts[int(rows.comparison.sites["site"][rows.row(index)])]


def index_of(rows: Rows, site: str) -> int:
    return next(i for i in range(len(rows)) if site_of(rows, i) == site and not rows.is_fold(i))


def test_the_first_view_opens_every_origin_and_folds_the_rest(rows: Rows) -> None:
    assert names(rows) == [
        "▾ LlamaForCausalLM",
        "▾ model",
        "embed_tokens",
        "rotary_emb",
        "▸ layers.0..2",
        "▾ layers.3",
        "input_layernorm",
        "▸ self_attn",
        "post_attention_layernorm",
        "▸ mlp",
        "▸ layers.4..19",
        "▾ layers.20",
        "input_layernorm",
        "▸ self_attn",
        "post_attention_layernorm",
        "▾ mlp",
        "gate_proj",
        "act_fn",
        "up_proj",
        "down_proj",
        "▸ layers.21..31",
        "norm",
        "lm_head",
    ]


def test_a_parent_shows_the_worst_inside_and_how_many_origins(rows: Rows) -> None:
    model, layer, fold = (rows.line(i).plain for i in (1, 5, 10))
    assert "! broken" in model and "2 origins inside" in model
    assert "✗ defect" in layer and "1 origin inside: input_layernorm" in layer
    assert "↓ inherited" in fold and "16 folded" in fold


def test_an_origin_shows_its_numbers_and_its_finding(rows: Rows) -> None:
    rows.width = 200
    expected = "input_layernorm LlamaRMSNorm 4.92e-2 4.10× ✗ defect epsilon 1e-6, reference 1e-5 (fit within 1%)"
    assert " ".join(rows.line(6).plain.split()) == expected


def test_a_broken_site_shows_nan_and_an_unknown_ratio(rows: Rows) -> None:
    assert rows.line(17).plain.split()[:6] == ["act_fn", "SiLU", "nan", "-", "!", "broken"]


@pytest.mark.parametrize("width", [16, 24, 40, 63, 64, 80, 99, 100, 120, 250])
def test_every_line_fills_the_width_exactly(rows: Rows, width: int) -> None:
    rows.width = width
    assert {rows.line(i).width for i in range(len(rows))} == {width}
    assert rows.heading().width == width


def test_worst_is_the_maximum_of_the_subtree_for_every_site() -> None:
    found = comparison(layers=4, faults={"model.layers.1.mlp.up_proj": Verdict.PRECISION}, target_only=["lm_head"])
    rows = Rows(found)
    own, tree = rows.seen.own, rows.tree
    for place in range(len(tree)):
        judged = [int(v) for v in own[place : tree.end[place]] if v < Verdict.NOT_COMPARABLE]
        assert rows.seen.worst[place] == (max(judged) if judged else own[place])


def test_opening_and_closing_a_fold(rows: Rows) -> None:
    before = names(rows)
    assert rows.open(10) == 10
    assert names(rows)[10:27] == [f"▸ layers.{i}" for i in range(4, 20)] + ["▾ layers.20"]
    cursor = rows.close(15)
    assert (cursor, names(rows)) == (10, before)


def test_left_closes_then_goes_to_the_parent(rows: Rows) -> None:
    mlp = index_of(rows, "model.layers.20.mlp")
    act = index_of(rows, ACT)
    assert rows.close(act) == mlp
    assert rows.close(mlp) == mlp
    assert names(rows)[mlp : mlp + 2] == ["▸ mlp", "▸ layers.21..31"]
    assert rows.close(mlp) == index_of(rows, "model.layers.20")


def test_right_on_an_open_call_goes_inside(rows: Rows) -> None:
    assert rows.open(0) == 1
    assert rows.open(2) == 2, "a site without calls inside stays"


def test_everything_open_lists_every_site_in_execution_order(rows: Rows) -> None:
    before = names(rows)
    rows.toggle_all()
    assert [rows.row(i) for i in range(len(rows))] == list(range(sites_per_step(32)))
    rows.close(index_of(rows, "model.layers.0"))
    assert len(rows) == sites_per_step(32) - 12
    rows.toggle_all()
    assert names(rows) == before


def test_revealing_a_folded_site_opens_only_what_hides_it(rows: Rows) -> None:
    wanted = index = rows.reveal(rows.comparison.sites["site"].tolist().index(rows.comparison.texts.intern("model.layers.9.mlp.up_proj")))
    assert site_of(rows, wanted) == "model.layers.9.mlp.up_proj"
    assert rows.find(rows.row(index)) == index


def test_a_hidden_site_is_found_on_the_line_that_hides_it(rows: Rows) -> None:
    inside = rows.comparison.sites["site"].tolist().index(rows.comparison.texts.intern("model.layers.9.mlp"))
    assert rows.find(inside) == 10


def test_next_origin_goes_round(rows: Rows) -> None:
    first, second = rows.origin_rows()
    assert [rows.next_origin(None), rows.next_origin(first), rows.next_origin(second)] == [first, second, first]
    assert [rows.next_origin(first, back=True), rows.next_origin(second, back=True)] == [second, first]
    assert Rows(comparison()).next_origin(0) is None


def test_only_origins(rows: Rows) -> None:
    rows.show(only_origins=True)
    assert names(rows) == [NORM, ACT]
    assert rows.hidden() == "2 origins, 420 other sites hidden: o shows them"


@pytest.mark.parametrize(
    ("query", "number"),
    [("q_proj", 32), ("Q_PROJ", 0), ("layers.3.", 12), ("*norm", 65), ("*.mlp", 32), ("model.layers.?.mlp", 10), ("nowhere", 0), ("[", 0)],
)
def test_search_by_part_or_glob(rows: Rows, query: str, number: int) -> None:
    rows.show(query=query)
    assert len(rows) == number


def test_a_search_says_how_many_it_found(rows: Rows) -> None:
    rows.show(query="q_proj")
    assert rows.hidden() == "32 of 422 sites match 'q_proj': esc shows all"


def test_a_search_among_origins_counts_what_they_hide(rows: Rows) -> None:
    """`q_proj` is in the names of 32 sites, none of them an origin; `mlp` in five sites of each of 32 layers, one an origin."""
    rows.show(only_origins=True, query="q_proj")
    assert rows.nothing().plain == "no origin matches: 32 other sites do, o shows them"
    assert rows.hidden() == "0 of 2 origins match 'q_proj' · 32 other matching sites hidden: o shows them, esc shows all"
    rows.show(query="mlp")
    assert (names(rows), rows.hidden()) == (
        [ACT],
        "1 of 2 origins match 'mlp' · 159 other matching sites hidden: o shows them, esc shows all",
    )
    rows.show(query="nowhere")
    assert rows.nothing().plain == "no origin matches, and no other site: o lists all"
    rows.show(only_origins=False)
    assert rows.nothing().plain == "no site matches"


def test_sorted_by_difference_the_unknown_come_last(rows: Rows) -> None:
    rows.show(sort=Sort.DIFFERENCE)
    values = [rows.seen.difference[rows.tree.place_of[rows.row(i)]] for i in range(len(rows))]
    known = [v for v in values if not np.isnan(v)]
    assert site_of(rows, 0) == ACT, "not finite is the largest of all"
    assert known == sorted(known, reverse=True)
    assert all(np.isnan(v) for v in values[len(known) :])


def test_what_is_hidden_adds_up(rows: Rows) -> None:
    assert rows.hidden() == "20 of 422 sites on view · 30 folded · 372 in closed calls · x opens all"


def test_steps_are_the_top_of_the_tree() -> None:
    rows = Rows(comparison(layers=2, steps=6, faults={"lm_head": Verdict.UNEXPLAINED}))
    assert names(rows)[0] == "▾ LlamaForCausalLM step 0"
    assert names(rows)[-1] == "▸ LlamaForCausalLM step 1..5"
    head = rows.origin_rows()[0]
    following = rows.same_site(head)
    assert following == head + sites_per_step(2)
    assert rows.same_site(following, back=True) == head
    assert rows.same_site(head, back=True) is None


def test_calls_without_a_partner_say_why_and_do_not_hide_in_folds() -> None:
    rows = Rows(comparison(layers=9, identical_layers=9, reference_only=["model.layers.4.mlp.act_fn"], target_only=["lm_head"]))
    assert names(rows)[4:7] == ["▸ layers.0..3", "▸ layers.4", "▸ layers.5..8"]
    assert "1 not comparable inside" in rows.line(5).plain
    rows.width = 160
    assert "∅ not-comparable    target only: no call of the reference has this site" in rows.line(len(rows) - 1).plain


def test_another_judgement_keeps_the_view(rows: Rows) -> None:
    rows.open(10)
    before = names(rows)
    relaxed = replace(rows.comparison, origins=rows.comparison.origins[:1], profile={"name": "relaxed"})
    rows.judged(relaxed)
    assert names(rows) == before
    assert len(rows.origin_rows()) == 1


def test_a_running_comparison_fills_in() -> None:
    states = [state.comparison for state in filling_in(comparison(faults=FAULTS), steps=4)]
    rows = Rows(states[0])
    assert names(rows)[4] == "▸ layers.0..31"
    assert "· pending" in rows.line(4).plain
    for state in states[1:]:
        rows.judged(state)
    assert len(rows.origin_rows()) == 2
    assert names(rows)[4:9] == ["▸ layers.0..2", "▸ layers.3", "▸ layers.4..19", "▸ layers.20", "▸ layers.21..31"]


def test_numbers_from_statistics_are_marked() -> None:
    found = comparison(layers=1, identical_layers=0)
    pairs = dict(found.pairs)
    pairs["source"] = np.ones_like(pairs["source"])
    pairs["statistic"] = np.full_like(pairs["statistic"], 3e-4)
    rows = Rows(replace(found, pairs=pairs))
    assert "~3.00e-4" in rows.line(len(rows) - 1).plain


def test_hostile_names_stay_on_their_line() -> None:
    evil = {NORM: "model.\x1b[2J[bold]\u202e编码\n" + "x" * 9000, ACT: "a|b<c>"}
    rows = Rows(comparison(faults=FAULTS, rename=evil))
    rows.show(only_origins=True)
    for width in (24, 80, 120):
        rows.width = width
        assert [rows.line(i).width for i in range(len(rows))] == [width, width]
        assert all(rows.line(i).plain.isprintable() for i in range(len(rows)))
    assert rows.line(0).plain.startswith("model.\\x1b[2J[b…")


def test_an_empty_comparison_has_no_lines() -> None:
    full = comparison(layers=1)
    empty = replace(full, sites={k: v[:0] for k, v in full.sites.items()}, pairs={k: v[:0] for k, v in full.pairs.items()}, origins=())
    rows = Rows(empty)
    assert (len(rows), rows.next_origin(None), rows.hidden()) == (0, None, "all 0 sites on view")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["open", "close", "toggle", "reveal", "all"]), st.integers(0, 10**6)), max_size=25))
def test_any_way_of_folding_shows_each_site_at_most_once(steps: list[tuple[str, int]]) -> None:
    rows = Rows(_SMALL)
    for what, number in steps:
        if what == "all":
            rows.toggle_all()
        elif what == "reveal":
            row = number % len(rows.tree)
            assert rows.row(rows.reveal(row)) == row
        else:
            cursor = getattr(rows, what)(number % len(rows))
            assert 0 <= cursor < len(rows)
    shown = [place for i in range(len(rows)) for place in rows.members(i)]
    assert shown == sorted(set(shown))
    assert all(rows.line(i).width == rows.width for i in range(len(rows)))
    for place in shown:
        assert all(above in shown for above in rows.tree.ancestors(place))


_SMALL: Comparison = comparison(layers=7, steps=4, faults={"model.layers.3.mlp.act_fn": Verdict.UNEXPLAINED})


def test_a_hundred_thousand_sites_word_only_what_is_asked_for() -> None:
    rows = Rows(of_size(100_000))
    assert len(rows) < 40
    rows.toggle_all()
    assert len(rows) == len(rows.tree) >= 100_000
    assert rows.line(len(rows) - 1).width == 120
