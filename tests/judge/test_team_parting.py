"""Exact parts tell how a value lies where recorded ones, which a fault before it put off, did not."""

from __future__ import annotations

import numpy as np
import pytest

from layerdiff.align.placement import Placement
from layerdiff.align.placements import readings
from layerdiff.judge.teams.bodies import TeamBody
from layerdiff.judge.teams.crossings import Crossing, Held, TeamCall
from layerdiff.judge.teams.parting import parted
from layerdiff.judge.teams.running import TeamRan
from layerdiff.sides import Both

WHOLE = np.random.default_rng(0).normal(size=(8, 4))
ORDERS = dict(readings(8, [4, 4]))
ONE = Held(((0, 0),), Placement("replicated", "on one rank"), (8, 4))


def parts_differ(parts: list[np.ndarray], known: bool) -> bool:
    """Whether parts of ranks that are taken to lie contiguous are not what the reference makes."""
    held = Held(
        ((0, 0), (1, 0)), Placement("sharded", "contiguous", 0, tuple(ORDERS["contiguous"]), reading="contiguous", fits=known), (8, 4)
    )
    out = Crossing("1", "out", Both(ONE, held), known)
    body = TeamBody(TeamCall(0, Both({0: 0}, {0: 0, 1: 0}), (), (out,)), (), Both({}, {}), Both({}, {}))
    return parted(body, TeamRan({0: {"1": WHOLE}}), TeamRan({rank: {"1": part} for rank, part in enumerate(parts)}), None) != []


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "strided"])
def test_a_regular_order_is_told_where_numbers_did_not(order: str) -> None:
    parts = [WHOLE[at] for at in ORDERS[order]]
    assert not parts_differ(parts, known=False)
    assert (order != "contiguous") == parts_differ(parts, known=True)


def test_other_numbers_are_told_in_every_order() -> None:
    right = [WHOLE[at] for at in ORDERS["zigzag"]]
    other = right[1].copy()
    other[2] *= 1 + 1e-6
    assert parts_differ([right[0], other], known=False)
    assert parts_differ([right[0], np.full_like(other, np.nan)], known=False)
    assert parts_differ([right[0], right[0]], known=False)
    assert parts_differ([part[[1, 0, 2, 3]] for part in right], known=False)  # an order of no layout
