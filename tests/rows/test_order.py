"""A reduction-order analysis as lines: what each part says, at every width, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layerdiff.arithmetic.orders.analysis import Hypothesis, OrderReport, TermRange
from layerdiff.arithmetic.orders.analysis import Test as Rung
from layerdiff.rows.order.candidates import candidate_lines
from layerdiff.rows.order.error import error_lines, profile_lines, term_lines
from layerdiff.rows.order.ladder import ladder_lines, number
from layerdiff.rows.order.report import mark_of, order_lines, sides_of, title_line
from layerdiff.rows.section import bar, heading
from layerdiff.rows.tones import Line, Tone
from tests.rows.order_reports import (
    all_reports,
    attention,
    bf16_partials,
    dropped_split,
    no_order,
    not_valid,
    other_order,
    own_mm,
    single,
    split_k,
    too_few,
)

REPORTS = all_reports()


def text(lines: list[Line]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def said(report: OrderReport, width: int = 120) -> str:
    return text(order_lines(report, width))


@pytest.mark.parametrize("width", [1, 40, 80, 120, 300])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_no_line_is_wider_than_the_screen(report: OrderReport, width: int) -> None:
    assert [] == [line.plain for line in order_lines(report, width) if line.width > max(40, width)]
    assert title_line(report, width).width <= width


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_it_begins_with_the_verdict_its_glyph_and_the_sentence(report: OrderReport) -> None:
    shown = mark_of(report.verdict)
    first = order_lines(report, 300)[0]
    assert f"{shown.glyph} {report.verdict}  {report.statement}" == first.plain
    assert shown.tone == first.segments[0].tone


def test_sections_stand_in_the_order_in_which_a_reader_doubts() -> None:
    lines = [line.plain for line in order_lines(single(dropped_split()), 100)]
    titles = [line.split("── ")[1].split(" ──")[0].strip("─ ") for line in lines if line.startswith("── ")]
    expected = ["what was added", "the tests", "candidate orders", "how far off", "terms", "where it sits", "what to do"]
    assert expected == titles


def test_a_part_with_nothing_to_say_is_left_out() -> None:
    made = said(single(no_order()))
    assert "── terms" not in made and "── where it sits" not in made
    assert "how far off" not in said(REPORTS["not_valid"])


def test_what_was_added() -> None:
    made = said(single(no_order()))
    assert "operands     [512, 4096] bf16 · [4096, 1024] bf16 → [512, 1024] bf16" in made
    assert "terms        4096 a result" in made
    assert "accumulator  float32, assumed" in made
    assert "results      524,288, 65,536 compared (64 of 512 rows, evenly spaced); 640 tell orders apart" in made
    assert "accumulator  float32, as said by the device file" in said(single(dropped_split()))


def test_the_deciding_test_is_marked_in_the_tone_of_the_verdict() -> None:
    lines = list(ladder_lines(dropped_split(), Tone.FAULT, 160))
    marked = [line for line in lines if line.plain.startswith("▸")]
    assert 1 == len(marked)
    assert (
        "▸   7 structure tests and fits                        ✓ holds   -0.998 of 0.006    c is -0.998 over [1024, 2048), "
        "where noise makes 0.006" == marked[0].plain
    )
    assert Tone.FAULT == marked[0].segments[0].tone
    assert "      · not asked" not in text(lines)
    assert "    · not asked: 6 less precision, bit by bit, 7 structure tests and fits" in text(
        list(ladder_lines(split_k(), Tone.WITHIN, 100))
    )


def test_a_test_that_could_not_be_asked_says_why() -> None:
    lines = [line.plain.rstrip() for line in ladder_lines(not_valid(), Tone.UNKNOWN, 100)]
    at = next(i for i, line in enumerate(lines) if line.startswith("▸"))
    assert "▸   4 error over sigma                                · not asked" == lines[at]
    assert "      4096 terms times the unit of bfloat16 is 16, over 0.25: not valid" == lines[at + 1]


def test_on_a_narrow_screen_a_sentence_goes_below_its_test() -> None:
    lines = [line.plain.rstrip() for line in ladder_lines(split_k(), Tone.WITHIN, 80)]
    at = next(i for i, line in enumerate(lines) if line.startswith("▸"))
    assert "▸   5 orders at the declared accumulator, bit by bit  ✓ holds  0 of 0.0001" == lines[at]
    assert "      split-K 4 makes all 2735 of 2735 results that tell orders apart; the next" == lines[at + 1]


def test_on_a_narrow_screen_long_figures_go_before_the_sentence() -> None:
    lines = [line.plain.rstrip() for line in ladder_lines(dropped_split(), Tone.FAULT, 77)]
    at = next(i for i, line in enumerate(lines) if "bit by bit  – fails" in line)
    assert "    5 orders at the declared accumulator, bit by bit  – fails" == lines[at]
    assert "      0.9375 of 0.0001 · the best, split-K 4, fp32, makes 4 of 64" == lines[at + 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (0.0, "0"),
        (57.0, "57"),
        (524_288.0, "524,288"),
        (1.5, "1.5"),
        (12_345.6, "12,346"),
        (1_031_000.4, "1.03e6"),
        (float("inf"), "inf"),
        (0.01312345, "0.01312"),
        (3.7e9, "3.7e9"),
        (2e-6, "2e-6"),
    ],
)
def test_figures_of_the_ladder(value: float | None, expected: str) -> None:
    assert expected == number(value)


def test_evidence_of_the_deciding_test_follows_the_ladder() -> None:
    lines = text(list(ladder_lines(replace(split_k(), evidence={"gap": 34, "heat": {"first": 64}}), Tone.WITHIN, 100)))
    assert "  evidence     gap 34 · heat first 64" in lines


def test_winners_are_marked_with_their_other_names_and_the_gap() -> None:
    made = text(list(candidate_lines(split_k(), 120)))
    assert "  ≡ split-K 4 " in made and "2735 of 2735  fp32" in made
    assert "    the same as blocks of 1024" in made
    assert "    5 more are in the JSON, the best of them 37 of 64" in made
    assert "gap          the next, split-K 4, parts in a tree, misses 34 of 2735" in made
    assert "tried        185 × fp32 · 36 × fused units of 4 to 32 products" in made
    assert "never tried  any other order" in made


def test_less_precision_has_a_glyph_of_its_own() -> None:
    made = text(list(candidate_lines(bf16_partials(), 120)))
    assert "  ◆ 4 partial sums rounded to bf16, added in order" in made


def test_a_class_of_orders_is_said_to_be_one() -> None:
    class_ = tuple(Hypothesis(f"order {i}", (), "fp32", "declared", 30, 30, True) for i in range(9))
    made = text(list(candidate_lines(replace(split_k(), hypotheses=class_), 100)))
    assert "and 3 more that make them all: these results do not tell them apart" in made


@pytest.mark.parametrize(("made", "sure"), [(80, True), (81, False)])
def test_a_small_gap_makes_no_name(made: int, sure: bool) -> None:
    two = Hypothesis("a", (), "fp32", "declared", 100, 100, True), Hypothesis("b", (), "fp32", "declared", made, 100, False)
    lines = [line for line in candidate_lines(replace(split_k(), hypotheses=two), 100) if line.plain.startswith("  gap")]
    assert (
        f"the next, b, misses {100 - made} of 100" + ("" if sure else ": under 20, so the name is not sure") == lines[0].segments[-1].text
    )
    assert (Tone.PLAIN if sure else Tone.NOTICE) == lines[0].segments[-1].tone


def test_too_few_results_are_said() -> None:
    assert "too few results: 8 tell orders apart, 20 are needed for a name" in said(single(too_few()))


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.001, 1), (0.5, 5), (0.9999, 9), (1.0, 10)])
def test_a_bar_is_full_only_where_all_are_made(share: float, filled: int) -> None:
    assert ("━" * filled, "─" * (10 - filled)) == bar(share, 10)


def test_the_histogram_stands_over_its_axis() -> None:
    counts = [0] * 24
    counts[0], counts[12], counts[23] = 1, 100, 10
    one = replace(split_k(), histogram=tuple((-12.0 + i, n) for i, n in enumerate(counts)))
    lines = [line.plain for line in error_lines(one, 42)]
    rows = [line.partition("│")[2] for line in lines[1:6]]
    assert "            █" == rows[0], "the most, one cell for each of the 24 bins"
    assert " " * 12 + "█" + " " * 10 + "▅" == rows[2], "40 eighths x log(11) / log(101) = 20.8"
    assert "▆" == rows[4][0], "40 eighths x log(2) / log(101) = 6.0: one result of a hundred is still seen"
    axis = lines[6]
    assert [axis.index("└") + at for at in (6, 12, 18, 24)] == [i for i, character in enumerate(axis) if character == "┴"]
    assert "-12" in lines[7] and "+12 σ" in lines[7]


def test_what_is_over_its_limit_is_said_in_words() -> None:
    made = text(list(error_lines(dropped_split(), 100)))
    assert "  rms          370,000 of 1.5 allowed  ▲ over" in made
    assert "  chain        as 2.4e14 additions in float32 one after the other would make; this sum has 4096" in made
    assert "  largest      2.1 of 12 allowed  ✓ within" in text(list(error_lines(own_mm(), 100)))


def test_missing_terms_are_drawn_where_they_are() -> None:
    lines = [line.plain for line in term_lines(dropped_split(), 84)]
    strip = lines[1].partition("0 ")[2].removesuffix(" 4096")
    assert 64 == len(strip)
    assert "─" * 16 + "╳" * 16 + "─" * 32 == strip
    assert "  ╳╳ [1024, 2048)      missing        c -0.998 ± 0.0014   part 1 of 4, counted from 0" == lines[2]


@pytest.mark.parametrize(
    ("share", "glyph", "word"), [(1.03, "╪", "counted twice"), (0.4, "≁", "too large"), (-0.3, "≁", "too small"), (-1.0, "╳", "missing")]
)
def test_every_kind_of_stretch_has_a_glyph_and_a_word(share: float, glyph: str, word: str) -> None:
    one = replace(dropped_split(), ranges=(TermRange(0, 2048, share, 0.01), TermRange(2048, 4096, 0.0, 0.01)))
    lines = [line.plain for line in term_lines(one, 100)]
    assert glyph in lines[1]
    assert lines[2].startswith(f"  {glyph}{glyph} [0, 2048)") and word in lines[2]


def test_neighbours_of_one_kind_are_one_stretch_with_the_noise_of_their_mean() -> None:
    ranges = tuple(TermRange(k, k + 64, share, 0.04) for k, share in zip(range(0, 256, 64), (0.96, 1.04, 0.01, -1.02), strict=True))
    lines = [line.plain for line in term_lines(replace(dropped_split(), ranges=ranges, terms=256), 100)]
    assert [
        "  ╪╪ [0, 128)          counted twice  c +1 ± 0.028   part 0 of 2, counted from 0",
        "  ╳╳ [192, 256)        missing        c -1.02 ± 0.04   part 3 of 4, counted from 0",
    ] == lines[2:]


def test_what_rounding_does_to_terms_is_no_fault_where_the_verdict_is_none() -> None:
    one = replace(split_k(), ranges=(TermRange(0, 2048, -1e-7, 1e-9), TermRange(2048, 4096, -2e-7, 1e-9)))
    assert "✓ every term is there, and once: |c| at most 2e-07" in text(list(term_lines(one, 100)))
    assert "≁≁ [0, 4096)" in text(list(term_lines(replace(one, verdict="unexplained"), 100)))


def test_all_terms_there() -> None:
    assert "✓ every term is there, and once: |c| at most 1.1e-06, where noise of this size makes 2.2e-06" in said(single(split_k()))


def test_a_concentrated_error_is_said_with_a_glyph() -> None:
    made = said(single(dropped_split()))
    assert "▲ columns 272 to 287 hold 90% of it" in made
    assert "▲ spread" not in made


def test_two_traces_have_a_line_each_then_a_part_each() -> None:
    report = other_order()
    made = said(report, 200)
    assert "  reference    ≡ order-exact  sequential makes every one of 2735" in made
    assert "  target       ≡ order-exact  split-K 4 makes every one of 2735" in made
    assert 1 == made.count("▐ reference ▌ ≡ order-exact ━") == made.count("▐ target ▌ ≡ order-exact ━")
    assert 1 == made.count("Nothing needs doing"), "advice of both is not repeated at each"
    assert "composed     the reference adds it up in two calls" in said(REPORTS["defect_against_right"])


def test_one_side_alone() -> None:
    report = other_order()
    made = text(order_lines(report, 120, side="target"))
    assert made.startswith("≡ order-exact  split-K 4 makes every one")
    assert "▐" not in made and "sequential makes" not in made
    assert "Nothing needs doing" in made
    assert (("both", "reference", "target"), ("both",)) == (sides_of(report), sides_of(single(split_k())))


def test_nothing_out_of_a_file_reaches_the_screen_as_it_is() -> None:
    made = "\n".join([title_line(REPORTS["broken"], 120).plain, said(REPORTS["broken"])])
    assert "\x1b" not in made and "\u202e" not in made
    assert "model.\\x1b[2J[bold]|<b>/vendor.mm#0" in made


def test_the_title_has_site_and_verdict() -> None:
    made = title_line(single(split_k()), 80).plain
    assert made.startswith(" model.layers.0.mlp.down_proj/aten.mm.default#0") and made.endswith("≡ order-exact ")
    assert 80 == len(made)


def test_a_heading_leaves_its_note_out_where_there_is_no_room() -> None:
    assert "── terms ── a note ─────────" == heading("terms", 28, "a note").plain
    assert "── terms ──────────" == heading("terms", 19, "a note").plain


def test_a_test_without_figures() -> None:
    one = replace(split_k(), tests=(Rung("1", "comparable", None, None, "holds", True, ""), Rung("2", "x", 3.0, None, "fails", False, "")))
    lines = [line.plain.rstrip() for line in ladder_lines(one, Tone.SAME, 80)]
    assert ["▸   1 comparable  ✓ holds", "    2 x           – fails  3"] == lines[1:]


def test_the_tree_of_the_winner_is_drawn() -> None:
    made = said(single(own_mm()), 80)
    assert "── the tree ── probed tree of torch.mm ──" in made
    assert "  1024 terms: 5 chains of 192 and one of 64, added in order" in made
    assert "  ├──────A──────┼──────B──────┼" in made


def test_candidates_that_make_nothing_are_not_listed() -> None:
    none = tuple(Hypothesis(f"order {i}", (), "fp32", "declared", 0, 64, False) for i in range(5))
    lines = [line.plain for line in candidate_lines(replace(dropped_split(), hypotheses=none), 100)]
    assert "order 0" in lines[1] and "order 1" not in "".join(lines)
    assert "    4 more are in the JSON, the best of them 0 of 64" == lines[2]


def test_the_name_of_a_winner_is_never_cut() -> None:
    name, how = "4 partial sums in bf16, added in a ring in 4 chunks", "chunks begin at rank 1, 2, 3, 0"
    ring = Hypothesis(name, (), how, "lower", 64, 64, True)
    loser = Hypothesis(name, (), "another way that is as long", "lower", 3, 64, False)
    lines = [line.plain for line in candidate_lines(replace(bf16_partials(), hypotheses=(ring, loser)), 80)]
    assert "    4 partial sums in bf16, added in a ring in 4 chunks, chunks begin at rank 1," == lines[2]
    assert "    2, 3, 0" == lines[3]


def test_on_a_narrow_screen_candidates_are_still_told_apart() -> None:
    lines = [line.plain for line in candidate_lines(split_k(), 77)]
    found = [line.partition("━")[0].strip() for line in lines if "━" in line and "──" not in line[:4]]
    assert "≡ split-K 4, fp32" == found[0]
    assert "split-K 4, fused units of 16 products, 24 fracti…" == found[3]
    assert len(found) == len(set(found))


def test_one_arithmetic_of_all_is_said_once() -> None:
    alike = tuple(Hypothesis(f"order {i}", (), "fp32, what is added comes last", "declared", 30 - i, 30, i == 0) for i in range(3))
    made = text(list(candidate_lines(replace(split_k(), hypotheses=alike), 80)))
    assert "  all in       fp32, what is added comes last" in made
    assert 1 == made.count("what is added comes last")


def test_a_sentence_at_the_head_is_not_said_again_by_its_test() -> None:
    one = dropped_split()
    same = replace(one, tests=tuple(replace(test, statement=one.statement) if test.decided else test for test in one.tests))
    assert 1 == said(single(same), 200).count(one.statement)
    assert one.statement in text(list(ladder_lines(replace(same, statement="another"), Tone.FAULT, 200)))


def test_what_sits_in_one_place_is_no_alarm_where_the_verdict_is_none() -> None:
    harmless = [made for made in profile_lines(replace(dropped_split(), verdict="order-exact"), 120) if "▲" in made.plain]
    fault = [made for made in profile_lines(dropped_split(), 120) if "▲" in made.plain]
    assert ([Tone.DIM], [Tone.FAULT]) == tuple([made.segments[-1].tone for made in found] for found in (harmless, fault))


def test_a_chain_of_less_than_one_addition() -> None:
    assert "chain        as less than one addition in float32" in text(list(error_lines(replace(split_k(), chain=0.2), 100)))


def test_a_long_name_does_not_run_into_its_bar() -> None:
    long = Hypothesis("many " * 20, (), "fp32", "declared", 1, 2, False)
    assert "…  ━" in text(list(candidate_lines(replace(dropped_split(), hypotheses=(long,)), 80)))


def test_a_call_of_one_side_says_whose_it_is() -> None:
    assert "side         the target; the other side did not run this call" in said(single(split_k("target")))
    assert "side  " not in said(single(split_k()))


def test_a_histogram_of_nothing_is_not_drawn() -> None:
    one = replace(split_k(), histogram=tuple((-12.0 + i, 0) for i in range(24)))
    assert "│" not in text(list(error_lines(one, 80)))


def test_ways_to_compute_a_fused_call_and_what_was_fitted() -> None:
    made = said(single(attention()), 120)
    assert "── how it was computed ──" in made and "candidate orders" not in made and "gap  " not in made
    assert "online softmax in tiles of 64 or 128, probabilities in bf16: these results do not tell the tiles apart." in made
    assert "  ✓ online softmax, tiles of 64  ━" in made
    assert "    the same as online softmax, tiles of 128" in made
    assert "never tried  any other way to compute it" in made
    assert "  softmax scale  0.124998 ± 2.1e-06   declared 0.125   ✓ inside" in made
    assert "  temperature    1.02 ± 0.001         declared 1   ▲ outside" in made
