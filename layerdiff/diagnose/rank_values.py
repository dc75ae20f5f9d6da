"""The tables of a ranked comparison with the values behind them: what every cause of many ranks asks.

Values are read when they are asked for, as float64, and those too large are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import RANK_BY_RANK
from layerdiff.align.placements import APART as DIFFER
from layerdiff.errors import TraceError
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.pairs.placed import Part, Placed
from layerdiff.judge.programs.padding import dead_elements
from layerdiff.judge.tables import Columns, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[np.float64]
HOLDS: Final = 0.02
"""Relative residual up to which an equality holds: rounding in bf16 leaves 4e-3 of a value."""
EXACTLY: Final = 1e-6
"""The same of what programs make in float64: measured, up to 2e-15 where the equality is the fault."""
APART: Final = 10.0
"""How many times further off one rank's part must be than any other's, to be named alone."""
_MOST: Final = 1 << 24
"""Elements of a value that is looked at."""
RULE: Final = "ranks: residual of an equality between what they recorded"
_EXACT_RULE: Final = "ranks: residual of an equality between what their programs make"


@dataclass(frozen=True)
class RankValues:
    """The tables of a ranked comparison, with the values behind them."""

    sites: Columns
    pairs: Columns
    texts: Texts
    files: Both[tuple[TraceFile, ...]]
    held: Both[list[tuple[Part, ...]]]
    """By pair the parts of each side: a single one where it is one process."""
    placed: dict[int, Placed]
    exact: Mapping[int, tuple[Array, list[Array]]] = field(default_factory=dict)
    """By pair what takes the place of recorded numbers: the logical value, and each rank's part."""
    holds: float = HOLDS
    """Relative residual up to which an equality holds."""
    left_out: NDArray[np.bool_] | None = None
    """Shape (tokens,): those that say nothing, and are zero in whatever is read; None where all count."""

    def exactly(self, exact: Mapping[int, tuple[Any, list[Any]]], left_out: NDArray[np.bool_] | None = None) -> RankValues:
        """The same with other numbers for some pairs: no error comes in there, and none but float64's is left.

        Where tokens are left out the body was run as one, and what modules inside of it hand on is as it was recorded.
        """
        floats = {pair: one for pair, one in exact.items() if one[0].dtype.kind == "f" and all(part.dtype.kind == "f" for part in one[1])}
        return replace(self, exact=floats, holds=EXACTLY if left_out is None else HOLDS, left_out=left_out)

    def rank(self, file: int) -> int:
        """Of a file of the target."""
        return self.files.target[file].rank or 0

    def pairs_of(self, row: int, role: Role) -> list[int]:
        """The pairs of a site, of one role."""
        return [pair for pair in np.flatnonzero(self.pairs["site"] == row).tolist() if self.pairs["role"][pair] == role]

    def inside(self, row: int) -> Iterator[int]:
        """The rows of the module calls inside a call, all the way down, in order."""
        parents = self.sites["parent"].tolist()
        known = {row}
        for one in range(row + 1, len(parents)):
            if parents[one] in known:
                known.add(one)
                if self.sites["kind"][one] == CallKind.MODULE:
                    yield one

    def shape(self, pair: int) -> tuple[int, ...]:
        """Of the logical value."""
        placed, (file, value) = self.placed.get(pair), self.held.reference[pair][0]
        return self.files.reference[file].shape(value) if placed is None or placed.shape is None else placed.shape

    def whole(self, pair: int) -> Array | None:
        """The reference's value; None where it is no float, too large or not kept."""
        whole = self._whole(pair)
        dead = None if whole is None else self._left_out(whole.shape)
        return whole if whole is None or dead is None else np.where(dead, 0.0, whole)

    def _left_out(self, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        return None if self.left_out is None else dead_elements(shape, self.left_out)

    def _whole(self, pair: int) -> Array | None:
        if pair in self.exact:
            return self.exact[pair][0]
        parts, placed = _all_numbers(self.files.reference, self.held.reference[pair]), self.placed.get(pair)
        if parts is None or (len(parts) == 1 and (placed is None or placed.ours is None)):
            return None if parts is None else parts[0]
        return None if placed is None or placed.ours is None else np.asarray(placed.ours.joined(parts, self.shape(pair)), np.float64)

    def numbers(self, pair: int) -> Both[NDArray[Any]] | None:
        """The logical values of both sides, whole numbers too; None where one is too large, was not kept, or is not put together."""
        placed = self.placed.get(pair)
        ours, theirs = _all(self.files.reference, self.held.reference[pair]), _all(self.files.target, self.held.target[pair])
        if ours is None or theirs is None or placed is None or placed.placement.kind == "unknown":
            return None
        if len(ours) > 1 and (placed.ours is None or placed.ours.kind == "unknown"):
            return None
        shape = self.shape(pair)
        whole = ours[0] if placed.ours is None else placed.ours.joined(ours, shape)
        return Both(whole, placed.placement.joined(placed.standing(theirs), shape))

    def parts(self, pair: int) -> list[Array] | None:
        """What each rank recorded."""
        parts = list(self.exact[pair][1]) if pair in self.exact else _all_numbers(self.files.target, self.held.target[pair])
        placed = self.placed.get(pair)
        if parts is None or placed is None or placed.placement.kind == "unknown" or (dead := self._left_out(self.shape(pair))) is None:
            return parts
        own = [placed.placement.part(dead, rank) for rank in range(len(parts))]
        return [np.where(one, 0.0, part) if one.shape == part.shape else part for one, part in zip(own, parts, strict=True)]

    def beside(self, pair: int) -> list[Both[Array]]:
        """Of each rank the reference's part, and its own; none where they are no floats, or not at hand."""
        whole, parts, placed = self.whole(pair), self.parts(pair), self.placed.get(pair)
        if whole is None or parts is None or placed is None or placed.placement.kind not in ("replicated", "sharded"):
            return []
        return [Both(np.asarray(placed.placement.part(whole, rank), np.float64), part) for rank, part in enumerate(parts)]

    def laid(self, pair: int, dim: int) -> Array | None:
        """The reference's value; of one layout twice its parts one after the other along a dimension."""
        placed = self.placed.get(pair)
        if placed is None or placed.placement.name != RANK_BY_RANK:
            return self.whole(pair)
        parts = _all_numbers(self.files.reference, self.held.reference[pair])
        return None if parts is None or dim >= parts[0].ndim else np.concatenate(parts, axis=dim)

    def summed(self, pair: int) -> tuple[Array, list[Array]] | None:
        """Of one layout twice, a value that may be a sum, though nothing tells: the sum of the reference's parts, and the target's."""
        placed = self.placed.get(pair)
        if placed is None or placed.placement.name != RANK_BY_RANK:
            return None
        whole, theirs = self.whole(pair), self.parts(pair)
        if whole is None or theirs is None:
            return None
        ours = [placed.placement.part(whole, rank) for rank in range(len(theirs))]
        return (np.sum(ours, axis=0), theirs) if len({part.shape for part in (*ours, *theirs)}) == 1 else None

    def choices(self, pair: int) -> NDArray[np.int64] | None:
        """Whole numbers that all ranks were given alike; None where they are none, or not alike."""
        placed, parts = self.placed.get(pair), self.held.target[pair]
        if placed is None or placed.placement.kind != "replicated" or placed.equal is False or not parts:
            return None
        file, value = parts[0]
        if not self.files.target[file].has_bytes(value) or self.files.target[file].count(value) > _MOST:
            return None
        read = self.files.target[file].read(value)
        return read.astype(np.int64) if read.dtype.kind in "iu" and read.ndim >= 2 else None

    def ids(self, pair: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]] | None:
        """Tables of whole numbers of one shape: the reference's, and each rank's."""
        ours, theirs, placed = self.held.reference[pair], self.held.target[pair], self.placed.get(pair)
        every = [(side[file], value) for side, parts in zip(self.files, (ours, theirs), strict=True) for file, value in parts]
        if any(not file.has_bytes(value) or file.count(value) > _MOST for file, value in every):
            return None
        if len(ours) > 1 and (placed is None or placed.ours is None or placed.ours.kind != "replicated" or placed.ours.name == DIFFER):
            return None
        read = [file.read(value) for file, value in every]
        if any(one.dtype.kind not in "iu" or one.shape != read[0].shape or one.ndim < 2 for one in read):
            return None
        numbers = [one.astype(np.int64) for one in read]
        mine = numbers[: len(ours)]
        whole = mine[0] if placed is None or placed.ours is None else placed.ours.joined(mine, mine[0].shape)
        return whole, numbers[len(ours) :]

    def joined(self, pair: int) -> Array | None:
        """The target's logical value."""
        whole, parts, placed = self.whole(pair), self.parts(pair), self.placed.get(pair)
        if whole is None or parts is None or placed is None or placed.placement.kind == "unknown":
            return None
        standing = parts if pair in self.exact else placed.standing(parts)
        return np.asarray(placed.placement.joined(standing, whole.shape), np.float64)

    def local(
        self,
        row: int,
        pair: int,
        cause: str | None,
        statement: str,
        residual: float,
        allowed: float | None = None,
        rule: str | None = None,
        **evidence: Any,
    ) -> Found:
        """A finding at a value; `rule`: what was measured, where it is not the residual of an equality."""
        calls = int(self.sites["reference_call"][row]), int(self.sites["target_call"][row])
        position = self.texts[int(self.pairs["position"][pair])] or "out"
        limit, by = self.holds if allowed is None else allowed, rule or (_EXACT_RULE if self.exact else RULE)
        return Found(row, Local(calls, position, Verdict.DEFECT, statement, residual, limit, by, cause=cause, evidence=evidence))

    def incoming(self, row: int) -> float:
        """How far off the inputs of a call are: their largest relative L2 error."""
        if self.exact:
            return 0.0
        errors = [float(self.pairs["rel_l2"][pair]) for pair in self.pairs_of(row, Role.INPUT)]
        return max((error for error in errors if error == error), default=0.0)

    def site(self, row: int) -> str:
        """The site of a row."""
        return self.texts[int(self.sites["site"][row])] or "the root"


def _all_numbers(files: Sequence[TraceFile], parts: Sequence[Part]) -> list[Array] | None:
    found = [_numbers(files[file], value) for file, value in parts]
    return None if not found or any(one is None for one in found) else [one for one in found if one is not None]


def _all(files: Sequence[TraceFile], parts: Sequence[Part]) -> list[NDArray[Any]] | None:
    """What all parts are, of any dtype."""
    found = [_read(files[file], value) for file, value in parts]
    return None if not found or any(one is None for one in found) else [one for one in found if one is not None]


def _read(file: TraceFile, value: int) -> NDArray[Any] | None:
    if value < 0 or file.count(value) > _MOST or not file.has_bytes(value):
        return None
    try:
        return file.read(value)
    except TraceError:
        return None


def _numbers(file: TraceFile, value: int) -> Array | None:
    read = _read(file, value)
    if read is None or read.dtype.kind != "f":
        return None
    with np.errstate(invalid="ignore"):  # memory that nothing was written to may hold a signalling NaN
        return read.astype(np.float64)


def size_of(x: Array) -> float:
    """The L2 norm of what is finite."""
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.sum(np.square(np.where(np.isfinite(x), x, 0.0)))))
