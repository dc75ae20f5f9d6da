"""Inputs of a root that the run made itself: what an earlier root returned, or lines of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.evidence import Evidence
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

_MOST: Final = 1 << 26
"""Elements of a value whose lines are looked for."""


def made_in_both(evidence: Evidence, row: int, pair: int) -> bool:
    """Whether an input of a root is what an earlier root returned, or lines of it, the same on both sides: an encoder's states, handed to
    the decoder, once for each beam.
    """
    made = Both(*(_came_from(evidence, row, pair, name) for name in ("reference", "target")))
    if made.reference is None or made.target is None:
        return False
    if made.reference.whole and made.target.whole:
        return True
    lines = made.reference.lines()
    return lines is not None and made.target.has(lines)


@dataclass(frozen=True)
class _Made:
    """A value that a root is given, and what an earlier one returned that it may be made of."""

    file: TraceFile
    given: int
    returned: int

    @property
    def whole(self) -> bool:
        return self.given == self.returned

    def _both(self) -> tuple[NDArray[np.void], NDArray[np.void]] | None:
        """The lines of both as bytes."""
        if any(self.file.count(value) > _MOST or not self.file.has_bytes(value) for value in (self.given, self.returned)):
            return None
        given, returned = (self.file.read(value) for value in (self.given, self.returned))
        if given.dtype != returned.dtype:
            return None
        width = np.dtype((np.void, given[:1].nbytes))
        both = [np.ascontiguousarray(one).reshape(-1).view(np.uint8).view(width) for one in (given, returned)]
        return both[0], both[1]

    def lines(self) -> NDArray[np.int64] | None:
        """Which line of what was returned each line of what is given is; None where one is none."""
        both = self._both()
        if both is None:
            return None
        known = {line.tobytes(): place for place, line in reversed(list(enumerate(both[1])))}
        places = [known.get(line.tobytes(), -1) for line in both[0]]
        return None if -1 in places else np.array(places, np.int64)

    def has(self, lines: NDArray[np.int64]) -> bool:
        """Whether what is given is these lines."""
        both = self._both()
        return (
            both is not None and len(both[0]) == len(lines) and int(lines.max()) < len(both[1]) and bool((both[0] == both[1][lines]).all())
        )


def _came_from(evidence: Evidence, row: int, pair: int, side: str) -> _Made | None:
    """The last thing that an earlier root returned which is an input of a root, or of its form but for how many lines it has."""
    found = evidence.side(side, row)
    if found is None:
        return None
    file, call = found
    value = int(evidence.pairs[f"{side}_value"][pair])
    roots = np.flatnonzero((file.calls.parent < 0) & (file.calls.kind == CallKind.MODULE))
    edges = file.edges
    returned = edges.value[(edges.role == Role.OUTPUT) & np.isin(edges.call, roots[roots < call])].tolist()
    if value in returned:
        return _Made(file, value, value)
    shape = file.shape(value)
    alike = [one for one in returned if one >= 0 and len(shape) > 1 and 0 not in shape and file.shape(one)[1:] == shape[1:]]
    return _Made(file, value, alike[-1]) if alike else None
