"""Collectives with all their ranks in one place: which belong together, who is missing, who got something else, and their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from layerdiff.compare import compare_traces
from layerdiff.errors import TraceError
from layerdiff.judge.tables import Verdict
from layerdiff.rows.ranks.meeting_lines import MOST, meeting_lines
from layerdiff.rows.ranks.meetings import Meeting, Meetings, verdicts_of
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from tests.ranks import Rank

ONES = np.ones((2, 3), np.float32)
Issue = Callable[[Rank], None]


def compared(folder: Path, issues: Sequence[Issue]) -> Comparison:
    """A root with one module `layers.0`, which the reference ran alone, and what each rank issues inside the root."""
    folder.mkdir(exist_ok=True)
    alone = Rank(folder / "reference", 0, 1)
    alone.module("layers.0", "Linear", ONES, ONES)
    alone.close()
    for number, issue in enumerate(issues):
        rank = Rank(folder / "target", number, len(issues))
        rank.module("layers.0", "Linear", ONES, ONES)
        issue(rank)
        rank.close()
    return compare_traces(folder / "reference" / "rank00000.h5", folder / "target")


def root(made: Comparison) -> int:
    return next(row for row, text in enumerate(made.sites["site"]) if made.texts[int(text)] == "")


def met(folder: Path, *issues: Issue) -> list[Meeting]:
    made = compared(folder, issues)
    return Meetings(made, Traces()).inside(root(made))


def text_of(found: Sequence[Meeting], width: int = 110) -> list[str]:
    return [one.plain.rstrip() for one in meeting_lines(found, {}, width)]


def reduce(*, given: float, got: float = 3.0) -> Issue:
    return lambda rank: void(rank.issue("all_reduce", [given * ONES], [got * ONES], op="sum"))


def void(_: object) -> None:
    return None


def test_ranks_meet_in_the_order_of_their_group(tmp_path: Path) -> None:
    def both(rank: Rank) -> None:
        rank.issue("all_gather", [rank.rank * ONES], [ONES, 2 * ONES])
        rank.issue("all_reduce", [(1 + rank.rank) * ONES], [3 * ONES], op="sum")

    found = met(tmp_path, both, both)
    assert ["all_gather", "all_reduce"] == [meeting.first.name for meeting in found]
    assert [[0, 1], [0, 1]] == [[seat.rank for seat in meeting.seats] for meeting in found]
    given = [seat.given for seat in found[1].seats]
    assert [(1.0, 1.0, "float32", ((2, 3),))] == [(one.rms, one.largest, one.dtype, one.shapes) for one in given[:1] if one]
    assert [((), ())] * 2 == [(meeting.absent, meeting.unrecorded) for meeting in found]


def test_all_that_is_right(tmp_path: Path) -> None:
    text = text_of(met(tmp_path, reduce(given=1), reduce(given=2)))
    assert [
        "── collectives inside ── 1 in order: rms that went in and came out, ≤ the largest magnitude " + "─" * 18,
        "    1  all_reduce sum  ranks 0, 1   float32 [2, 3]   layers.0",
        "       rank 0  in   ████           1.00e0  ≤ 1.00e0",
        "       rank 1  in   ████████       2.00e0  ≤ 2.00e0",
        "       all 2   " + " " * 42 + "out  ████████████   3.00e0  ≤ 3.00e0   = same bits",
    ] == text


def test_a_rank_with_other_bits_stands_out(tmp_path: Path) -> None:
    text = text_of(met(tmp_path, reduce(given=1), reduce(given=1.5), reduce(given=2, got=4)))
    assert ["     ✗ rank 2  in   ██████         2.00e0  ≤ 2.00e0   →  out  ████████████   4.00e0  ≤ 4.00e0"] == [
        one for one in text if "✗" in one
    ]
    assert "               └  got other bits than the others" in text
    assert not [one for one in text if "= same bits" in one]


def test_a_rank_that_did_not_issue_it(tmp_path: Path) -> None:
    found = met(tmp_path, reduce(given=1), reduce(given=2), void)
    assert (2,) == found[0].absent
    assert "     ✗ rank 2  did not issue it" in text_of(found)


def test_a_rank_without_a_trace(tmp_path: Path) -> None:
    def with_three(rank: Rank) -> None:
        rank.issue("all_reduce", [ONES], [3 * ONES], op="sum", ranks=[0, 1, 2, 3])

    found = met(tmp_path, with_three, with_three)
    assert ((), (2, 3)) == (found[0].absent, found[0].unrecorded)
    assert "     ∅ of ranks 2, 3 there is no trace" in text_of(found)


def test_ranks_that_part_in_their_order(tmp_path: Path) -> None:
    def other(rank: Rank) -> None:
        rank.issue("broadcast", [], [ONES], source=0)

    text = text_of(met(tmp_path, reduce(given=1), reduce(given=2), other))
    assert "               └  issued broadcast of 6 float32 at layers.0/c10d.broadcast#0" in text
    assert [2] == [int(one.split()[2]) for one in text if one.startswith("     ✗")]


def test_what_was_never_waited_for(tmp_path: Path) -> None:
    def late(rank: Rank) -> None:
        rank.issue("all_reduce", [ONES], [], op="sum", finished=False)

    text = text_of(met(tmp_path, reduce(given=1), late))
    assert "               └  was not waited for" in text


def test_every_rank_puts_in_the_same(tmp_path: Path) -> None:
    text = text_of(met(tmp_path, reduce(given=1.5), reduce(given=1.5)))
    assert "     ◆  every rank put in the same bits: the sum is 2 times it" in text
    assert not [one for one in text_of(met(tmp_path / "zeros", reduce(given=0, got=0), reduce(given=0, got=0))) if "◆" in one]


def test_messages_of_two_ranks(tmp_path: Path) -> None:
    def send(rank: Rank) -> None:
        rank.issue("send", [ONES], destination=1)

    def receive(rank: Rank) -> None:
        rank.issue("recv", [], [ONES], source=0)

    def wrong(rank: Rank) -> None:
        rank.issue("recv", [], [2 * ONES], source=0)

    found = met(tmp_path, send, receive)
    assert 1 == len(found)
    text = text_of(found)
    assert "    1  send  rank 0 → 1   float32 [2, 3]   layers.0" == text[1]
    assert not [one for one in text if "✗" in one]
    assert "               └  got other bits than were sent" in text_of(met(tmp_path / "wrong", send, wrong))


def test_what_is_not_finite_is_counted(tmp_path: Path) -> None:
    def nan(rank: Rank) -> None:
        rank.issue("all_reduce", [np.array([[1, np.nan, 1], [np.inf, 1, 1]], np.float32)], [ONES], op="sum")

    assert any("rank 1  in" in one and "2 not finite" in one for one in text_of(met(tmp_path, reduce(given=1, got=1), nan)))


def test_only_those_inside_a_call(tmp_path: Path) -> None:
    made = compared(tmp_path, [reduce(given=1), reduce(given=2)])
    meetings = Meetings(made, Traces())
    rows = {made.texts[int(text)]: row for row, text in enumerate(made.sites["site"])}
    assert [] == meetings.inside(rows["layers.0"]), "it lies beside the module, right inside the root"
    assert 1 == len(meetings.inside(rows["layers.0/c10d.all_reduce#0"])), "a collective shows itself"
    assert 1 == len(meetings)


def test_only_as_many_as_fit_a_screen(tmp_path: Path) -> None:
    def many(rank: Rank) -> None:
        for _ in range(MOST + 5):
            rank.issue("barrier")

    text = text_of(met(tmp_path, many, many))
    assert "  and 5 more: open a call inside this one" == text[-1]


@pytest.mark.parametrize("width", [50, 78, 118])
def test_no_line_is_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    found = met(tmp_path, reduce(given=1), reduce(given=2, got=4), void)
    assert all(one.width <= width for one in meeting_lines(found, {found[0].first.place: int(Verdict.DEFECT)}, width))


def test_its_verdict_stands_beside_it(tmp_path: Path) -> None:
    found = met(tmp_path, reduce(given=1), reduce(given=2))
    first = meeting_lines(found, {found[0].first.place: int(Verdict.DEFECT)}, 100)[1].plain
    assert first.endswith("✗ defect") and 100 == len(first)
    assert "∅" not in meeting_lines(found, {found[0].first.place: int(Verdict.NOT_COMPARABLE)}, 100)[1].plain


def test_verdicts_by_place(tmp_path: Path) -> None:
    made = compared(tmp_path, [reduce(given=1), reduce(given=2)])
    assert [("layers.0/c10d.all_reduce#0", 0, 0)] == list(verdicts_of(made))


def test_traces_that_are_gone(tmp_path: Path) -> None:
    made = compared(tmp_path, [reduce(given=1), reduce(given=2)])
    (tmp_path / "target" / "rank00001.h5").unlink()
    with pytest.raises(TraceError, match=r"rank00001\.h5 is not there"):
        Meetings(made, Traces())
