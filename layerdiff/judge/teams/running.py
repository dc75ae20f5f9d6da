"""The programs of one body of a team, run: all ranks of the target together, and the reference's on what the ranks were given.

The ranks follow the decisions that they recorded (top-k, comparisons), and the reference follows theirs. What each would have decided by
itself is kept among the results, and where the reference would have decided otherwise, by how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import refilled
from layerdiff.align.placements import infer
from layerdiff.align.sequence import align_sequences
from layerdiff.judge.programs.choices import Decision, compare_decisions, decides, follow
from layerdiff.judge.programs.constants import as_mask, read_weight
from layerdiff.judge.programs.left_out import with_rest
from layerdiff.judge.programs.noise import Noise
from layerdiff.judge.programs.running import copied
from layerdiff.judge.teams.bodies import TeamBody
from layerdiff.judge.teams.exchange import Exchange
from layerdiff.judge.teams.in_pieces import InPieces
from layerdiff.judge.teams.weights import Weights
from layerdiff.replay.program import Meeting, run_together
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import Role

Array = NDArray[Any]
_MOSTLY_ALIKE: Final = 0.5
"""Share of the tokens up to which choices may part, and what the others make still tells."""
Call = tuple[int, int]
"""File, and call."""


@dataclass
class TeamRan:
    """What the processes of one side made."""

    cuts: dict[int, dict[str, Array]] = field(default_factory=dict)
    """By file, and by the key of what crosses."""
    results: dict[Call, dict[str, Array]] = field(default_factory=dict)
    """By operator call and position; decisions as the program itself would make them."""
    operands: dict[Call, Arguments] = field(default_factory=dict)
    """Of the calls that decide something, and of those that were asked for."""
    decisions: dict[Call, Decision] = field(default_factory=dict)
    """Those of the reference that are not what the ranks decided."""


@dataclass
class TeamPrograms:
    """The programs of one body."""

    runs: Both[Sequence[Recorded]]
    body: TeamBody
    exchange: Both[Exchange]
    weights: Weights
    contents: Callable[[Recorded, int], Array]
    own_choices: bool = False
    """Whether the reference makes the choices that it recorded itself: what it runs then depends on them."""
    steps: list[dict[int, int]] = field(init=False)
    """The calls of the ranks that are one step of them all: by file."""
    partner: dict[Call, int] = field(init=False)
    """The number of the step that a call of the reference's goes with."""
    pieces: Both[InPieces] = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = Both(*(InPieces.in_body(self.body, side, self.contents) for side in ("reference", "target")))
        tokens, self.steps = self._steps()
        self.partner = {}
        for file in self.body.parts.reference:
            own, calls = self._done("reference", file)
            for i, j in align_sequences(own, tokens):
                self.partner |= {(file, call): j for call in self.pieces.reference.calls(file, calls[i])}

    def run(
        self,
        side: str,
        noise: Mapping[int, Noise] | None = None,
        pictures: Mapping[int, Mapping[int, Any]] = {},
        watched: Collection[Call] = frozenset(),
    ) -> TeamRan:
        """Run one side; `noise`, by file, is added to each result; `pictures`, by file and call, are other arguments of calls. `watched`:
        calls whose operands are kept.

        Raises CannotReplay where something that is needed was not recorded, or cannot be run.
        """
        ran = TeamRan()
        parts = {file: replace(part, pictures=pictures.get(file, {})) for file, part in getattr(self.body.parts, side).items()}
        files = list(parts)
        supplied = self._supplied() if side == "reference" else {}
        watchers = [_Watcher(self, side, file, ran, supplied, None if noise is None else noise[file], watched) for file in files]
        exchange: Exchange = getattr(self.exchange, side)

        def meet(met: Mapping[Call, Meeting]) -> dict[Call, dict[str, Array]]:
            by_file = {(files[i], call): meeting for (i, call), meeting in met.items()}
            return {(files.index(file), call): results for (file, call), results in exchange.meet(by_file).items()}

        run_together([(parts[file], watcher) for file, watcher in zip(files, watchers, strict=True)], meet)
        getattr(self.pieces, side).put_together(ran.results)
        return ran

    def _steps(self) -> tuple[list[Any], list[dict[int, int]]]:
        """What the ranks do in one order, as tokens, and by file the calls that do it: those of the first, then what others do besides."""
        tokens: list[Any] = []
        steps: list[dict[int, int]] = []
        leading = 0
        for file in self.body.parts.target:
            own, calls = self._done("target", file)
            paired = {j: i for i, j in align_sequences(tokens[:leading], own)}
            for j, (token, call) in enumerate(zip(own, calls, strict=True)):
                at = paired.get(j)
                if at is None:
                    tokens.append(token)
                    steps.append({file: call})
                else:
                    steps[at][file] = call
            leading = leading or len(tokens)
        return tokens, steps

    def _done(self, side: str, file: int) -> tuple[list[Any], list[int]]:
        """What a process does in order, as what it may be aligned by, and the calls."""
        part, pieces = getattr(self.body.parts, side)[file], getattr(self.pieces, side)
        rows = {getattr(child.calls, side).get(file): child.row for child in self.body.children}
        tokens: list[Any] = []
        calls: list[int] = []
        for item in part.items:
            inside = item not in part.children
            if inside and (not pieces.stands(file, item) or part.run.is_float_cast(part.run.operation(item))):
                continue
            tokens.append(part.run.operation(item).name if inside else ("child", rows[item]))
            calls.append(item)
        return tokens, calls

    def chosen_otherwise(self) -> Array | None:
        """Shape (tokens,): where the reference recorded another choice than the ranks; None where no choice tells, or most part.

        A choice is a table of whole numbers, a row a token.
        """
        tokens = self._tokens()
        found: Array | None = None
        for file, part in self.body.parts.reference.items():
            watcher = _Watcher(self, "reference", file, TeamRan(), {}, None)
            for call in part.items:
                if call in part.children or part.run.is_module(call):
                    continue
                operation = part.run.operation(call)
                for position, value in operation.outputs.items():
                    kind, shape = dtype_named(part.run.file.dtype_name(value)), part.run.file.shape(value)
                    if kind is None or kind.kind != "integer" or len(shape) != 2 or shape[0] not in tokens:
                        continue
                    own = self.contents(part.run, value)
                    theirs = watcher.decided_by_ranks(operation, {position: own}).get(position)
                    if theirs is None or theirs.shape != own.shape:
                        continue
                    apart = np.asarray((own != theirs).any(axis=1))
                    if apart.any() and apart.mean() <= _MOSTLY_ALIKE:
                        found = apart if found is None else found if len(found) != len(apart) else found | apart
        return found

    def _tokens(self) -> set[int]:
        """How many tokens the values that cross may have."""
        crossing = [*self.body.call.inputs, *self.body.call.outputs]
        return {math.prod(one.held.reference.shape[:-1]) for one in crossing if len(one.held.reference.shape) >= 2}

    def _supplied(self) -> dict[tuple[int, int], Array]:
        """By file and value of the reference: its part of the ranks' logical value."""
        found: dict[tuple[int, int], Array] = {}
        coming = [*self.body.call.inputs, *(one for child in self.body.children for one in child.outputs)]
        for crossing in coming:
            ours, theirs = crossing.held
            parts = [self.contents(self.runs.target[file], value) for file, value in theirs.parts]
            given = ours.divided(theirs.joined(parts))
            if ours.is_filled:
                given = refilled(ours.placement, given, [self.contents(self.runs.reference[file], value) for file, value in ours.parts])
            found |= dict(zip(ours.parts, given, strict=True))
        return found


class _Watcher:
    def __init__(
        self,
        programs: TeamPrograms,
        side: str,
        file: int,
        ran: TeamRan,
        supplied: Mapping[tuple[int, int], Array],
        noise: Noise | None,
        watched: Collection[Call] = frozenset(),
    ) -> None:
        self._watched = watched
        self._programs, self._side, self._file, self._ran, self._supplied, self._noise = programs, side, file, ran, supplied, noise
        self._run: Recorded = getattr(programs.runs, side)[file]
        part = getattr(programs.body.parts, side)[file]
        self._given = set(self._run.edges(part.call, Role.INPUT).values())

    def incoming(self, value: int) -> Array:
        programs, run = self._programs, self._run
        if self._side == "target":
            return read_weight(run, value, programs.contents)
        found = self._supplied.get((self._file, value))
        if found is not None:
            chosen = programs.own_choices and found.dtype.kind in "iu"
            return programs.contents(run, value) if chosen else self._in_kind(found, value)
        weight = run.weight(value)
        if weight is not None:
            return programs.weights.contents(self._file, weight, value)
        if value in self._given:  # the run itself was given it, and the ranks something in its place
            return programs.contents(run, value)
        if int(run.producer[value]) >= 0 or run.place(value).memory[0] in run.made_memories:
            raise CannotReplay("the reference reads a value here that was made elsewhere, and of which the ranks' is not known")
        return programs.contents(run, value)

    def _in_kind(self, contents: Array, value: int) -> Array:
        """A mask in the form that the reference has it."""
        known = dtype_named(self._run.file.dtype_name(value))
        if known is not None and (known.name == "bool") != (contents.dtype.kind == "b"):
            return as_mask(contents, self._programs.contents(self._run, value))
        return contents

    def instead(self, operation: Operation) -> Mapping[str, Array] | None:
        if not operation.random:
            return None
        if self._side == "reference":
            raise CannotReplay(f"{operation.name} draws at random")
        return {position: self._programs.contents(self._run, value) for position, value in operation.outputs.items()}

    def made(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> Mapping[str, Array] | None:
        at = self._file, operation.call
        apart = with_rest(self._run, operation, args, self._programs.contents)
        if apart is not None:
            return apart
        if not self._run.is_float_cast(operation):
            self._ran.results[at] = {position: np.array(made) for position, made in results.items()}
        if at in self._watched:
            self._ran.operands[at] = copied(args)
        if not decides(operation, args, results):
            return None if self._noise is None else self._noise(operation, args, results)
        self._ran.operands[at] = copied(args)
        other = follow(args, results, self._decided(operation, results))
        if self._side == "reference" and other is not None:
            decision = compare_decisions(operation, args, results, other)
            if decision is not None:
                self._ran.decisions[at] = decision
        return other

    def _decided(self, operation: Operation, results: Mapping[str, Array]) -> dict[str, Array]:
        """What the ranks recorded of a decision; empty where it is not known."""
        programs = self._programs
        if self._side == "target" or programs.own_choices:
            return {position: programs.contents(self._run, value) for position, value in operation.outputs.items()}
        return self.decided_by_ranks(operation, results)

    def decided_by_ranks(self, operation: Operation, results: Mapping[str, Array]) -> dict[str, Array]:
        """What the ranks recorded where the reference decides something, as the reference has it; empty where it is not known."""
        programs = self._programs
        step = programs.partner.get((self._file, operation.call))
        if step is None:
            return {}
        calls, pieces = programs.steps[step], programs.pieces
        operations = {file: programs.runs.target[file].operation(call) for file, call in calls.items()}
        if any(self._chooses_from_less(operation, programs.runs.target[file], one) for file, one in operations.items()):
            return {}
        found: dict[str, Array] = {}
        for position, own in results.items():
            there = {file: pieces.target.recorded(programs.runs.target[file], file, call, position) for file, call in calls.items()}
            parts = {file: part for file, part in there.items() if part is not None}
            whole = pieces.reference.whole(self._run, self._file, operation.call, position, own)
            decided = self._own_part(whole, parts) if whole is not None and len(parts) == len(there) else None
            if decided is None and len(parts) == len(there) and own.dtype.kind != "f":  # a rounding may decide most of them otherwise
                decided = self._own_part(self._recorded(operation, position, own), parts)
            if decided is not None:
                decided = pieces.reference.own_of(self._file, operation, position, decided)
            if decided is None:
                return {}
            found[position] = decided
        return found

    def _recorded(self, operation: Operation, position: str, otherwise: Array) -> Array:
        """What the reference's call was recorded to decide, by which it is told who has which part of it."""
        try:
            found = self._programs.pieces.reference.recorded(self._run, self._file, operation.call, position)
        except CannotReplay:
            return otherwise
        return otherwise if found is None else found

    def _chooses_from_less(self, operation: Operation, run: Recorded, other: Operation) -> bool:
        """Whether a rank's choices are as many as the reference's, each of its own part of what there is: the best of a cut vocabulary."""

        def sizes(run: Recorded, values: Mapping[str, int]) -> dict[str, int]:
            return {position: run.file.count(value) for position, value in values.items()}

        alike = sizes(self._run, operation.outputs) == sizes(run, other.outputs)
        return alike and sizes(self._run, operation.inputs) != sizes(run, other.inputs)

    def _own_part(self, own: Array, parts: Mapping[int, Array]) -> Array | None:
        """What this process of the reference has of a decision of all ranks."""
        several = self._programs.body.parts.reference.keys()
        if len(several) > 1:  # two layouts: the same rank's where they are one, else what all ranks decided alike
            mine = parts.get(self._file) if parts.keys() == several else None
            alike = all(np.array_equal(part, one) for one in parts.values() for part in parts.values())
            chosen = mine if mine is not None else next(iter(parts.values())) if alike else None
            return chosen if chosen is not None and chosen.shape == own.shape else None
        placement = infer(own, list(parts.values()))
        if placement.kind not in ("replicated", "sharded") or not placement.fits:
            return None
        return placement.joined(list(parts.values()), own.shape)

    def handed(self, call: int, position: str, contents: Array) -> None:
        self._ran.cuts.setdefault(self._file, {})[position] = contents

    def cannot(self, operation: Operation, reason: str) -> Mapping[str, Array]:
        raise CannotReplay(f"{operation.name} cannot be run: {reason}")
