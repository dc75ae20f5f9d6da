"""Dimensions that one side filled up: which places are compared, and what is left as it was."""

from __future__ import annotations

import numpy as np

from layerdiff.align.filling import NOTHING_FILLED, Fillings, infer_filled, places_beside, refilled
from layerdiff.align.placement import PAD

RANDOM = np.random.default_rng(0).standard_normal
TEN_UP_TO_SIXTEEN = Fillings(frozenset({(10, 16)}))


def test_what_both_have_of_two_shapes() -> None:
    assert (1, 10) == TEN_UP_TO_SIXTEEN.common((3, 10), (3, 16))
    assert TEN_UP_TO_SIXTEEN.common((3, 16), (3, 10)) is None
    assert TEN_UP_TO_SIXTEEN.common((3, 10), (4, 16)) is None
    assert TEN_UP_TO_SIXTEEN.common((3, 10), (3, 10)) is None
    assert NOTHING_FILLED.common((3, 10), (3, 16)) is None


def test_the_whole_filled_up_on_each_rank() -> None:
    whole = RANDOM((3, 10))
    parts = [np.concatenate([whole, RANDOM((3, 6))], axis=1)] * 2
    found = infer_filled(whole, parts, TEN_UP_TO_SIXTEEN)
    assert found is not None and found[0] is None
    assert [list(range(10)) + [PAD] * 6] * 2 == [at.tolist() for at in found[1].positions]
    assert np.array_equal(whole, found[1].joined(parts, whole.shape))
    assert infer_filled(whole, [part[:, ::-1] for part in parts], TEN_UP_TO_SIXTEEN) is None


def test_the_reference_filled_up_keeps_what_it_has_there() -> None:
    whole = RANDOM((16, 3))
    found = infer_filled(whole, [whole[:5], whole[5:10]], Fillings(frozenset({(16, 10)})))
    assert found is not None and found[0] is not None
    ours, theirs = found
    logical = theirs.joined([whole[:5], whole[5:10]], (10, 3))
    assert np.array_equal(whole[:10], logical)
    assert np.array_equal(whole, refilled(ours, ours.divided(logical, 1), [whole])[0])


def test_zeros_that_make_ranks_equal_are_no_places() -> None:
    whole = RANDOM((16, 3))
    second = np.concatenate([whole[5:9], np.zeros((1, 3))])
    assert 9 == places_beside(whole, [whole[:5], second], 0)
    assert 10 == places_beside(whole, [whole[:5], whole[5:10]], 0)
    assert 0 == places_beside(whole, [whole[5:10], whole[:5]], 0)
