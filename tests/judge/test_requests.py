"""Which request each token of a run belongs to, and where another run has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from layerdiff.judge.pairs.in_batches import Batches, Parted, in_batches
from layerdiff.judge.pairs.requests import Given, requests_of, where_they_are
from layerdiff.sides import Both

A, B, C = [5, 7, 2, 9, 4, 1], [5, 7, 2, 8], [6, 3, 3, 9, 2]
Pieces = Sequence[tuple[list[int], int, int]]


def row(*pieces: tuple[list[int], int, int]) -> Given:
    """Pieces of requests in a row: tokens from one to before another."""
    ids = np.array([[token for request, first, end in pieces for token in request[first:end]]])
    positions = np.array([[place for _, first, end in pieces for place in range(first, end)]])
    return Given(ids, np.ones(ids.shape, bool), None, positions)


def batch(*requests: list[int], before: int = 0, left: bool = False) -> Given:
    """Requests with padding."""
    width = max(map(len, requests))
    padding = [[0] * (width - len(one)) for one in requests]
    ids = np.array([[*pad, *one] if left else [*one, *pad] for one, pad in zip(requests, padding, strict=True)])
    held = [
        [0] * len(pad) + [1] * len(one) if left else [1] * len(one) + [0] * len(pad) for one, pad in zip(requests, padding, strict=True)
    ]
    return Given(ids, np.array(held, bool), np.full(len(requests), before), None)


def together(ours: Sequence[Given], theirs: Sequence[Given]) -> list[Batches]:
    """The groups, each with all its tokens where they should be."""
    found = in_batches([Both(ours, theirs)])
    for one in found:
        ids = []
        for steps, chosen, tokens, layout in zip(Both(ours, theirs), one.steps, one.tokens, one.layouts, strict=True):
            every = np.concatenate([steps[number].ids.reshape(-1) for number in chosen])
            lines = every[list(layout.order)] if layout.order else every
            ids.append([token for number, token in sorted(zip(tokens.numbers.tolist(), lines.tolist(), strict=True)) if number >= 0])
            if layout.order:
                assert sorted(layout.order) == list(range(every.size)) and sorted(layout.order_of_ends) == list(range(sum(layout.ends)))
        assert ids[0] == ids[1]
    return found


MIXED = [row((A, 0, 4)), row((A, 4, 5), (B, 0, 4)), row((C, 0, 5), (A, 5, 6))]


@pytest.mark.parametrize(
    "ours",
    [
        [batch(A, B, C)],
        [batch(A, B, C, left=True)],
        [row((A, 0, 6)), row((B, 0, 4)), row((C, 0, 5))],
        [row((C, 0, 5)), row((B, 0, 2)), row((A, 0, 6), (B, 2, 4))],
        [batch(A[:2], B[:2], C[:2]), batch(A[2:], B[2:], C[2:], before=2)],
    ],
    ids=["right", "left", "alone", "row", "goes on"],
)
def test_requests_are_found_wherever_they_ran(ours: list[Given]) -> None:
    (found,) = together(ours, MIXED)
    assert (3, Both(0, 0)) == (found.requests, found.alone)
    assert (tuple(range(len(ours))), (0, 1, 2)) == (found.steps.reference, found.steps.target)
    (turned,) = together(MIXED, ours)
    assert found.requests == turned.requests


def test_requests_that_have_begun_alike_are_told_when_they_part() -> None:
    """The first three tokens of A and B are the same."""
    (found,) = together([row((A, 0, 6)), row((B, 0, 4))], [row((A, 0, 3)), row((B, 0, 3), (A, 3, 6)), row((B, 3, 4))])
    assert found.requests == 2
    (found,) = together([row((A, 0, 6)), row((B, 0, 4))], [row((B, 0, 3)), row((B, 3, 4), (A, 0, 3)), row((A, 3, 6))])
    assert found.requests == 2


def test_which_request_a_single_token_goes_on_with_is_told_by_the_other_run() -> None:
    """Both have four tokens."""
    steps = [row((A, 0, 4)), row((B, 0, 4)), row((A, 4, 5))]
    (found,) = together([batch(A[:5], B)], steps)
    assert found.requests == 2


def test_steps_that_have_nothing_to_do_with_each_other_are_apart() -> None:
    found = together([batch(A, B), row((C, 0, 5))], [row((A, 0, 6)), row((B, 0, 4)), row((C, 0, 2)), row((C, 2, 5))])
    assert [((0,), (0, 1)), ((1,), (2, 3))] == [(one.steps.reference, one.steps.target) for one in found]


def test_what_only_one_run_has_is_no_token_of_both() -> None:
    (found,) = together([batch(A[:4], B)], MIXED)
    assert Both(0, 1) == found.alone
    assert together([row((A, 0, 6))], [row((A, 0, 4), ([9, 9, 1], 0, 3)), row((A, 4, 6))])[0].alone == Both(0, 3)


def test_where_requests_go_on_otherwise_is_told() -> None:
    """A goes on with 3 for 4 after four tokens, and nothing is told of what is beyond."""
    other = [*A[:4], 3, 7]
    ours = [row((A, 0, 4)), row((A, 4, 5)), row((A, 5, 6)), row((B, 0, 4))]
    (found,) = together(ours, [row((other, 0, 4)), row((B, 0, 4), (other, 4, 5)), row((other, 5, 6))])
    assert (Parted(3, 4, Both(4, 3)),) == found.parted
    assert Both(2, 2) == found.alone


def test_tokens_that_may_be_of_several_requests_are_not_left_out_unsaid() -> None:
    """A and B have three tokens each when something goes on with a token of neither."""
    ours = [row((A, 0, 3)), row((B, 0, 3)), row((A, 3, 4)), row((B, 3, 4))]
    (found,) = together(ours, [row((A, 0, 3), (B, 0, 3)), row(([*A[:3], 50], 3, 4), ([*A[:3], 51], 3, 4))])
    assert [(3, None), (3, None)] == [(one.count, one.tokens.target) for one in found.parted]


@pytest.mark.parametrize(
    "theirs",
    [
        [row((A, 0, 2)), row(([9, 9, 9, 9], 0, 4))],
        [row((A, 0, 3)), row((A, 4, 6))],
        [row((A, 0, 6), (B, 0, 4))],
        [batch([1, 1, 1]), batch([1, 1, 1])],
    ],
    ids=["others", "one lacks", "one step each", "alike"],
)
def test_other_tokens_are_not_put_together(theirs: list[Given]) -> None:
    assert not together([batch(A, B)] if len(theirs) == 1 else [batch(A)], theirs)


@pytest.mark.parametrize(
    "theirs",
    [[row((C, 0, 5), (A, 2, 6))], [row((C, 0, 5), (A, 2, 3)), row((A, 3, 6))], [row((A, 2, 4), (C, 0, 3)), row((C, 3, 5), (A, 4, 6))]],
    ids=["row", "one token first", "two rows"],
)
def test_a_request_may_have_begun_before_anything_was_recorded(theirs: list[Given]) -> None:
    (found,) = together([batch(A, C)], theirs)
    assert (2, Both(2, 0), Both(False, True)) == (found.requests, found.alone, found.begun)
    (turned,) = together(theirs, [batch(A, C)])
    assert (2, Both(0, 2), Both(True, False)) == (turned.requests, turned.alone, turned.begun)


@pytest.mark.parametrize(
    "theirs",
    [
        [batch(A[2:])],
        [batch(A[2:], before=1)],
        [batch(A[3:], before=3)],
        [batch([*A[2:4], 0, 0], before=2)],
        [batch([*A[2:5], 0], before=2)],
    ],
    ids=["no cache", "another place", "too few", "others", "another at the end"],
)
def test_tokens_that_no_cache_goes_before_are_others(theirs: list[Given]) -> None:
    assert not together([batch(A)], theirs)


def test_tokens_that_may_have_changed_places_are_left_where_they_are() -> None:
    """Of two requests that are as long: the second step may have them the wrong way round."""
    ours = [row((A, 0, 4), (B, 0, 4)), row((A, 4, 5), ([*B, 3], 4, 5))]
    theirs = [row((A, 0, 4), (B, 0, 4)), row(([*B, 3], 4, 5), (A, 4, 5))]
    assert not together(ours, theirs)


def test_a_row_without_positions_is_told_by_its_tokens() -> None:
    plain = [Given(one.ids, one.counts, None, None) for one in MIXED]
    known = requests_of([batch(A, B, C)])
    assert known is not None
    assert [len(one.at) for one in where_they_are(known, plain)[0]] == [6, 4, 5]


D, E = [7, 7, 3, 1, 8, 2, 5, 9], [4, 4, 6, 8, 1, 3]
DRAFTED = [row(([*D[:4], 50], 0, 5)), row(([*D[:5], 51, 52], 4, 7)), row(([*D, 53], 5, 9))]


def test_tokens_that_are_taken_back_are_none_of_a_request() -> None:
    """The first step tries 50, the second 51 and 52, the third 53."""
    plain = [row((D, 0, 3)), *(row((D, at, at + 1)) for at in range(3, 8))]
    for ours, theirs in ((plain, DRAFTED), (DRAFTED, plain)):
        (found,) = together(ours, theirs)
        assert (1, (), 4) == (found.requests, found.parted, max(found.alone))
    (found,) = together(DRAFTED, [row(([*D[:3], 60, 61], 0, 5)), row(([*D[:6], 62], 3, 7)), row((D, 6, 8))])
    assert not found.parted


def test_what_is_taken_back_may_be_right_and_be_given_again() -> None:
    theirs = [row((D, 0, 6)), row((D, 4, 7)), row((D, 7, 8))]
    (found,) = together([row((D, 0, 5)), row((D, 5, 8))], theirs)
    assert found.alone == Both(0, 2)
    assert found.tokens.target.numbers.tolist()[:8] == list(range(8))
    assert (((0, 0, 4, 0, 2),), ((0, 4, 7, 0, 0),), ((0, 7, 8, 0, 0),)) == found.layouts.target.pieces


def test_requests_of_a_row_that_try_tokens_are_told_by_the_other_run() -> None:
    """The draft of D ends where a token of E would come, and is the one that E goes on with."""
    ours = [row((D, 0, 8)), row((E, 0, 6))]
    theirs = [row((D, 0, 3), (E, 0, 4)), row(([*D[:4], E[4]], 3, 5), ([*E[:5], 70], 4, 6)), row((D, 4, 8), (E, 5, 6))]
    (found,) = together(ours, theirs)
    assert (2, (), Both(0, 2)) == (found.requests, found.parted, found.alone)


@pytest.mark.parametrize("kept", [1, 2])
def test_a_draft_that_is_kept_and_that_the_other_run_has_not_parts_them(kept: int) -> None:
    """D goes on with 3 for 8 after four tokens, as a draft has it."""
    other = [*D[:4], 3, 6, 6, 6]
    theirs = [
        row((D, 0, 4)) if kept == 1 else row((other, 0, 4 + kept)),
        row((other, 3 + kept, 6 + kept)),
        row((other, 5 + kept, 6 + kept)),
    ]
    ours = [row((D, 0, 3)), *(row((D, at, at + 1)) for at in range(3, 8))]
    for one, two, tokens in ((ours, theirs, Both(8, 3)), (theirs, ours, Both(3, 8))):
        (found,) = together(one, two)
        assert (Parted(3, 4, tokens),) == found.parted


def test_results_are_those_of_all_that_is_tried() -> None:
    steps = [replace(DRAFTED[0], results=2), DRAFTED[1], replace(DRAFTED[2], results=4)]
    (found,) = in_batches([Both([replace(row((D, 0, 8)), results=1)], steps)])
    assert found.layouts.target.ends == (2, 3, 4)
    assert sorted(found.tokens.target.ends.tolist()) == [-1, -1, -1, -1, 3, 4, 5, 6, 7]


def test_what_a_run_warms_up_with_is_left_out() -> None:
    """The first piece of a batch ran once before; nothing tells positions."""
    steps = [Given(np.array([ids]), np.ones((1, 4), bool), None, None) for ids in (A[:4], A[:4], C[:4])]
    (one,) = in_batches([Both([batch(A[:4], C[:4])], steps)])
    assert (one.steps.target, one.alone.target) == ((1, 2), 0)
