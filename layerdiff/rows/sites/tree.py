"""The tree of sites as columns: every site at its place in preorder, with depth and end of subtree; children are looked up.

A place is a position in preorder: parents before children, siblings in execution order, a subtree one
contiguous range `place..end`. All of `rows` works on places; `row` and `place_of` translate to and from the
rows of the table of sites, whose order nothing assumes. Parents that point outside the table or at
themselves in a circle (a damaged file) are read as none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_DEEPEST: Final = 400
"""Calls nested deeper than this are listed at the top: no model does it, a damaged file may."""


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """n sites in preorder. Every array has n entries and is indexed by place."""

    row: Ints
    """Row in the table of sites."""
    place_of: Ints
    """The inverse: indexed by row."""
    parent: Ints
    """Place of the parent, -1 at the top."""
    depth: Ints
    end: Ints
    """One past the last place of the subtree."""
    in_row_order: bool
    """Every place is its row."""
    _families: dict[int, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.row)

    def children(self, place: int) -> Ints:
        """Places of the children, in execution order; of -1, the top. Found when first asked for: few are, of a large tree."""
        known = self._families.get(place)
        if known is None:
            first, end = (0, len(self)) if place < 0 else (place + 1, int(self.end[place]))
            known = self._families[place] = first + np.flatnonzero(self.parent[first:end] == place)
        return known

    def by_place(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the table of sites, indexed by place; the column itself where the order is the same."""
        return column if self.in_row_order else column[self.row]

    def child_slice(self, first: int, last: int) -> Ints | slice:
        """An index of the siblings `first..last`: their places, or a slice where it is one."""
        if first == last:
            return slice(first, first + 1)
        family = self.children(int(self.parent[first]))
        return family[np.searchsorted(family, first) : np.searchsorted(family, last) + 1]

    def has_children(self, place: int) -> bool:
        """Whether anything was recorded inside this call."""
        return bool(self.end[place] > place + 1)

    def ancestors(self, place: int) -> list[int]:
        """Places of the enclosing calls, innermost first."""
        found: list[int] = []
        above = int(self.parent[place])
        while above >= 0:
            found.append(above)
            above = int(self.parent[above])
        return found


def _depths(parent: Ints) -> tuple[Ints, Ints]:
    """Parents without circles and excesses, and each row's depth: pointer doubling, so a chain costs its logarithm."""
    n = len(parent)
    parent = np.where((parent < 0) | (parent >= n), -1, parent)
    while True:
        # One entry more, its own parent: where -1 points.
        above, depth = np.append(parent, -1), np.append((parent >= 0).astype(np.int64), 0)
        for _ in range(max(n, 2).bit_length() + 1):
            if above.max() < 0:
                break
            depth += depth[above]
            above = above[above]
        above, depth = above[:-1], depth[:-1]
        wrong = (above >= 0) | (depth > _DEEPEST)
        if not wrong.any():
            return parent, depth
        parent = np.where(wrong, -1, parent)


def tree_of(parents: NDArray[Any]) -> Tree:
    """The tree of a column `parent` (row numbers, -1 for none), shape (n,)."""
    parent, depth = _depths(np.asarray(parents, dtype=np.int64))
    n = len(parent)
    rows = np.arange(n)
    end = _ends(depth)
    inside = rows[parent >= 0]
    above = parent[inside]
    if np.all((above < inside) & (inside < end[above])):  # in preorder already, as a trace of one process writes them
        return Tree(rows, rows, parent, depth, end, in_row_order=True)

    by_depth = np.argsort(depth.astype(np.int16), kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    level = [by_depth[start:stop] for start, stop in pairwise(bounds)]
    size = np.ones(n, np.int64)
    for part in reversed(level[1:]):
        part, starts = _by_parent(parent, part)
        size[parent[part[starts]]] += np.add.reduceat(size[part], starts)
    place = _places(parent, size, level)
    row = np.empty(n, np.int64)
    row[place] = rows
    above = parent[row]
    return Tree(row, place, np.where(above >= 0, place[above], -1), depth[row], rows + size[row], in_row_order=False)


def _ends(depth: Ints) -> Ints:
    """For each row the next one that is not deeper: one past its subtree, where rows stand in preorder."""
    n = len(depth)
    end = np.full(n, n)
    rows = np.arange(n)
    for level in range(int(depth.max(initial=0)), -1, -1):
        of_level = depth[rows] == level
        end[rows[of_level]] = np.append(rows[1:], n)[of_level]
        rows = rows[~of_level]
    return end


def _by_parent(parent: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Rows of one level with siblings together, and where each family starts."""
    above = parent[rows]
    if np.any(above[1:] < above[:-1]):
        rows = rows[np.argsort(above, kind="stable")]
        above = parent[rows]
    return rows, np.flatnonzero(np.r_[True, above[1:] != above[:-1]])


def _places(parent: Ints, size: Ints, level: list[Ints]) -> Ints:
    """Places of one level from those of the level above: parent + 1 + sizes of the siblings before."""
    place = np.zeros(len(parent), np.int64)
    if level:
        place[level[0]] = _before(size[level[0]])
    for rows in level[1:]:
        rows, starts = _by_parent(parent, rows)
        before = _before(size[rows])
        place[rows] = place[parent[rows]] + 1 + before - np.repeat(before[starts], np.diff(np.r_[starts, len(rows)]))
    return place


def _before(sizes: Ints) -> Ints:
    """Exclusive running sum."""
    out: Ints = np.cumsum(sizes) - sizes
    return out
