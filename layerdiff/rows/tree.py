"""The tree of sites as columns: every site at its place in preorder, with depth, end of subtree, and children.

A place is a position in preorder: parents before children, siblings in execution order, a subtree one
contiguous range `place..end`. All of `rows` works on places; `row` and `place_of` translate to and from the
rows of the table of sites, whose order nothing assumes. Parents that point outside the table or at
themselves in a circle (a damaged file) are read as none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_DEEPEST: Final = 400
"""Calls nested deeper than this are listed at the top: no model does it, a damaged file may."""


@dataclass(frozen=True)
class Tree:
    """n sites in preorder. Every array has n entries (`child_start` one more) and is indexed by place."""

    row: Ints
    """Row in the table of sites."""
    place_of: Ints
    """The inverse: indexed by row."""
    parent: Ints
    """Place of the parent, -1 at the top."""
    depth: Ints
    end: Ints
    """One past the last place of the subtree."""
    child_start: Ints
    child: Ints
    """Children of p, in order: `child[child_start[p]:child_start[p + 1]]`."""
    tops: Ints
    """Places without a parent, in order."""

    def __len__(self) -> int:
        return len(self.row)

    def children(self, place: int) -> Ints:
        """Places of the children, in execution order; of -1, the top."""
        if place < 0:
            return self.tops
        return self.child[self.child_start[place] : self.child_start[place + 1]]

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
    levels = int(depth.max()) + 1 if n else 0
    by_depth = np.argsort(depth.astype(np.int16), kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(levels + 1))
    level = [by_depth[bounds[d] : bounds[d + 1]] for d in range(levels)]

    size = np.ones(n, np.int64)
    for rows in reversed(level[1:]):
        rows, starts = _by_parent(parent, rows)
        size[parent[rows[starts]]] += np.add.reduceat(size[rows], starts)

    place = np.arange(n) if _in_preorder(parent, depth, level) else _places(parent, size, level)
    row = np.empty(n, np.int64)
    row[place] = np.arange(n)
    above = parent[row]
    above = np.where(above >= 0, place[above], -1)
    child = np.argsort(above, kind="stable")
    tops = int(np.count_nonzero(above < 0))
    start = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(above[above >= 0], minlength=n), out=start[1:])
    return Tree(row, place, above, depth[row], np.arange(n) + size[row], start, child[tops:], child[:tops])


def _by_parent(parent: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Rows of one level with siblings together, and where each family starts."""
    above = parent[rows]
    if np.any(above[1:] < above[:-1]):
        rows = rows[np.argsort(above, kind="stable")]
        above = parent[rows]
    return rows, np.flatnonzero(np.r_[True, above[1:] != above[:-1]])


def _in_preorder(parent: Ints, depth: Ints, level: list[Ints]) -> bool:
    """Whether rows are in preorder already, as a trace of one process writes them: each parent is the last row one level up."""
    if len(depth) and (depth[0] != 0 or np.any(depth[1:] > depth[:-1] + 1)):
        return False
    return all(np.array_equal(parent[rows], above[np.searchsorted(above, rows) - 1]) for above, rows in pairwise(level))


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
