"""State that was changed between two steps: a cache that a run hands to a step, and that is not what the step before it left.

No module does it: a loop that reorders the sequences of its beams, drops tokens, forks or moves blocks. What a step leaves is what its
root returns; what the next is handed is held against that in each run by itself, line by line and bit by bit, so that what came before
says nothing. A line is what one sequence has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placements import relative_error
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, round_to
from layerdiff.diagnose.beams import Search
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.generation import Parting, beams_of, roots_of
from layerdiff.diagnose.root_inputs import held_by_objects
from layerdiff.errors import TraceError
from layerdiff.judge.profiles import Profile
from layerdiff.sides import Both
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
_MOST: Final = 1 << 26
"""Elements of a value that is looked at."""
_FITS: Final = 0.01
"""Relative L2 error up to which state is said to be a multiple of what was left: rounding in bf16 leaves 4e-3."""
_SHOWN: Final = 8
"""Lines that are listed."""


def notices_of_state(evidence: Evidence, parting: Parting, profile: Profile) -> Iterator[Notice]:
    """One for each root: of the first step that is handed other state than the step before it left."""
    if evidence.files is None:
        return
    for rows in roots_of(evidence.sites).values():
        found = next((one for one in _changes(evidence, rows, parting) if one), [])
        if found:
            row, (said, rounded) = found[0].row, found[0].words()
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            step, site = int(evidence.sites["step"][row]), evidence.texts[int(evidence.sites["site"][row])] or ""
            told = f"the state that step {step} is handed is not what the step before left: {found[0].position} {said}{more}; "
            told += "look at what the loop does with it between the two"
            yield Notice("input-differs", told, site=site, defect=not rounded or "quantised" not in profile.allow)


def _changes(evidence: Evidence, rows: Sequence[int], parting: Parting) -> Iterator[list[_Changed]]:
    """By step of a root what was changed before it."""
    tables = evidence.sites, evidence.pairs, evidence.texts, evidence.numbers
    searched = cache(lambda: beams_of(*tables, rows))
    for number in range(1, len(rows)):
        yield _Between(evidence, rows, number, parting, searched).changed()


@dataclass(frozen=True)
class _Changed:
    row: int
    position: str
    words: Callable[[], tuple[str, bool]]
    """What it is, and whether it is what was left but for being kept in fewer bits."""


@dataclass(frozen=True)
class _Side:
    """One run at the border of two steps."""

    file: TraceFile
    left: Mapping[str, int]
    """By position what the first of them returns."""
    handed: Mapping[str, int]

    def read(self, value: int) -> Array | None:
        if self.file.count(value) > _MOST or not self.file.has_bytes(value):
            return None
        try:
            return self.file.read(value)
        except TraceError:
            return None

    def left_as(self, position: str) -> str | None:
        """Where what is handed was left: as the same value, else by the name that ends most alike; None where nothing has its form."""
        value = self.handed[position]
        form = self.file.shape(value)[1:]
        alike = [name for name, left in self.left.items() if left == value or self.file.shape(left)[1:] == form]
        same = next((name for name in alike if self.left[name] == value), None)
        return same or max(alike, key=lambda name: _alike_at_the_end(name, position), default=None)

    def lines(self, handed: int, left: int) -> list[frozenset[int]] | None:
        """Of each line of what is handed those of what was left that have its bits; None where their forms differ, or nothing was kept."""
        shapes = self.file.shape(handed), self.file.shape(left)
        if min(map(len, shapes)) < 2 or shapes[0][1:] != shapes[1][1:] or 0 in shapes[0]:
            return None
        if handed == left:
            return [frozenset({line}) for line in range(shapes[0][0])]
        here, there = self.read(handed), self.read(left)
        if here is None or there is None:
            return None
        if here.dtype != there.dtype:
            here, there = here.astype(np.float64), there.astype(np.float64)
        known: dict[bytes, set[int]] = {}
        for line, x in enumerate(there):
            known.setdefault(x.tobytes(), set()).add(line)
        return [frozenset(known.get(x.tobytes(), ())) for x in here]


@dataclass(frozen=True)
class _Between:
    """The border before one of a root's calls."""

    evidence: Evidence
    rows: Sequence[int]
    number: int
    parting: Parting
    searched: Callable[[], Search | None]

    def changed(self) -> list[_Changed]:
        """What of the target's state is not what was left, as the reference hands it on, or as the target's own beams go on."""
        sides, row = [self._side(name) for name in ("reference", "target")], self.rows[self.number]
        if sides[0] is None or sides[1] is None:
            return []
        both = Both(sides[0], sides[1])
        equal = {
            self.evidence.texts[int(self.evidence.pairs["position"][pair])]
            for pair in self.evidence.pairs_of(row)
            if self.evidence.pairs["role"][pair] == Role.INPUT and self.evidence.pairs["equal"][pair]
        }
        state = held_by_objects(self.evidence.detail("reference", row).get("arguments"))
        asked = [position for position in state if position not in equal and position in both.reference.handed]
        return [_Changed(row, position, words) for position in asked if (words := self._changed(position, both)) is not None]

    def _side(self, name: str) -> _Side | None:
        before, after = (self.evidence.side(name, row) for row in self.rows[self.number - 1 : self.number + 1])
        if before is None or after is None or before[0] is not after[0] or isinstance(after[0], Joined):
            return None
        file, site = after[0], after[0].site(after[1])
        parents, kinds = (column[before[1] + 1 : after[1]] for column in (file.calls.parent, file.calls.kind))
        roots = before[1] + 1 + np.flatnonzero((parents < 0) & (kinds == CallKind.MODULE))
        if any(file.site(call) == site for call in roots.tolist()):
            return None
        edges = [
            {e.position: e.value for e in file.edges_of(call) if e.role == role}
            for _, call, role in ((*before, Role.OUTPUT), (*after, Role.INPUT))
        ]
        return _Side(file, *edges)

    def _changed(self, position: str, both: Both[_Side]) -> Callable[[], tuple[str, bool]] | None:
        ours, theirs = both
        name = ours.left_as(position)
        lines = None if name is None or name not in theirs.left else ours.lines(ours.handed[position], ours.left[name])
        if name is None or lines is None or not all(lines):
            return None
        if position not in theirs.handed:
            return None if self._parted() else lambda: (f"is not there; the step before left it in {name}", False)
        handed, kept = theirs.handed[position], theirs.left[name]
        shapes = [theirs.file.shape(value) for value in (handed, kept)]
        if shapes[0][1:] != shapes[1][1:]:
            other = ours.file.shape(ours.left[name]) != shapes[1] or self._parted()
            return None if other else lambda: (f"has shape {list(shapes[0])}, and {list(shapes[1])} was left in {name}", False)
        own = theirs.lines(handed, kept)
        if own is None or _agree(lines, own) or (meant := self._meant(lines)) is None or _agree(meant, own):
            return None
        return lambda: _told(theirs, handed, kept, own, meant)

    def _parted(self) -> bool:
        return self.parting.before(int(self.evidence.sites["step"][self.rows[self.number]]))

    def _meant(self, reference: list[frozenset[int]]) -> list[frozenset[int]] | None:
        """Of what the target is handed the lines that it should be: those that its beams go on from, else the reference's."""
        search = self.searched()
        if search is None or len(search.parents) < self.number:
            return None if self._parted() else reference
        ours, theirs = ([frozenset({parent}) for parent in one] for one in search.parents[self.number - 1])
        return theirs if _agree(ours, reference) else None


def _alike_at_the_end(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(reversed(one), reversed(other), strict=False)))


def _agree(one: Sequence[frozenset[int]], other: Sequence[frozenset[int]]) -> bool:
    return len(one) == len(other) and all(a & b for a, b in zip(one, other, strict=True))


def _told(side: _Side, handed: int, left: int, own: Sequence[frozenset[int]], meant: Sequence[frozenset[int]]) -> tuple[str, bool]:
    """What state that is not what was left is of it, and whether it is that in fewer bits."""
    if all(own):
        held, expected = (", ".join(str(min(one)) for one in lines[:_SHOWN]) for lines in (own, meant))
        return f"has the lines {held} of it, and should have {expected}", False
    x, kept = side.read(handed), side.read(left)
    if x is None or kept is None or len(x) != len(meant):
        return "has another number of lines", False
    return _of_numbers(side, x, kept[[min(one) for one in meant]])


def _of_numbers(side: _Side, x: Array, meant: Array) -> tuple[str, bool]:
    if meant.dtype.kind != "f":
        return f"differs at {int((meant != x).sum())} of {meant.size} elements", False
    if not x.any():
        return "is zero", False
    for name, value in side.left.items():
        other = side.read(value) if side.file.shape(value) == x.shape else None
        if other is not None and np.array_equal(other, x):
            return f"is what it left in {name}", False
    wide, own = meant.astype(np.float64), x.astype(np.float64)
    for format in (BFLOAT16, FLOAT16):
        if np.array_equal(round_to(wide, format), own):
            return f"is that rounded to {format.name}", True
    with np.errstate(all="ignore"):
        scale = float(np.sum(wide * own) / np.sum(wide * wide))
    if relative_error(scale * wide, own) <= _FITS:
        return f"is {scale:.6g} times that", False
    return f"differs from that by {relative_error(wide, own):.2g} (relative L2)", False
