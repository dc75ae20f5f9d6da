"""The map of blocks: what each rank holds, cell by cell; which rank stands out; what cannot be drawn is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from layerdiff.align.runs import Run, runs_of
from layerdiff.judge.tables import Placing, Verdict
from layerdiff.rows.ranks.block_map import Cells, cells_of, closer, missing, row_of_rank, ruler, shares
from layerdiff.rows.ranks.held import map_lines, nothing_lines, title_lines, values_of
from layerdiff.rows.ranks.placement_words import holds_text, placed_text, ranks_text
from layerdiff.rows.tones import Tone, rank_tone
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.placements import Placements
from tests.comparisons import comparison
from tests.ranked import ATTENTION, LAYER, NAN, Made, contiguous, four_ranks, fused, partial, strided, with_placed, zigzag


def drawn(held: Sequence[Sequence[int]], size: int, width: int) -> list[str]:
    parts = [runs_of(np.array(one, np.intp)) for one in held]
    cells = cells_of(parts, size, width)
    return ["".join(segment.text for segment in row_of_rank(runs, rank, cells, width)) for rank, runs in enumerate(parts)]


def lines_of(made: Comparison, site: str, width: int = 100) -> list[str]:
    row = row_of(made, site)
    values = values_of(made, Placements(made), row)
    return [one.plain for one in [*title_lines(made, row, site, values, width), *map_lines(made, row, values, width)]]


def row_of(made: Comparison, site: str) -> int:
    return next(row for row, text in enumerate(made.sites["site"]) if made.texts[int(text)] == site)


@pytest.mark.parametrize(
    ("held", "size", "picture"),
    [
        (contiguous(64, 2), 64, ["███0████········", "········███1████"]),
        (zigzag(64, 2), 64, ["█0██········█0██", "····███1████····"]),
        (fused(64, 2, 2), 64, ["█0██····█0██····", "····█1██····█1██"]),
        (strided(64, 2), 64, ["▒▒▒▒▒▒▒0▒▒▒▒▒▒▒▒", "▒▒▒▒▒▒▒1▒▒▒▒▒▒▒▒"]),
        (strided(64, 4), 64, ["░░░░░░░0░░░░░░░░", "░░░░░░░1░░░░░░░░", "░░░░░░░2░░░░░░░░", "░░░░░░░3░░░░░░░░"]),
        (strided(4, 2), 4, ["█0██····█0██····", "····█1██····█1██"]),
        ([[0, 1, 2, 3, -1, -1], [4, 5, 6, -1, -1, -1]], 8, ["███0████········", "········██1███··"]),
        ([[], [0, 1]], 2, ["················", "███████1████████"]),
    ],
)
def test_what_each_rank_holds(held: list[list[int]], size: int, picture: list[str]) -> None:
    assert picture == drawn(held, size, 16)


def test_blocks_begin_where_cells_do() -> None:
    assert ["█0█·········  ", "···█1█······  ", "······█2█···  ", "·········█3█  "] == drawn(contiguous(1000, 4), 1000, 14)


def test_each_rank_has_its_tone_and_nothing_has_none() -> None:
    parts = [runs_of(np.array(one, np.intp)) for one in contiguous(8, 2)]
    made = row_of_rank(parts[1], 9, cells_of(parts, 8, 8), 8)
    assert [("····", Tone.FAINT), ("█9██", Tone.RANK_1)] == [tuple(segment) for segment in made]
    assert Tone.RANK_1 is rank_tone(9) is rank_tone(1)


@pytest.mark.parametrize("run", [Run(5, 1 << 40, 1 << 20), Run((1 << 62) - 1, 1, 1), Run(1 << 61, 1 << 20, -(1 << 40)), Run(3, 1 << 61, 0)])
def test_numbers_of_a_strangers_file_cost_nothing(run: Run) -> None:
    cells = cells_of([(run,)], 1 << 61, 40)
    assert 40 >= len(cells.first)
    found = shares((run,), cells)
    assert np.all((found >= 0) & (found <= 1))


@pytest.mark.parametrize(("size", "width"), [(0, 10), (10, 0), (-3, 5)])
def test_no_place_is_no_cell(size: int, width: int) -> None:
    assert 0 == len(cells_of([None], size, width).first)


@pytest.mark.parametrize("step", [1, 3, -2])
def test_shares_are_those_of_the_places_one_by_one(step: int) -> None:
    run = Run(40, 17, step)
    places = [40 + i * step for i in range(17)]
    cells = Cells(np.array([0, 20, 40, 50, 90]), np.array([20, 40, 50, 90, 100]))
    wanted = [sum(a <= place < b for place in places) / (b - a) for a, b in zip(cells.first.tolist(), cells.end.tolist(), strict=True)]
    np.testing.assert_allclose(shares((run,), cells), wanted)


def test_places_that_no_rank_holds() -> None:
    assert missing([(Run(0, 4, 1),), (Run(4, 4, 1),)], 8) is None
    found = missing([(Run(0, 3, 1), Run(-1, 1, 1)), (Run(7, 3, -1),)], 8)
    assert found is not None
    assert [3, 4] == np.flatnonzero(found).tolist()
    assert missing([None, (Run(0, 1, 1),)], 8) is None


def test_the_first_places_of_a_strided_value_are_shown_closer() -> None:
    parts = [(rank, runs_of(np.array(one, np.intp))) for rank, one in enumerate(strided(64, 4))]
    assert "01230123" == "".join(segment.text for segment in closer(parts, 64, 8) or ())
    assert closer(parts, 8, 8) is None, "the map itself shows every place"
    assert closer([(0, (Run(0, 64, 1),))], 64, 8) is None


def test_the_ruler_names_the_first_the_middle_and_the_last_place() -> None:
    cells = cells_of([None], 512, 40)
    assert "0                   256              511" == ruler(512, cells, 40)
    assert "0  " == ruler(512, cells_of([None], 512, 3), 3)


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([Run(0, 128, 1)], "0..127"),
        ([Run(0, 16, 1), Run(112, 16, 1)], "0..15, 112..127"),
        ([Run(1, 4, 4)], "1..13 by 4"),
        ([Run(480, 20, 1), Run(-1, 12, 0)], "480..499 +12 padding"),
        ([Run(7, 1, 1)], "7"),
        ([Run(7, 3, 0)], "3 × 7"),
        ([Run(i, 1, 1) for i in range(0, 10, 2)], "0, 2, 4 +2 more"),
        ([], "nothing"),
    ],
)
def test_places_in_words(runs: list[Run], text: str) -> None:
    assert text == holds_text(runs)


def test_the_rank_that_is_off_stands_out() -> None:
    text = lines_of(four_ranks(), f"{ATTENTION}.q_proj")
    assert " 4 ranks, 1 value  ✗ out: rank 2 alone is off: 3.00e-1, the others up to 1.30e-7" == text[1]
    assert "── out ── sharded along 2 of [1, 128, 512], contiguous " == text[2].rstrip("─")
    marked = [one for one in text if one.startswith("✗ ")]
    assert 1 == len(marked)
    assert "✗ rank 2" == marked[0][:8] and marked[0].endswith(" 3.00e-1")
    assert "256..383" in marked[0]
    bars = {one[2:8]: one.count("█", one.index("..")) for one in text if one[2:6] == "rank"}
    assert bars["rank 2"] > 3 * bars["rank 0"] > 0


def test_its_tone_is_that_of_a_fault_only_where_the_site_is_one() -> None:
    def tone(made: Comparison) -> Tone:
        row = row_of(made, f"{ATTENTION}.q_proj")
        lines = map_lines(made, row, values_of(made, Placements(made), row), 100)
        return next(one.segments[0].tone for one in lines if one.plain.startswith("✗ "))

    assert [Tone.FAULT, Tone.NOTICE] == [tone(four_ranks()), tone(four_ranks(faults={}))]


def test_where_all_ranks_are_off_none_is_blamed() -> None:
    text = lines_of(four_ranks(q_proj=[0.3, 0.4, 0.3, 0.3]), f"{ATTENTION}.q_proj")
    assert " 4 ranks, 1 value  no rank alone is off" == text[1]
    assert not [one for one in text if one.startswith("✗")]


def test_values_that_are_the_same_on_every_rank_take_a_row_each() -> None:
    made = four_ranks()
    embed, norm = (row_of(made, site) for site in ("model.embed_tokens", f"{LAYER}.input_layernorm"))
    pairs = {**made.pairs, "site": np.where(made.pairs["site"] == norm, embed, made.pairs["site"])}
    text = lines_of(replace(made, pairs=pairs), "model.embed_tokens", 80)
    assert " 4 ranks, 2 values  = no rank stands out" == text[1]
    assert "── replicated ── 2 values, the same bits on every rank " == text[2].rstrip("─")
    assert [["out", "[1,", "128,", "512]", "0"], ["out", "[1,", "128,", "512]", "█", "1.00e-7"]] == [one.split() for one in text[3:5]]


def test_replicas_that_agree_take_one_row() -> None:
    text = lines_of(four_ranks(), f"{LAYER}.input_layernorm")
    assert "= no rank stands out" in text[1]
    rows = [one for one in text if one.startswith("  rank")]
    assert 1 == len(rows) and rows[0].startswith("  ranks 0..3") and "same bits" in rows[0]


def test_replicas_that_differ_are_said() -> None:
    text = lines_of(four_ranks(), ATTENTION)
    assert " 4 ranks, 1 value  ✗ out: rank 3 alone is off: 9.00e-3, the others up to 2.00e-7" == text[1]
    assert 4 == len([one for one in text if one[2:6] == "rank"])
    assert "  ✗  ranks that hold the same places hold other numbers" in text


def test_replicas_that_differ_a_little_are_said_too() -> None:
    made = with_placed(comparison(layers=1), {"lm_head": Made(Placing.REPLICATED, "replicated", [1e-3, 2e-3], agree=False)})
    assert " 2 ranks, 1 value  ✗ ranks that should hold the same differ" == lines_of(made, "lm_head")[1]


def test_what_may_be_parts_of_a_sum_is_not_called_copies() -> None:
    name, mlp = "whole shapes, and the ranks differ", f"{LAYER}.mlp"
    made = with_placed(comparison(layers=4), {mlp: Made(Placing.REPLICATED, name, [0.539, 1.2], agree=False)})
    text = lines_of(made, mlp)
    assert " 2 ranks, 1 value  ✗ the ranks differ, and do not add up" == text[1]
    said = " ".join(" ".join(text).split())
    assert "they do not add up to it: copies that should agree, or parts of a sum that is off" in said
    assert "that hold the same places" not in said
    other = mlp.replace(LAYER, "model.layers.0")
    assert other != mlp
    made = with_placed(made, {other: partial(2), mlp: Made(Placing.REPLICATED, name, [0.539, 1.2], agree=False)})
    assert f"  ✗  these should be parts of a sum, as at {other}, and do not add up to the reference's" in lines_of(made, mlp, 120)


def test_shared_parts_that_agree_and_other_readings() -> None:
    assert "  =  ranks that hold the same places hold the same numbers" in lines_of(four_ranks(), f"{ATTENTION}.k_proj")
    text = "\n".join(lines_of(four_ranks(), f"{ATTENTION}.v_proj"))
    assert "  ◇  fits as well: contiguous. A value that differs from place to place would tell them apart." in text
    assert "  closer      0123012301230123" in text


def test_a_sum_has_an_error_and_its_parts_have_none() -> None:
    text = lines_of(four_ranks(), f"{ATTENTION}.o_proj")
    assert ["-"] * 4 == [one.split()[-1] for one in text if one[2:6] == "rank"]
    assert [["sum", "2.50e-7"]] == [[one.split()[0], one.split()[-1]] for one in text if one.startswith("  sum")]


def test_what_is_not_put_together_is_said() -> None:
    text = lines_of(four_ranks(), f"{LAYER}.mlp.up_proj")
    assert "  ∅ not put together: its parts hold 500 of 512 places along dimension 2" in text
    assert not [one for one in text if "rank 0" in one or "bars" in one]


def test_places_on_no_rank_are_marked() -> None:
    held = [list(range(0, 128)), list(range(128, 256)), list(range(256, 384)), list(range(400, 512))]
    made = with_placed(comparison(layers=1), {"lm_head": Made(Placing.SHARDED, "sharded along 2, matched", [0.0] * 4, 2, held)})
    found = [one for one in lines_of(made, "lm_head") if one.startswith("  no rank")]
    assert 1 == len(found) and "╳" in found[0] and found[0].endswith("✗ 16 places")


def test_too_many_pieces_are_not_drawn() -> None:
    pairs_from_the_end = np.arange(512)[::-1].reshape(-1, 2)[:, ::-1].ravel().tolist()
    made = with_placed(
        comparison(layers=1),
        {"lm_head": Made(Placing.SHARDED, "sharded along 2, matched", [1e-7] * 2, 2, [pairs_from_the_end] * 2)},
    )
    rows = [one for one in lines_of(made, "lm_head") if one[2:6] == "rank"]
    assert 2 == len(rows) and all("more pieces than a map shows" in one and one.endswith(" 1.00e-7") for one in rows)


def test_of_many_ranks_those_that_are_off_are_shown() -> None:
    errors = [1e-7] * 64
    errors[50] = 2e-1
    made = with_placed(
        comparison(layers=1), {"lm_head": Made(Placing.SHARDED, "sharded along 2, contiguous", errors, 2, contiguous(512, 64))}
    )
    text = lines_of(made, "lm_head", 80)
    assert 32 == len([one for one in text if one[2:6] == "rank"])
    assert [one[:9] for one in text if one.startswith("✗ ")] == ["✗ rank 50"]
    assert "  and 32 more ranks, up to 1.00e-7" in text


def test_sixty_four_replicas_fit_a_line() -> None:
    made = with_placed(comparison(layers=1), {"lm_head": Made(Placing.REPLICATED, "replicated", [1e-7] * 64, agree=True)})
    rows = [one for one in lines_of(made, "lm_head", 80) if one.startswith("  ranks")]
    assert ["  ranks 0..63"] == [one[:13] for one in rows]


@pytest.mark.parametrize("width", [20, 50, 78, 79, 118, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    made = four_ranks()
    for row in range(len(made.sites["site"])):
        values = values_of(made, Placements(made), row)
        lines = [*title_lines(made, row, "x" * 300, values, width), *nothing_lines(made, row, max(50, width))]
        assert all(one.width <= max(50, width) for one in [*lines, *map_lines(made, row, values, width)])


def test_what_differs_by_ten_times_is_said_in_words() -> None:
    made = four_ranks()
    value = Placements(made).of_value(row_of(made, f"{ATTENTION}.q_proj"), "out")
    assert value is not None
    parts = value.parts

    def said(*errors: float) -> str | None:
        return ranks_text(replace(value, parts=tuple(replace(part, error=error) for part, error in zip(parts, errors, strict=True))))

    assert "rank 1 alone is off: inf, the others up to 0" == said(0.0, float("inf"), 0.0, 0.0)
    assert "error by rank: 0: 1.00e-7, 1: 1.00e-7, 2: 2.00e-1, 3: 1.00e-1" == said(1e-7, 1e-7, 0.2, 0.1)
    assert said(1e-7, 9e-7, 1e-7, 1e-7) is None
    assert said(NAN, NAN, NAN, 1.0) is None
    assert "10 values: 3 replicated, 5 sharded, 1 partial, 1 unknown" == placed_text(made)
    assert placed_text(comparison(layers=1)) is None


def test_a_strangers_names_move_no_cursor() -> None:
    evil = "\x1b[2Jsharded along 2\n"
    made = with_placed(comparison(layers=1), {"lm_head": Made(Placing.SHARDED, evil, [1.0, 1e-9], 2, contiguous(512, 2), also=evil)})
    assert all(one.isprintable() for one in lines_of(made, "lm_head"))


def test_a_site_without_parts_says_so() -> None:
    made = four_ranks(faults={LAYER: Verdict.DEFECT})
    assert "No value of this site is made up of the parts of several ranks." in nothing_lines(made, 0, 100)[0].plain
    assert "The target is one process" in nothing_lines(comparison(layers=1), 0, 100)[0].plain
