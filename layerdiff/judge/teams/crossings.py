"""What crosses between a module call of many ranks and what calls it: each rank's value, and how they make up the logical one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placement import PAD, Placement
from layerdiff.judge.pairs.pairing import rows_of
from layerdiff.judge.pairs.placed import Part, Placed
from layerdiff.judge.pairs.ranked import RankedTables
from layerdiff.judge.tables import Columns
from layerdiff.sides import Both
from layerdiff.trace.joined import Joined, own_of
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
_ONE: Final = Placement("replicated", "on one rank")
_OTHERS: Final = 1.0
"""Relative error from which a rank's part is taken for other values than those of its place, tokens of another expert say: that is 1.4."""
_MATCHED: Final = 0.1
"""The same of places that were matched by numbers, of which a wrong one may come near."""
_SUM: Final = 0.05
"""Relative error up to which ranks' values that add up to nearly the reference's are believed to be parts of a sum that is handed on."""


@dataclass(frozen=True)
class Held:
    """A logical value as the processes of one run hold it."""

    parts: tuple[Part, ...]
    placement: Placement
    shape: tuple[int, ...]

    @property
    def is_filled(self) -> bool:
        """Whether some process holds places that are none of the logical value."""
        return self.placement.kind == "sharded" and self.placement.is_filled

    def joined(self, parts: Sequence[Array]) -> Array:
        """The logical tensor, of what each process has."""
        return self.placement.joined(parts, self.shape)

    def divided(self, whole: Array) -> list[Array]:
        """What each process has of a logical tensor; of a sum the first has all of it."""
        return self.placement.divided(whole, len(self.parts))

    def beside(self, whole: Array, parts: Sequence[Array]) -> Iterator[tuple[int | None, Array, Array]]:
        """(rank's number among the parts, what it should hold, what it holds), padding left out; of a sum its whole, of no rank."""
        placement = self.placement
        if placement.adds_up:
            yield None, whole, placement.joined(parts, self.shape)
            return
        for rank, part in enumerate(parts):
            own = placement.part(whole, rank)
            if placement.kind == "sharded" and np.any(placement.positions[rank] == PAD):
                held = placement.positions[rank] != PAD
                own, part = (np.compress(held, x, axis=placement.dim_of_parts) for x in (own, part))
            yield rank, own, part


@dataclass(frozen=True)
class Crossing:
    """A value that goes into or comes out of a module call, on both sides."""

    key: str
    """Names it among all of a comparison."""
    position: str
    held: Both[Held]
    known: bool = True
    """Whether the logical value is known by what was recorded: not where ranks hold different values that should be the same, nor where
    none of the readings fits. Programs that make such a value are held against each other; what is given it is not judged."""


@dataclass(frozen=True)
class TeamCall:
    """A module call with the call of every process that ran it, all of whose values are placed."""

    row: int
    calls: Both[dict[int, int]]
    """By file."""
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]


class Crossings:
    """The module calls of a ranked comparison as calls of teams."""

    def __init__(
        self, tables: RankedTables, sites: Columns, pairs: Columns, files: Both[tuple[TraceFile, ...]], placed: Mapping[int, Placed]
    ) -> None:
        self._tables, self._pairs, self._files, self._placed = tables, pairs, files, placed
        self.parent = np.asarray(sites["parent"])
        self.row_of = tables.row_of
        self._made_by_operators: dict[tuple[str, int, bool], frozenset[int]] = {}
        self.weights: dict[Part, Crossing | None] = {}
        """By file and value of the reference, each weight; None where it is not known how the ranks hold it."""
        order, start = rows_of(pairs, len(sites["site"]))
        self.calls: dict[int, TeamCall] = {}
        for row in tables.calls:
            if sites["kind"][row] != CallKind.MODULE:
                continue
            found = self._call(row, order[start[row] : start[row + 1]].tolist())
            if found is not None:
                self.calls[row] = found

    def _call(self, row: int, pairs: Sequence[int]) -> TeamCall | None:
        by_role: dict[int, list[Crossing]] = {Role.INPUT: [], Role.OUTPUT: []}
        whole = True
        for pair in pairs:
            role = int(self._pairs["role"][pair])
            placed = self._placed.get(pair)
            crossing = None if placed is None else self._crossing(pair, placed)
            if role == Role.WEIGHT:
                self.weights |= dict.fromkeys(self._tables.ours[pair], crossing if crossing is not None and crossing.known else None)
            elif crossing is not None:
                by_role[role].append(crossing)
            else:
                whole = False
        if not whole or not by_role[Role.OUTPUT] or not self._has_all(row, by_role):
            return None
        return TeamCall(row, self._tables.calls[row], tuple(by_role[Role.INPUT]), tuple(by_role[Role.OUTPUT]))

    def _crossing(self, pair: int, placed: Placed) -> Crossing | None:
        """None where it is not known how the ranks' values make up the logical one, or some of it is on no rank."""
        placement, value = placed.placement, int(self._pairs["reference_value"][pair])
        ours, theirs = self._tables.ours[pair], self._tables.ranks[pair]
        if placement.kind == "unknown" or placement.twice:
            return None
        known = placement.fits and placed.equal is not False and not (placement.adds_up and placement.error > _SUM)
        most = _MATCHED if placement.kind == "sharded" and not placement.reading else _OTHERS
        known = known and (bool(placement.numbers) or not any(error > most for error in placed.errors))  # NaN of sums
        if not placement.fits and placed.ours is not None:  # two layouts of a wrong value: neither tells how it lies
            return None
        if not placed.errors or value < 0 or not ours or len(theirs) != len(placed.files):
            return None
        shape = placed.shape or self._files.reference[ours[0][0]].shape(ours[0][1])
        if not placement.covers(shape):
            return None
        position = self._tables.texts[int(self._pairs["position"][pair])] or "out"
        return Crossing(str(pair), position, Both(Held(ours, placed.ours or _ONE, shape), Held(theirs, placement, shape)), known)

    def _has_all(self, row: int, by_role: Mapping[int, Sequence[Crossing]]) -> bool:
        """Whether every process has all that its call was given and returned among the crossings.

        But for what a run is given besides, a cache and its slots say, which its program reads as it was; and what a root hands on besides.
        """
        inside = self.parent[row] >= 0
        for side, calls in (("reference", self._tables.calls[row].reference), ("target", self._tables.calls[row].target)):
            for file, call in calls.items():
                known = {value for of in by_role.values() for one in of for part, value in getattr(one.held, side).parts if part == file}
                made = self._made(side, file, anyhow=inside or side == "reference")
                for edge in getattr(self._files, side)[file].edges_of(call):
                    needed = inside if edge.role == Role.OUTPUT else edge.role == Role.INPUT and edge.value in made
                    if needed and edge.value not in known:
                        return False
        return True

    def _made(self, side: str, number: int, *, anyhow: bool) -> frozenset[int]:
        """The values of a file that some operator inside a module made; or just those that other ranks sent, or made with it."""
        found = self._made_by_operators.get((side, number, anyhow))
        if found is None:
            file: TraceFile = getattr(self._files, side)[number]
            kinds = file.calls.kind[file.edges.call]
            inside = (kinds != CallKind.MODULE) & (file.calls.parent[file.edges.call] >= 0)
            made = (inside if anyhow else kinds == CallKind.COLLECTIVE) & (file.edges.role == Role.OUTPUT)
            values = set(file.edges.value[made & ~np.isin(file.edges.call, list(own_of(file)))].tolist())
            if isinstance(file, Joined):
                values |= {value for value, whole in file.wholes.items() if not values.isdisjoint(whole.parts)}
            found = self._made_by_operators[side, number, anyhow] = frozenset(values)
        return found
