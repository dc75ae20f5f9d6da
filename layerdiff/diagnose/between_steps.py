"""State that was changed between two steps: a cache that a run hands to a step, and that is not what the step before it left.

No module does it: a loop that reorders the sequences of its beams, drops tokens, forks or moves blocks. What a step leaves is what its
root returns; what the next is handed is held against that in each run by itself, line by line and bit by bit, so that what came before
says nothing. A line is what one sequence has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placements import relative_error
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, round_to
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
        for number in range(1, len(rows)):
            changed = _Between(evidence, rows[: number + 1], parting).changed()
            if changed:
                first, step = changed[0], int(evidence.sites["step"][rows[number]])
                more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
                said = f"the state that step {step} is handed is not what the step before left: {first.position} {first.said}{more}"
                defect = not first.rounded or "quantised" not in profile.allow
                yield Notice("input-differs", said, site=evidence.texts[int(evidence.sites["site"][rows[number]])] or "", defect=defect)
                break


@dataclass(frozen=True)
class _Changed:
    position: str
    said: str
    rounded: bool = False
    """Whether it is what was left but for being kept in fewer bits."""


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
    """The border of the last two of a root's calls."""

    evidence: Evidence
    rows: Sequence[int]
    parting: Parting

    def changed(self) -> list[_Changed]:
        """What of the target's state is not what was left, as the reference hands it on; a search of either run that has others' state."""
        sides = [self._side(name) for name in ("reference", "target")]
        if sides[0] is None or sides[1] is None:
            return []
        both = Both(sides[0], sides[1])
        equal = {
            self.evidence.texts[int(self.evidence.pairs["position"][pair])]
            for pair in self.evidence.pairs_of(self.rows[-1])
            if self.evidence.pairs["role"][pair] == Role.INPUT and self.evidence.pairs["equal"][pair]
        }
        state = held_by_objects(self.evidence.detail("reference", self.rows[-1]).get("arguments"))
        found = (self._changed(position, both) for position in state if position not in equal and position in both.reference.handed)
        return [one for one in found if one is not None]

    def _side(self, name: str) -> _Side | None:
        before, after = (self.evidence.side(name, row) for row in self.rows[-2:])
        if before is None or after is None or before[0] is not after[0] or isinstance(after[0], Joined):
            return None
        file, calls, site = after[0], after[0].calls, after[0].site(after[1])
        roots = np.flatnonzero((calls.parent < 0) & (calls.kind == CallKind.MODULE))
        if any(file.site(call) == site for call in roots[(roots > before[1]) & (roots < after[1])].tolist()):
            return None
        edges = [
            {e.position: e.value for e in file.edges_of(call) if e.role == role}
            for _, call, role in ((*before, Role.OUTPUT), (*after, Role.INPUT))
        ]
        return _Side(file, *edges)

    def _changed(self, position: str, both: Both[_Side]) -> _Changed | None:
        ours, theirs = both
        for name, left in ours.left.items():
            lines = ours.lines(ours.handed[position], left)
            if lines is None or not all(lines) or name not in theirs.left:
                continue
            if position not in theirs.handed:
                return None if self._parted() else _Changed(position, f"is not there; the step before left it in {name}")
            handed, kept = theirs.handed[position], theirs.left[name]
            shapes = [theirs.file.shape(value) for value in (handed, kept)]
            if shapes[0][1:] != shapes[1][1:]:
                other = ours.file.shape(left) != shapes[1] or self._parted()
                return None if other else _Changed(position, f"has shape {list(shapes[0])}, and {list(shapes[1])} was left in {name}")
            own = theirs.lines(handed, kept)
            return None if own is None else self._held_against(position, Both(lines, own), theirs, kept)
        return None

    def _parted(self) -> bool:
        return self.parting.before(int(self.evidence.sites["step"][self.rows[-1]]))

    def _held_against(self, position: str, lines: Both[list[frozenset[int]]], target: _Side, left: int) -> _Changed | None:
        if _agree(*lines) or (meant := self._meant(lines.reference)) is None or _agree(meant, lines.target):
            return None
        if all(lines.target):
            held, own = (", ".join(str(min(one)) for one in side[:_SHOWN]) for side in (lines.target, meant))
            return _Changed(position, f"has the lines {held} of it, and should have {own}")
        handed, kept = target.read(target.handed[position]), target.read(left)
        if handed is None or kept is None or len(handed) != len(meant):
            return None
        return _told(position, kept[[min(one) for one in meant]], handed, target)

    def _meant(self, reference: list[frozenset[int]]) -> list[frozenset[int]] | None:
        """Of what the target is handed the lines that it should be: those that its beams go on from, else the reference's."""
        tables = self.evidence.sites, self.evidence.pairs, self.evidence.texts, self.evidence.numbers
        searches = beams_of(*tables, self.rows)
        if searches is None or any(len(one.parents) < len(self.rows) - 1 for one in searches):
            return None if self._parted() else reference
        ours, theirs = ([frozenset({parent}) for parent in one.parents[-1]] for one in searches)
        return theirs if _agree(ours, reference) else None


def _agree(one: Sequence[frozenset[int]], other: Sequence[frozenset[int]]) -> bool:
    return len(one) == len(other) and all(a & b for a, b in zip(one, other, strict=True))


def _told(position: str, meant: Array, handed: Array, target: _Side) -> _Changed | None:
    """What numbers that are not those that were left are of them; None where they lie no further off than another dtype's rounding."""
    if meant.dtype.kind != "f":
        return _Changed(position, f"differs at {int((meant != handed).sum())} of {meant.size} elements")
    if not handed.any():
        return _Changed(position, "is zero")
    for name, value in target.left.items():
        other = target.read(value) if target.file.shape(value) == handed.shape else None
        if other is not None and np.array_equal(other, handed):
            return _Changed(position, f"is what it left in {name}")
    wide, own = meant.astype(np.float64), handed.astype(np.float64)
    for format in (BFLOAT16, FLOAT16):
        if np.array_equal(round_to(wide, format), own):
            return _Changed(position, f"is that rounded to {format.name}", rounded=True)
    with np.errstate(all="ignore"):
        scale = float(np.sum(wide * own) / np.sum(wide * wide))
    if relative_error(scale * wide, own) <= _FITS:
        return _Changed(position, f"is {scale:.6g} times that")
    return _Changed(position, f"differs from that by {relative_error(wide, own):.2g} (relative L2)")
