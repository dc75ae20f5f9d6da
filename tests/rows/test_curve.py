"""Difference by depth."""

from __future__ import annotations

import numpy as np

from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.curve import curve
from layerdiff.rows.sites.table import Rows
from tests.comparisons import ALLOWED, comparison, sites_per_step

NORM = "model.layers.3.input_layernorm"


def row_of(rows: Rows, site: str) -> int:
    return int(np.flatnonzero(rows.comparison.sites["site"] == rows.comparison.texts.intern(site))[0])


def test_a_bucket_a_site_shows_each_difference_where_its_output_was_made() -> None:
    rows = Rows(comparison(layers=2, identical_layers=0, faults={"model.layers.1.mlp.act_fn": Verdict.UNEXPLAINED}))
    drawn = curve(rows, step=0, buckets=sites_per_step(2))
    act = row_of(rows, "model.layers.1.mlp.act_fn")
    assert drawn.bucket(act) == act
    assert drawn.difference[act] == 4.92e-2
    assert np.flatnonzero(drawn.origin).tolist() == [act]
    assert drawn.rows[act] == act
    down, layer = row_of(rows, "model.layers.1.mlp.down_proj"), row_of(rows, "model.layers.1")
    assert drawn.bucket(layer) == down, "a call stands where it ends"
    assert drawn.reach(layer, layer) == (layer, down)


def test_the_allowance_is_on_the_axis_of_the_difference() -> None:
    drawn = curve(Rows(comparison(layers=4, identical_layers=1)), step=0, buckets=40)
    np.testing.assert_allclose(drawn.allowed, ALLOWED, rtol=1e-12)
    assert (drawn.low, drawn.high) == (-4, -1)
    assert drawn.heights(np.array([1e-4, 1e-1, 1e-7, 0.0, np.nan]), 60).tolist() == [1, 60, 1, 0, 0]
    assert drawn.heights(np.array([10**-2.5]), 60).tolist() == [30]


def test_not_finite_stands_apart() -> None:
    rows = Rows(comparison(layers=2, faults={"lm_head": Verdict.BROKEN}))
    drawn = curve(rows, step=0, buckets=sites_per_step(2))
    assert np.flatnonzero(drawn.broken).tolist() == [row_of(rows, "lm_head")]


def test_each_step_has_its_own_curve() -> None:
    rows = Rows(comparison(layers=2, steps=3, faults={"lm_head": Verdict.UNEXPLAINED}))
    assert [bool(curve(rows, step=step, buckets=20).origin.any()) for step in range(3)] == [True, False, False]


def test_fewer_sites_than_columns_leave_no_gaps() -> None:
    drawn = curve(Rows(comparison(layers=1, identical_layers=0)), step=0, buckets=200)
    assert not np.isnan(drawn.difference).any()
    assert (drawn.rows >= 0).all()


def test_labels_count_the_layers() -> None:
    drawn = curve(Rows(comparison(layers=5)), step=0, buckets=71)
    assert [label for _, label in drawn.ticks] == ["0", "1", "2", "3", "4"]
    assert [at for at, _ in drawn.ticks] == [4, 17, 30, 43, 56]


def test_nothing_known_yet() -> None:
    drawn = curve(Rows(comparison(layers=2, pending=True)), step=0, buckets=30)
    assert np.isnan(drawn.difference).all()
    assert drawn.pending.any()


def test_a_difference_that_came_in_is_told_from_one_that_was_made() -> None:
    """As the verdicts of the table do: behind a fault all differences are inherited, and where there is none none is."""
    fault = "model.layers.1.mlp.act_fn"
    rows = Rows(comparison(layers=3, identical_layers=0, faults={fault: Verdict.UNEXPLAINED}))
    drawn = curve(rows, step=0, buckets=sites_per_step(3))
    verdicts = rows.comparison.sites["verdict"][drawn.rows]
    assert (verdicts[drawn.inherited] == Verdict.INHERITED).all()
    assert drawn.inherited[row_of(rows, fault) + 1 :].any()
    assert not drawn.inherited[drawn.origin].any()
