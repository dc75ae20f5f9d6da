"""The tree as columns, against the plain recursive definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdiff.rows.sites.tree import tree_of


def preorder(parents: list[int]) -> list[int]:
    """Rows in preorder, siblings by row; written as one would say it."""
    out: list[int] = []

    def visit(row: int) -> None:
        out.append(row)
        for child, parent in enumerate(parents):
            if parent == row:
                visit(child)

    for row, parent in enumerate(parents):
        if parent < 0:
            visit(row)
    return out


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(0, 24))
    order = draw(st.permutations(range(size)))
    parents = [-1] * size
    for i, row in enumerate(order):
        if i:
            above = draw(st.integers(-1, i - 1))
            parents[row] = -1 if above < 0 else order[above]
    return parents


@given(forests())
def test_any_forest_in_any_row_order(parents: list[int]) -> None:
    tree = tree_of(np.array(parents, np.int64))
    rows = preorder(parents)
    place = {row: p for p, row in enumerate(rows)}
    assert tree.row.tolist() == rows
    assert tree.parent.tolist() == [place[parents[row]] if parents[row] >= 0 else -1 for row in rows]
    assert tree.place_of.tolist() == [place[row] for row in range(len(parents))]
    for p in range(len(rows)):
        inside = [q for q in range(len(rows)) if q == p or p in tree.ancestors(q)]
        assert list(range(p, tree.end[p])) == inside
        assert tree.children(p).tolist() == [q for q in range(len(rows)) if tree.parent[q] == p]
        assert tree.depth[p] == len(tree.ancestors(p))
    assert tree.children(-1).tolist() == [q for q in range(len(rows)) if tree.parent[q] < 0]


def test_a_column_by_place() -> None:
    column = np.array([10, 11, 12])
    ordered, other = tree_of(np.array([-1, 0, -1])), tree_of(np.array([-1, -1, 0]))
    assert ordered.in_row_order
    assert ordered.by_place(column) is column
    assert not other.in_row_order
    assert [10, 12, 11] == other.by_place(column).tolist()


@pytest.mark.parametrize("parents", [[0], [1, 0], [5], [-7], [1, 2, 0, 0], [-1, 0, 9, 1]])
def test_damaged_parents_are_read_as_none(parents: list[int]) -> None:
    tree = tree_of(np.array(parents, np.int64))
    assert sorted(tree.row.tolist()) == list(range(len(parents)))
    assert all(p not in tree.ancestors(p) for p in range(len(parents)))


def test_a_chain_of_a_hundred_thousand_calls_is_cut_into_short_ones() -> None:
    tree = tree_of(np.arange(100_000) - 1)
    assert len(tree) == 100_000
    assert int(tree.depth.max()) <= 400
