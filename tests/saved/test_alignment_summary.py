"""Calls of many ranks are counted and listed once, with the ranks that ran them."""

from __future__ import annotations

import numpy as np

from layerdiff.align.alignment import Alignment
from layerdiff.saved.alignment_summary import alignment_summary
from layerdiff.saved.comparison import Unpaired
from layerdiff.sides import Both

REFERENCE = ("", "a", "b", "c")
TARGET = ("", "a", "b", "extra", "extra")


def aligned(*pairs: tuple[int, int], reference_only: list[int] | None = None, target_only: list[int] | None = None) -> Alignment:
    return Alignment(
        np.array(pairs, np.int64).reshape(-1, 2),
        [(call, "the target has no such site") for call in reference_only or []],
        [(call, "the reference has no such site") for call in target_only or []],
        sites=Both(REFERENCE, TARGET),
        steps=((0, 0),),
        remarks=("stripped `module.`",),
    )


def test_a_reference_call_is_paired_if_any_rank_ran_it() -> None:
    stages = [aligned((0, 0), (1, 1), reference_only=[2, 3]), aligned((0, 0), (2, 2), reference_only=[1, 3])]
    found = alignment_summary(stages, [0, 1])
    assert 3 == found.paired
    assert (Unpaired("c", "the target has no such site"),) == found.reference_only
    assert () == found.target_only
    assert (((0, 0),), ("stripped `module.`",)) == (found.steps, found.remarks)


def test_calls_of_ranks_alone_are_listed_once_with_their_ranks() -> None:
    ranks = [aligned((0, 0), target_only=[3, 4]), aligned((0, 0), target_only=[3]), aligned((0, 0), target_only=[1, 3])]
    reason = "the reference has no such site"
    assert (
        Unpaired("extra", reason),
        Unpaired("extra", f"{reason}, on rank 0 of 3"),
        Unpaired("a", f"{reason}, on rank 2 of 3"),
    ) == alignment_summary(ranks, [0, 1, 2]).target_only


def test_of_many_ranks_the_number_is_said() -> None:
    ranks = [aligned((0, 0), target_only=[3] if rank < 9 else []) for rank in range(16)]
    assert [Unpaired("extra", "the reference has no such site, on 9 of 16 ranks")] == list(
        alignment_summary(ranks, list(range(16))).target_only
    )


def test_processes_that_are_compared_one_by_one_are_summed() -> None:
    found = alignment_summary([aligned((0, 0), (1, 1), reference_only=[2]), aligned((0, 0), reference_only=[2])])
    assert (3, 2) == (found.paired, len(found.reference_only))


def test_collectives_are_no_calls_without_a_partner_where_the_reference_is_one_process() -> None:
    targets = "", "a", "a/c10d.all_reduce#0", "a/c10d.all_reduce#1", "extra"
    reason = "the reference has no such site"
    ranks = [
        Alignment(np.array([[0, 0]], np.int64), [], [(call, reason) for call in (2, 3, 4)], sites=Both(REFERENCE, targets))
        for _ in range(2)
    ]
    found = alignment_summary(ranks, [0, 1])
    assert (Unpaired("extra", reason),) == found.target_only
    assert ("the ranks also ran 2 collectives, which a single process does not run",) == found.remarks


def test_collectives_of_a_reference_that_runs_some_are_listed() -> None:
    sites = Both(("", "a/c10d.all_reduce#0"), ("", "b/c10d.all_reduce#0"))
    found = alignment_summary([Alignment(np.array([[0, 0]], np.int64), [(1, "r")], [(1, "t")], sites=sites)], [0])
    assert (Unpaired("b/c10d.all_reduce#0", "t"),) == found.target_only
