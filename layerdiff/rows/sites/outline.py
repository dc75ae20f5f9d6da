"""Which lines the tree shows: what is unfolded, and runs of uninteresting siblings as one line.

Works only on families (the children of one call) that are open, so that a key costs what is on view and
not what was recorded. Three or more neighbours of one class, one name but for its numbers, and one
harmless verdict are one line until somebody opens it; so are three or more harmless operator calls among modules.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from layerdiff.judge.tables import Verdict
from layerdiff.rows.sites.judged import Judged
from layerdiff.rows.sites.names import Names
from layerdiff.rows.sites.tree import Ints, Tree
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind

SHORTEST_RUN: Final = 3
_NEVER: Final = -1
_PARTLY: Final = 100
"""Added to the class where something inside is not comparable: such siblings do not hide among whole ones."""
_OPERATORS: Final = 1000
"""Added to the class of operators: they never share a line with modules."""
_FOLDABLE: Final = np.full(256, _NEVER, np.int64)
for _code, _class in {
    Verdict.IDENTICAL: 0,
    Verdict.INHERITED: 1,
    Verdict.ORDER_EXACT: 2,
    Verdict.ORDER_CONSISTENT: 2,
    Verdict.NOT_COMPARABLE: 3,
    Verdict.PENDING: 4,
}.items():
    _FOLDABLE[_code] = _class


class Lines(NamedTuple):
    """Lines on view, each a site (first == last) or a run of siblings; arrays of places, one entry a line."""

    first: Ints
    last: Ints
    size: Ints


class Outline:
    """The unfolding of one tree. Changes when told; `lines` is the result."""

    def __init__(self, comparison: Comparison, tree: Tree, seen: Judged, names: Names) -> None:
        self._tree = tree
        self._open: dict[int, set[int]] = {}
        self._bare: set[int] = set()
        """Members of runs that were opened."""
        self._closed: set[int] | None = None
        """Where everything is open: what was closed since."""
        self._lines: Lines | None = None
        self.judge(comparison, seen, names)

    def judge(self, comparison: Comparison, seen: Judged, names: Names) -> None:
        """Follow another judgement of the same tree; what is unfolded stays."""
        self._seen, self._names = seen, names
        self._type = comparison.sites["type"]
        self._kind = comparison.sites["kind"]
        self._families: dict[int, Lines] = {}
        self._alike: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]] = {}
        self._lines = None

    @property
    def lines(self) -> Lines:
        """What is on view, in execution order."""
        if self._lines is None:
            self._lines = self._everything() if self._closed is not None else self._opened()
        return self._lines

    def is_open(self, place: int) -> bool:
        """Whether the children of `place` are shown."""
        if self._closed is not None:
            return place not in self._closed
        return place in self._open.get(int(self._tree.parent[place]), ())

    def open(self, place: int) -> None:
        """Show the children of `place`."""
        if not self._tree.has_children(place):
            return
        if self._closed is not None:
            self._closed.discard(place)
        else:
            above = int(self._tree.parent[place])
            self._open.setdefault(above, set()).add(place)
            self._families.pop(above, None)
        self._lines = None

    def close(self, place: int) -> None:
        """Hide the children of `place`; what is open inside is remembered."""
        if self._closed is not None:
            self._closed.add(place)
        else:
            above = int(self._tree.parent[place])
            self._open.get(above, set()).discard(place)
            self._families.pop(above, None)
        self._lines = None

    def unfold_run(self, first: int, last: int) -> None:
        """Show the members of a run, each on its line."""
        above = int(self._tree.parent[first])
        family = self._tree.children(above)
        self._bare.update(family[np.searchsorted(family, first) : np.searchsorted(family, last) + 1].tolist())
        self._families.pop(above, None)
        self._lines = None

    def fold_run(self, place: int) -> bool:
        """Fold the opened run that `place` belongs to; False where it belongs to none."""
        if place not in self._bare or self._closed is not None:
            return False
        above = int(self._tree.parent[place])
        family, alike = self._tree.children(above), self._joined(above)
        low = high = int(np.searchsorted(family, place))
        while low > 0 and alike[low]:
            low -= 1
        while high + 1 < len(family) and alike[high + 1]:
            high += 1
        members = set(family[low : high + 1].tolist())
        self._bare -= members
        self._open.get(above, set()).difference_update(members)
        self._families.pop(above, None)
        self._lines = None
        return True

    def open_all(self) -> None:
        """Show every site."""
        self._closed, self._lines = set(), None

    def close_all(self) -> None:
        """Only the top."""
        self._closed, self._open, self._bare, self._families, self._lines = None, {}, set(), {}, None

    @property
    def all_open(self) -> bool:
        """Whether every site is shown, but for what was closed since."""
        return self._closed is not None

    def reveal(self, place: int) -> None:
        """Open every call around `place`, and the run that it is folded into."""
        for above in self._tree.ancestors(place):
            if not self.is_open(above):
                self.open(above)
        if self._closed is None:
            for member in (place, *self._tree.ancestors(place)):
                lines = self._family(int(self._tree.parent[member]))
                line = int(np.searchsorted(lines.first, member, side="right")) - 1
                if lines.size[line] > 1:
                    self.unfold_run(int(lines.first[line]), int(lines.last[line]))

    def find(self, place: int) -> int:
        """The line that shows `place`, or the run or closed call that hides it."""
        return max(0, int(np.searchsorted(self.lines.first, place, side="right")) - 1)

    def _everything(self) -> Lines:
        hidden = np.zeros(len(self._tree) + 1, np.int64)
        for place in self._closed or ():
            hidden[place + 1] += 1
            hidden[self._tree.end[place]] -= 1
        places = np.flatnonzero(np.cumsum(hidden[:-1]) == 0) if self._closed else np.arange(len(self._tree))
        return Lines(places, places, np.ones(len(places), np.int64))

    def _opened(self) -> Lines:
        parts: list[Lines] = []
        waiting = [-1]
        while waiting:
            place = waiting.pop()
            parts.append(self._family(place))
            waiting.extend(self._open.get(place, ()))
        first, last, size = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(first, kind="stable")
        return Lines(first[order], last[order], size[order])

    def _family(self, above: int) -> Lines:
        """The lines of one call's children, runs folded."""
        known = self._families.get(above)
        if known is not None:
            return known
        family = self._tree.children(above)
        joined = self._joined(above)
        apart = self._bare | self._open.get(above, set())
        if apart and joined.any():
            alone = np.fromiter((int(p) in apart for p in family), np.bool_, len(family))
            joined = joined & ~alone & ~np.r_[False, alone[:-1]]
        starts = np.flatnonzero(~joined)
        length = np.diff(np.r_[starts, len(family)])
        if np.any(short := (length > 1) & (length < SHORTEST_RUN)):
            split = np.repeat(short, length)
            starts = np.flatnonzero(~joined | split)
            length = np.diff(np.r_[starts, len(family)])
        lines = Lines(family[starts], family[starts + length - 1], length) if len(family) else Lines(family, family, family)
        self._families[above] = lines
        return lines

    def _joined(self, above: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """For each child: whether it may share a line with the one before it."""
        known = self._alike.get(above)
        if known is not None:
            return known
        family, seen = self._tree.children(above), self._seen
        rows = self._tree.row[family]
        harmless = _FOLDABLE[seen.worst[family]]
        harmless[seen.origins_upto[self._tree.end[family]] > seen.origins_upto[family]] = _NEVER
        partly = seen.incomparable_upto[self._tree.end[family]] > seen.incomparable_upto[family]
        harmless[partly & (harmless != _NEVER) & (seen.own[family] != Verdict.NOT_COMPARABLE)] += _PARTLY
        operators = self._kind[rows] != CallKind.MODULE
        # Operators fold whatever they are called; where a family is nothing but harmless ones, whoever opened it wants to see them.
        runs = operators & (harmless >= 0) & bool((harmless < 0).any() or not operators.all())
        alike = np.where(harmless < _FOLDABLE[Verdict.NOT_COMPARABLE], 0, harmless) + _OPERATORS
        harmless = np.where(operators, np.where(runs, alike, _NEVER), harmless)
        same = np.zeros(len(family), np.bool_)
        if len(family):
            types, said = self._type[rows], np.where(harmless == _FOLDABLE[Verdict.NOT_COMPARABLE], seen.statement[family], -1)
            same[1:] = (harmless[1:] != _NEVER) & (harmless[1:] == harmless[:-1]) & (types[1:] == types[:-1]) & (said[1:] == said[:-1])
        for i in np.flatnonzero(same & ~operators).tolist():
            same[i] = self._names.template(int(family[i])) == self._names.template(int(family[i - 1]))
        self._alike[above] = same
        return same
