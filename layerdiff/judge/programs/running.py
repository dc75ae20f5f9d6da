"""The programs of one body, run: the reference's and the target's on the target's incoming values, exactly or with rounding as noise.

The target follows its own recorded decisions (top-k, comparisons), and the reference follows the target's too while what it
would have decided by itself is kept, so that a choice that hangs by a rounding is told from a wrong one afterwards. A random
draw is the target's recorded one on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.inside import inside
from layerdiff.judge.programs.noise import Noise
from layerdiff.replay.discrete import is_discrete
from layerdiff.replay.once import operands_by_position
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.program import Child, Part, run_calls
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
_CASTS: Final = ("aten._to_copy.default",)
Redone = Callable[[Arguments, Mapping[str, Array]], Mapping[str, Array]]
"""Other results of a call, from its operands and those that it makes. Raises CannotReplay where there are none."""


@dataclass
class Decision:
    """A discrete call of the reference's program whose exact result is not what the target decided."""

    operation: Operation
    own: dict[str, Array]
    margin: Array
    """How far from the border each element, or row, of the deciding operand is; 0 where both decide alike."""
    scale: Array
    """The size of the operand there."""
    differs: Array
    """Where the two decide otherwise; of the form of `margin`, or of one that it is spread to."""


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
    opaque: list[tuple[int, str]] = field(default_factory=list)
    """Calls that could not be run, with the reason: their recorded results were taken."""


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
    ) -> Ran:
        """Run the program of one side.

        `noise` is added to each result; `watch` keeps them, all or of some calls; the decisions of the calls `kept` are the reference's
        own; `taken` are results to take instead of running calls; the operands of the call `looked_at` are kept; `redone` makes other
        results of calls; `pictures` are other arguments. Raises CannotReplay where something that is needed was not recorded.
        """
        here = 0 if side == "reference" else 1
        run: Recorded = getattr(self.runs, side)
        ran = Ran()
        watcher = _Watcher(self, side, ran, noise, watch, kept, taken, looked_at, redone)
        children = {}
        for pair, interface in self.body.children.items():
            handed = {position: values[here] for position, values in interface.inputs}
            children[pair[here]] = Child(handed, tuple(values[here] for _, values in interface.outputs))
        inputs = [values[here] for _, values in self.body.interface.inputs]
        outputs = {position: values[here] for position, values in self.body.interface.outputs}
        run_calls(Part(run, self.body.calls[here], getattr(self.body.items, side), children, inputs, outputs, pictures), watcher)
        return ran


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
    ) -> None:
        self._programs, self._side, self._ran = programs, side, ran
        self._noise, self._watch, self._kept, self._taken, self._looked_at = noise, watch, kept, taken, looked_at
        self._redone = redone
        self._run: Recorded = getattr(programs.runs, side)
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._copies: dict[int, Array] = {}

    def incoming(self, value: int) -> Array:
        coming = self._programs.incoming
        return coming.for_reference(value) if self._side == "reference" else coming.for_target(value)

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
        other: Mapping[str, Array] | None = None
        if operation.call in self._redone:
            results = dict(self._redone[operation.call](args, results))
            other = results
        if operation.call == self._looked_at:
            self._ran.operands[operation.call] = copied(args)
        if decides(operation, args, results):
            self._ran.operands[operation.call] = copied(args)
            try:
                recorded = self._recorded(operation)
            except CannotReplay:
                recorded = {}
            other = follow(args, results, _as_many(recorded, results))
            if self._side == "reference" and other is not None and operation.call not in self._kept:
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
        recorded = self._recorded(operation)
        self._ran.opaque.append((operation.call, reason))
        return recorded

    def _recorded(self, operation: Operation) -> dict[str, Array]:
        """The target's recorded results of a call, the reference's own where it has no partner. Raises CannotReplay."""
        programs = self._programs
        if self._side == "reference" and not programs.incoming.own_choices:
            there = programs.aligned.get(operation.call)
            if there is None and operation.call in programs.decided_by:
                return self._as_chosen(operation, programs.chosen_by(programs.decided_by[operation.call]))
            if there is not None:
                return self._of_target(operation, programs.runs.target.operation(there))
        return {position: programs.contents(self._run, value) for position, value in operation.outputs.items()}

    def _of_target(self, operation: Operation, made: Operation) -> dict[str, Array]:
        """The target's recorded results of the call aligned with one of the reference's, in the reference's form."""
        programs, found = self._programs, {}
        for position, value in made.outputs.items():
            if position in operation.outputs:
                own, contents = operation.outputs[position], programs.contents(programs.runs.target, value)
                here = partial(programs.contents, self._run, own)
                found[position] = programs.body.forms.unpacked(contents, self._run.file.shape(own), here)
        return found

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


def _as_many(recorded: Mapping[str, Array], results: Mapping[str, Array]) -> dict[str, Array]:
    """Recorded decisions, of a sort the first ones, as many as there are results."""
    found = dict(recorded)
    for position, made in results.items():
        one = found.get(position)
        if one is not None and one.ndim == made.ndim > 0:
            found[position] = one[..., : made.shape[-1]]
    return found


def decides(operation: Operation, args: Arguments, results: Mapping[str, Array]) -> bool:
    """Whether a float operand decides a discrete result of this call."""
    floats = any(_is_float(thing) for thing in [*args.args, *args.kwargs.values()])
    if not floats:
        return False
    if is_discrete(operation.name):
        return True
    return operation.name in _CASTS and any(made.dtype.kind in "iub" for made in results.values())


def follow(args: Arguments, results: Mapping[str, Array], recorded: Mapping[str, Array]) -> dict[str, Array] | None:
    """The results that follow recorded decisions: recorded indices and codes, and the exact operand at those indices."""
    if not recorded or any(position not in recorded or recorded[position].shape != made.shape for position, made in results.items()):
        return None
    found: dict[str, Array] = {}
    indices = recorded.get("out[1]")
    for position, made in results.items():
        if position == "out[0]" and made.dtype.kind == "f" and indices is not None and indices.dtype.kind in "iu":
            found[position] = _at(args, indices, made)
        else:
            found[position] = recorded[position].astype(made.dtype)
    return found


def _at(args: Arguments, indices: Array, made: Array) -> Array:
    """The operand at the indices that a choice along one dimension named."""
    operand = args.args[0]
    numbers = [thing for thing in [*args.args[1:], *args.kwargs.values()] if isinstance(thing, int) and not isinstance(thing, bool)]
    candidates = (
        [args.kwargs["dim"]] if isinstance(args.kwargs.get("dim"), int) else [n for n in numbers if -operand.ndim <= n < operand.ndim]
    )
    for dim in [*reversed(candidates), operand.ndim - 1]:
        shaped = indices if indices.ndim == operand.ndim else np.expand_dims(indices, dim) if indices.ndim == operand.ndim - 1 else None
        if shaped is None:
            continue
        others = [d for d in range(operand.ndim) if d != dim % operand.ndim]
        if all(shaped.shape[d] == operand.shape[d] for d in others) and (not shaped.size or int(shaped.max()) < operand.shape[dim]):
            return np.take_along_axis(operand, shaped, dim).reshape(made.shape)
    return made


def compare_decisions(operation: Operation, args: Arguments, own: Mapping[str, Array], other: Mapping[str, Array]) -> Decision | None:
    """What the reference would have decided against what the target did; None where they agree."""
    keys = [position for position, made in own.items() if made.dtype.kind in "iub"] or list(own)
    if all(np.array_equal(own[position], other[position]) for position in keys):
        return None
    made = {position: np.array(result) for position, result in own.items()}
    if "out[0]" in own and own["out[0]"].dtype.kind == "f" and "out[1]" in own:
        one, two = own["out[0]"], other["out[0]"]
        margin = np.where(_beyond(args, other["out[1]"]), np.inf, apart(one, two))
        return Decision(operation, made, margin, np.maximum(np.abs(one), np.abs(two)), own["out[1]"] != other["out[1]"])
    position = keys[0]
    differs = own[position] != other[position]
    operands = [thing for thing in args.args if _is_float(thing) and isinstance(thing, np.ndarray)]
    first = operands[0]
    if operation.base in ("argmax", "argmin") and own[position].shape != first.shape:
        flat = own[position].ndim == 0 or own[position].size == 1
        if np.any(_beyond(args, other[position], flat=flat)):
            return Decision(operation, made, np.where(differs, np.inf, 0.0), np.ones(differs.shape), differs)
        one, two = _chosen(first, made[position], flat), _chosen(first, np.array(other[position]), flat)
        return Decision(operation, made, apart(one, two), np.maximum(np.abs(one), np.abs(two)), differs.reshape(one.shape))
    second: Any = args.args[1] if len(args.args) > 1 and not isinstance(args.args[1], (list, tuple, str)) else 0.0
    if not isinstance(second, (int, float, np.ndarray)):
        second = 0.0
    if own[position].shape == first.shape and own[position].dtype.kind != "b":  # rounding to codes
        return Decision(operation, made, np.where(differs, np.abs(first - np.floor(first) - 0.5), 0.0), np.abs(first), differs)
    try:
        margin, scale = np.broadcast_arrays(apart(first, np.asarray(second)), np.maximum(np.abs(first), np.abs(second)))
        return Decision(operation, made, np.where(differs, margin, 0.0), scale, differs)
    except ValueError:
        return Decision(operation, made, np.full(differs.shape, np.inf), np.ones(differs.shape), differs)


def apart(one: Array, other: Array) -> Array:
    """How far apart two arrays are, element by element: 0 where both are the same infinity or NaN, infinite where one alone is."""
    with np.errstate(invalid="ignore"):
        off = np.abs(one - other)
    off = np.where(np.isnan(off), np.inf, off)
    same: Array = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, off)
    return same


def _beyond(args: Arguments, indices: Array, *, flat: bool = False) -> NDArray[np.bool_]:
    """Which indices name no place of the operand that was chosen from: there is none to choose, however little it would lack."""
    shape = args.args[0].shape
    last = not flat and indices.shape[: len(shape) - 1] == shape[:-1]
    return np.asarray(indices >= (math.prod(shape) if flat else shape[-1] if last else max(shape, default=1)))


def _chosen(operand: Array, indices: Array, flat: bool) -> Array:
    if flat:
        return np.array(operand.reshape(-1)[indices.reshape(-1)])
    for dim in range(operand.ndim - 1, -1, -1):
        shape = operand.shape[:dim] + operand.shape[dim + 1 :]
        if indices.shape == shape:
            return np.take_along_axis(operand, np.expand_dims(indices, dim), dim)
        if indices.shape == (*operand.shape[:dim], 1, *operand.shape[dim + 1 :]):
            return np.take_along_axis(operand, indices, dim)
    return operand.reshape(-1)[:1]


def _is_float(thing: Any) -> bool:
    if isinstance(thing, (list, tuple)):
        return any(_is_float(item) for item in thing)
    return isinstance(thing, np.ndarray) and thing.dtype.kind in "fc"


def copied(args: Arguments) -> Arguments:
    """The arguments of a call with arrays of their own: a program goes on in the memory of these."""

    def copy(thing: Any) -> Any:
        if isinstance(thing, np.ndarray):
            return np.array(thing)
        return [copy(item) for item in thing] if isinstance(thing, list) else thing

    return Arguments(tuple(copy(thing) for thing in args.args), {name: copy(thing) for name, thing in args.kwargs.items()})
