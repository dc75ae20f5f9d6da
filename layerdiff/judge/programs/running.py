"""The programs of one body, run: the reference's and the target's on the target's incoming values, exactly or with rounding as noise.

The target follows its own recorded decisions (top-k, comparisons), and the reference follows the target's too while what it
would have decided by itself is kept, so that a choice that hangs by a rounding is told from a wrong one afterwards. A random
draw is the target's recorded one on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.choices import Decision, as_many, compare_decisions, decides, follow
from layerdiff.judge.programs.codes import Codes, codes_of
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.inside import inside
from layerdiff.judge.programs.left_out import with_rest
from layerdiff.judge.programs.noise import Noise
from layerdiff.judge.programs.pieces import Pieces
from layerdiff.judge.programs.together import Block, Together
from layerdiff.replay.once import operands_by_position
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.program import Child, Part, run_calls
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.joined import own_of

Array = NDArray[Any]
Redone = Callable[[Arguments, Mapping[str, Array]], Mapping[str, Array]]
"""Other results of a call, from its operands and those that it makes. Raises CannotReplay where there are none."""


@dataclass
class Ran:
    """What a program made."""

    cuts: dict[tuple[int, str], Array] = field(default_factory=dict)
    """By call (a child, or the body's own) and position."""
    results: dict[int, dict[str, Array]] = field(default_factory=dict)
    """By operator call and position; only where asked for."""
    inside: dict[int, list[Array]] = field(default_factory=dict)
    """What fused calls make on their way; where results are asked for."""
    read: dict[tuple[int, str], Array] = field(default_factory=dict)
    """What was made as it is read in another shape, or in part, by operator call and position; likewise."""
    came_in: dict[int, Array] = field(default_factory=dict)
    """What is read and was not made, by value, weights left out; likewise."""
    operands: dict[int, Arguments] = field(default_factory=dict)
    """Of discrete calls."""
    decisions: list[Decision] = field(default_factory=list)
    """Those of the target that were followed, where this program would decide otherwise."""
    opaque: list[tuple[int, str]] = field(default_factory=list)
    """Calls that could not be run, with the reason: their recorded results were taken."""
    lacking: dict[int, Block] = field(default_factory=dict)
    """By call of which results were put together, how, where the parts have not all of what the other run has there."""


@dataclass
class Programs:
    """The two programs of a body."""

    runs: Both[Recorded]
    body: Body
    incoming: Incoming
    aligned: Mapping[int, int]
    """The target's operator call of each of the reference's, inside the body."""
    contents: Callable[[Recorded, int], Array]
    decided_by: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The target's calls that decide what one of the reference's does that has no partner: a sort for a top-k, or an argmax a place."""

    @cached_property
    def partners(self) -> dict[int, int]:
        """The reference's operator call of each of the target's."""
        return {t: r for r, t in self.aligned.items()}

    @cached_property
    def together(self) -> Both[Together]:
        """The calls of each side that are one in pieces."""
        return Together.both(self.runs, self.body.items)

    @cached_property
    def codes(self) -> Both[Codes]:
        """Where one side alone rounds measures to codes."""
        returned = [values for _, values in self.body.interface.outputs]
        return Both(
            codes_of(self.runs.reference, self.body.items.reference, [r for r, _ in returned], self.aligned),
            codes_of(self.runs.target, self.body.items.target, [t for _, t in returned], self.partners),
        )

    def chosen_by(self, calls: Sequence[int]) -> Array:
        """The recorded places along the last dimension that calls of the target's chose, the first ones first. Raises CannotReplay."""
        found = []
        for call in calls:
            operation = self.runs.target.operation(call)
            indices = self.contents(self.runs.target, operation.outputs["out[1]" if "out[1]" in operation.outputs else "out"])
            given = len(self.runs.target.file.shape(operation.inputs["in[0]"]))
            found.append(indices if indices.ndim == given else indices[..., None])
        return np.concatenate(found, axis=-1).astype(np.int64)

    def run(
        self,
        side: str,
        *,
        noise: Noise | None = None,
        watch: bool | frozenset[int] = False,
        kept: frozenset[int] = frozenset(),
        taken: Mapping[int, Mapping[str, Array]] = {},
        looked_at: int = -1,
        redone: Mapping[int, Redone] = {},
        pictures: Mapping[int, Any] = {},
        codes: Codes | None = None,
    ) -> Ran:
        """Run the program of one side.

        `noise` is added to each result; `watch` keeps them, all or of some calls; the decisions of the calls `kept` are the reference's
        own; `taken` are results to take instead of running calls; the operands of the call `looked_at` are kept; `redone` makes other
        results of calls; `pictures` are other arguments; `codes` others than the side's own.

        Raises CannotReplay where something that is needed was not recorded.
        """
        here = 0 if side == "reference" else 1
        run: Recorded = getattr(self.runs, side)
        ran = Ran()
        pieces = Pieces(self, side)
        if pieces:
            watch, taken, redone, pictures = pieces.each(watch, taken, redone, pictures)
        codes = getattr(self.codes, side) if codes is None else codes
        watcher = _Watcher(self, side, ran, noise, watch, kept, taken, looked_at, redone, codes)
        children = {}
        for pair, interface in self.body.children.items():
            handed = {position: values[here] for position, values in interface.inputs}
            children[pair[here]] = Child(handed, tuple(values[here] for _, values in interface.outputs))
        inputs = [values[here] for _, values in self.body.interface.inputs]
        outputs = {position: values[here] for position, values in self.body.interface.outputs}
        items = getattr(self.body.items, side)
        run_calls(Part(run, self.body.calls[here], items, children, inputs, outputs, pictures, codes.memories), watcher)
        return pieces.as_one(ran) if pieces else ran


class _Watcher:
    def __init__(
        self,
        programs: Programs,
        side: str,
        ran: Ran,
        noise: Noise | None,
        watch: bool | frozenset[int],
        kept: frozenset[int],
        taken: Mapping[int, Mapping[str, Array]],
        looked_at: int,
        redone: Mapping[int, Redone],
        codes: Codes,
    ) -> None:
        self._codes = codes
        self._programs, self._side, self._ran = programs, side, ran
        self._noise, self._watch, self._kept, self._taken, self._looked_at = noise, watch, kept, taken, looked_at
        self._redone = redone
        self._run: Recorded = getattr(programs.runs, side)
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._copies: dict[int, Array] = {}

    def incoming(self, value: int) -> Array:
        coming = self._programs.incoming
        contents = coming.for_reference(value) if self._side == "reference" else coming.for_target(value)
        return contents if self._run.weight(value) is not None else self._codes.coming(self._run.place(value).memory, contents)

    def instead(self, operation: Operation) -> Mapping[str, Array] | None:
        taken = self._taken.get(operation.call)
        if taken is None and not operation.random:
            return None
        result = self._recorded(operation) if taken is None else taken
        # made like any other: or a call that was taken over would be named again, in place of what lies behind it
        if self._watches(operation.call):
            self._ran.results[operation.call] = dict(result)
        self._note_shapes(operation, result)
        return result

    def made(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> Mapping[str, Array] | None:
        other = with_rest(self._run, operation, args, self._programs.contents)
        if operation.call in self._codes.roundings:
            results = {"out": np.array(args.args[0])}
            other = results
        if operation.call in self._redone:
            other = self._redone[operation.call](args, results)
        if other is not None:
            results = dict(other)
            other = results
        if operation.call == self._looked_at:
            self._ran.operands[operation.call] = copied(args)
        if operation.call not in self._codes.roundings and decides(operation, args, results):
            self._ran.operands[operation.call] = copied(args)
            try:
                recorded = self._recorded(operation)
            except CannotReplay:
                recorded = {}
            other = follow(args, results, as_many(recorded, results))
            if other is not None and operation.call not in self._kept:
                decision = compare_decisions(operation, args, results, other)
                if decision is not None:
                    self._ran.decisions.append(decision)
            if operation.call in self._kept:
                other = None
        elif self._noise is not None:
            other = self._noise(operation, args, results)
        shown = results if other is None else other
        if self._watches(operation.call) and not self._run.is_float_cast(operation):
            self._look(operation, args, shown)
        self._note_shapes(operation, shown)
        return other

    def _watches(self, call: int) -> bool:
        return self._watch if isinstance(self._watch, bool) else call in self._watch

    def _look(self, operation: Operation, args: Arguments, results: Mapping[str, Array]) -> None:
        """Keep what a call was given and made."""
        ran, run = self._ran, self._run
        for position, contents in operands_by_position(operation, args).items():
            value = operation.inputs.get(position)
            if value is None or position in operation.writes or run.weight(value) is not None:
                continue
            shape = self._shapes.get(run.place(value).memory[0])
            if shape == contents.shape:
                continue
            if value not in self._copies:
                self._copies[value] = _kept(contents)
            if shape is None:
                ran.came_in[value] = self._copies[value]
            else:
                ran.read[operation.call, position] = self._copies[value]
        ran.results[operation.call] = {position: _kept(made) for position, made in results.items()}
        if made_inside := inside(operation.name, args, results):
            ran.inside[operation.call] = [_kept(made) for made in made_inside]

    def _note_shapes(self, operation: Operation, results: Mapping[str, Array]) -> None:
        for position, made in results.items() if self._watch else ():
            self._shapes[self._run.place(operation.outputs[position]).memory[0]] = made.shape

    def handed(self, call: int, position: str, contents: Array) -> None:
        self._ran.cuts[call, position] = contents

    def cannot(self, operation: Operation, reason: str) -> Mapping[str, Array]:
        if operation.call in own_of(self._run.file):  # nobody recorded what it makes
            raise CannotReplay(reason)
        recorded = self._recorded(operation)
        self._ran.opaque.append((operation.call, reason))
        return recorded

    def _recorded(self, operation: Operation) -> dict[str, Array]:
        """The target's recorded results of a call, the reference's own where it has no partner. Raises CannotReplay."""
        programs = self._programs
        if self._side == "reference" and not programs.incoming.own_choices:
            there = programs.aligned.get(programs.together.reference.calls(operation.call)[-1])
            if there is None and operation.call in programs.decided_by:
                return self._as_chosen(operation, programs.chosen_by(programs.decided_by[operation.call]))
            if there is not None:
                return self._of_target(operation, programs.runs.target.operation(there))
        return {position: programs.contents(self._run, value) for position, value in operation.outputs.items()}

    def _of_target(self, operation: Operation, made: Operation) -> dict[str, Array]:
        """The target's recorded results of the call aligned with one of the reference's, in the reference's form."""
        programs, found = self._programs, {}
        for position in made.outputs:
            if position in operation.outputs:
                own, contents = operation.outputs[position], self._together(operation, made, position)
                here = partial(programs.contents, self._run, own)
                found[position] = programs.body.forms.unpacked(contents, self._run.file.shape(own), here)
        return found

    def _together(self, operation: Operation, made: Operation, position: str) -> Array:
        """What the target recorded there: of all pieces of its call, and of it what a piece of the reference's has."""
        programs, (ours, theirs) = self._programs, self._programs.together
        values = [programs.runs.target.operation(call).outputs[position] for call in theirs.calls(made.call)]
        parts = [programs.contents(programs.runs.target, value) for value in values]
        like = ours.shape(operation.call, position)
        joined = theirs.joined(made.call, parts, like) if len(parts) > 1 else None
        whole = parts[theirs.calls(made.call).index(made.call)] if joined is None else joined[0]
        apart = ours.apart(operation.call, position, whole)
        return apart[ours.calls(operation.call).index(operation.call)] if apart else whole

    def _as_chosen(self, operation: Operation, chosen: Array) -> dict[str, Array]:
        """Chosen places as what a choice of the reference's hands out; the values that they name are its own."""
        found: dict[str, Array] = {}
        for position, value in operation.outputs.items():
            shape = self._run.file.shape(value)
            first = chosen[..., : shape[-1]] if len(shape) == chosen.ndim else chosen[..., 0]
            if first.shape != shape:
                return {}
            found[position] = np.zeros(shape) if position == "out[0]" else first
        return found


def _kept(made: Array) -> Array:
    copy = np.array(made)
    copy.flags.writeable = False  # a program that is given it must not write to it
    return copy


def copied(args: Arguments) -> Arguments:
    """The arguments of a call with arrays of their own: a program goes on in the memory of these."""
    return args.mapped(lambda thing: np.array(thing) if isinstance(thing, np.ndarray) else thing)
