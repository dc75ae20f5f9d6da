"""`Region`: a module taken whole, both programs with their own weights, and how far apart they are in roundings of those weights.

The unit is drawn: the weights that are not the other run's are rounded otherwise, some times over, and both programs run again. What a
body was blamed for is undone in one program; where undoing it goes along with what is left of the difference, it is no folding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.changes import UNCHANGED, Change, instead, without
from layerdiff.judge.meaning.decisions import with_decisions
from layerdiff.judge.meaning.mending import other_scalars
from layerdiff.judge.meaning.precision import Size, ratio_of
from layerdiff.judge.meaning.stored import Stored
from layerdiff.judge.programs.constants import as_mask, within_rounding
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import COARSE_RATIO, NOTHING, BodyVerdict, Setting
from layerdiff.replay.once import operands_by_position, run_once
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
Results = list[Array]
"""The difference of what two programs hand on: of each float that they do."""
Scaled = tuple[str, Array]
"""A weight of the target's by name, and what it is multiplied by, element by element."""
_DRAWS: Final = 8
_SIGMAS: Final = 12.0
"""How many standard deviations, estimated from the draws, the share of an undone change in what is left may be: with so few draws one
in a million harmless ones lies over it, and one in ten thousand where three roundings were made in place of one."""
_TELLS: Final = 0.125
"""A change is told from rounding where that many standard deviations are less than this share of it."""
_MADE_IN: Final = "float32"
"""The dtype in which a weight is made before it is rounded."""
_PART: Final = 1.0 / 16.0
"""Of a change, that is undone: small, so that what it does to what is handed on lies along what any part of it does."""


@dataclass(frozen=True)
class Base:
    """The reference's program, changed at a call that is wrong for itself; or as it is."""

    changed: Change
    ran: Ran
    left: Results
    """How far the target's program is from it."""
    ratio: float
    """The same, in what roundings of the weights make."""


class Region:
    """Both programs of a module, whole. Raises CannotReplay where something was not recorded, or they do not run."""

    limit: Final = COARSE_RATIO
    """How many times its predicted spread what is left may be."""

    def __init__(self, setting: Setting, programs: Programs, stored: Stored, found: Sequence[Local]) -> None:
        """`found`: what is asked about later on."""
        self.setting, self.programs, self.stored = setting, programs, stored
        body = programs.body
        self.calls = len(body.items.reference)
        self._cuts = [(body.calls, at, values) for at, values in body.interface.outputs]
        self._cuts += [(pair, at, values) for pair, handed in body.children.items() for at, values in handed.inputs]
        self._theirs = programs.run("target", watch=frozenset(local.calls[1] for local in found))
        self.ours, self._kept = with_decisions(setting, programs, self._theirs, BodyVerdict())
        if self.ours.opaque or self._theirs.opaque or not self.ours.cuts:
            raise CannotReplay("a call of the module cannot be run again")
        self._noise: list[Results] = []
        handed_on = [made for made in self._handed("target", self._theirs) if made.dtype.kind == "f"]
        self._floors = [NOTHING * Size.of(made[np.isfinite(made)]).rms for made in handed_on]
        """What float64 itself may make."""

    def target_with(self, changed: Change, scaled: Scaled | None = None) -> Ran | None:
        """The target's program with all that it makes, changed, or with a weight multiplied; None where it does not run."""
        self.stored.scale(*(scaled or (None,)))
        try:
            return self._run("target", changed, watch=True)
        finally:
            self.stored.scale(None)

    def apart_with(self, changed: Change, scaled: Scaled | None = None) -> float | None:
        """How far the programs are apart then, in what roundings of the weights make then; None where they do not meet at all."""
        theirs = None if self._kept else self.target_with(changed, scaled)
        left = None if theirs is None else self._apart(self._handed("target", theirs), self._handed("reference", self.ours))
        if theirs is None or left is None:
            return None
        return self._ratio(left, [self._draw(number, theirs, changed, scaled) for number in range(_DRAWS)])

    def roundings_at(self, position: str) -> Results:
        """What roundings of the weights make of a float that the module returns, each time that they are drawn."""
        call = self.programs.body.calls[1]
        floats = [
            (pair[1], at)
            for (pair, at, _), made in zip(self._cuts, self._handed("target", self._theirs), strict=True)
            if made.dtype.kind == "f"
        ]
        return [one[floats.index((call, position))] for one in self._draws(_DRAWS)]

    def weights(self, found: Sequence[Local] | None) -> list[str]:
        """The names of weights that are another in one of the runs: those that the calls of some findings read, or all of them."""
        names: dict[str, None] = {}
        for here, (own, run) in enumerate(zip(self.stored.own_weights, self.setting.runs, strict=True)):
            calls = list(self.programs.body.items)[here] if found is None else [local.calls[here] for local in found]
            for call in calls:
                for value in () if call < 0 or run.is_module(call) else run.operation(call).inputs.values():
                    weight = run.weight(value)
                    if weight is not None and weight[0] in own:
                        names[weight[0]] = None
        return list(names)

    def base(self, changed: Change) -> Base | None:
        """Both programs, the reference's `changed`; None where they do not meet even then."""
        if self._kept:  # a choice that the reference's program makes for itself, by more than rounding
            return None
        ours = self._run("reference", changed) if changed else self.ours
        left = None if ours is None else self._apart(self._handed("target", self._theirs), self._handed("reference", ours))
        if ours is None or left is None:
            return None
        ratio = 0.0
        for count in (1, _DRAWS):  # most that do not meet are told by one draw
            ratio = self._ratio(left, self._draws(count)[:count])
            if not ratio <= self.limit * (2 if count == 1 else 1):
                return None
        if any(share > allowed for share, allowed in (self._share(left, change) for change in self._sizes)):
            return None
        return Base(changed, ours, left, ratio)

    def faulty(self, local: Local) -> list[Change]:
        """How the reference's program does at a finding that is a fault: what the target's call does, or what that made."""
        if min(local.calls) < 0 or any(run.is_module(call) for run, call in zip(self.setting.runs, local.calls, strict=True)):
            return []
        return [*self._in_its_way(local), *self._taken(local)]

    def is_folded(self, local: Local, base: Base) -> bool:
        """Whether what a finding says is part of a folding: undone, the programs part, and in no way in which they are apart already.

        What cannot be undone, or changes nothing by itself (a call that is written otherwise), is believed where there is no other fault;
        and so is a call that differs by one rounding of a weight, since undoing that is what is left.
        """
        if not base.changed and self._is_rounding(local):
            return True
        changes = self._undone(local, base)
        changes = [change for change in changes if any(Size.of(off).rms > floor for off, floor in zip(change, self._floors, strict=True))]
        if not changes:
            return not base.changed
        told = [(share, allowed) for share, allowed in (self._share(base.left, change) for change in changes) if allowed <= _TELLS]
        return bool(told) and all(share <= allowed for share, allowed in told)

    def _is_rounding(self, local: Local) -> bool:
        """Whether both runs make a call alike, but that a weight of the target's is what the reference makes there, rounded once."""
        if min(local.calls) < 0 or any(run.is_module(call) for run, call in zip(self.setting.runs, local.calls, strict=True)):
            return False
        reference, target = (run.operation(call) for run, call in zip(self.setting.runs, local.calls, strict=True))
        if reference.name != target.name or reference.inputs.keys() != target.inputs.keys() or any(other_scalars(target, reference)):
            return False
        try:
            given = [
                operands_by_position(operation, self.programs.run(side, kept=self._kept, looked_at=operation.call).operands[operation.call])
                for side, operation in (("reference", reference), ("target", target))
            ]
        except (CannotReplay, KeyError):
            return False
        return all(self._is_rounded(given[0][at], given[1][at], target.inputs[at]) for at in given[1])

    def _is_rounded(self, ours: Array, theirs: Array, value: int) -> bool:
        run = self.setting.runs.target
        weight = run.weight(value)
        if ours.shape != theirs.shape:
            return False
        if weight is not None and weight.name in self.stored.own_weights.target:
            return within_rounding(ours, theirs, _MADE_IN, run.file.dtype_name(weight.whole))
        return bool(np.allclose(ours, theirs, rtol=0.0, atol=NOTHING * Size.of(theirs).rms, equal_nan=True))

    def _share(self, left: Results, change: Results) -> tuple[float, float]:
        """How much of a change is in what is left of the difference, and how much of it roundings of the weights may be."""
        size = _dot(change, change, self._scale)
        if not size > 0.0:
            return 0.0, float("inf")
        shares = [_dot(one, change, self._scale) / size for one in self._draws(_DRAWS)]
        allowed = _SIGMAS * float(np.sqrt(np.mean(np.square(shares)))) + NOTHING
        return abs(_dot(left, change, self._scale) / size), allowed

    @cached_property
    def _scale(self) -> list[float]:
        """One over the mean square of what roundings make, by position."""
        noise = self._draws(_DRAWS)
        squares = [float(np.mean([Size.of(one[at]).rms ** 2 for one in noise])) for at in range(len(self._floors))]
        return [1.0 / (square + floor**2 + np.finfo(float).tiny) for square, floor in zip(squares, self._floors, strict=True)]

    @cached_property
    def _sizes(self) -> list[Results]:
        """How what is handed on changes with the size of each weight of the target's that is another, and with what codes count from."""
        found: list[Results] = []
        for name in sorted(self.stored.own_weights.target):
            if self.stored.is_real(name):
                self.stored.scale(name, 1.0 + _PART)
                found += self._changed("target", UNCHANGED, self._theirs)
                self.stored.scale(None)
        if self.stored.codes.target:
            found += self._changed("target", Change(self.stored.codes_shifted(_PART)), self._theirs)
        return found

    def _undone(self, local: Local, base: Base) -> list[Results]:
        """How what is handed on changes where one program does at a finding as the other does, in each way in which that can be tried."""
        if any(call >= 0 and run.is_module(call) for run, call in zip(self.setting.runs, local.calls, strict=True)):
            return []
        r, t = local.calls
        if r < 0:
            side, before, ways = "target", self._theirs, self._without("target", t)
        else:
            side, before = "reference", base.ran
            ways = self._without("reference", r) if t < 0 else [*self._taken(local), *self._in_its_way(local)]
        found: list[Results] = []
        for one in ways:
            part = one.in_part(_PART)
            found += self._changed(side, part if r < 0 else base.changed.then(part), before)
        return found

    def _changed(self, side: str, changed: Change, before: Ran) -> Iterator[Results]:
        """What a part of a change does to what is handed on, as the whole of it would; nothing where it does not run."""
        ran = self._run(side, changed)
        change = None if ran is None else self._apart(self._handed(side, ran), self._handed(side, before))
        if change is not None:
            yield [off / _PART for off in change]

    def _in_its_way(self, local: Local) -> list[Change]:
        """What the target's call makes of what the reference's is given: with its own scalars, and its own weights."""
        reference, target = self.setting.runs
        ours, theirs = reference.operation(local.calls[0]), target.operation(local.calls[1])
        if ours.inputs.keys() != theirs.inputs.keys():
            return []
        mine = self.stored.own_weights.target
        own = {at: value for at, value in theirs.inputs.items() if (weight := target.weight(value)) is not None and weight[0] in mine}

        def way(given: Arguments, made: Mapping[str, Array]) -> Mapping[str, Array]:
            weights = {position: self.stored.for_target(value) for position, value in own.items()}
            return instead(run_once(target, theirs, {**operands_by_position(ours, given), **weights}))(given, made)

        return [Change({ours.call: way})]

    def _taken(self, local: Local) -> list[Change]:
        """What the target makes at a finding, in place of what the reference does."""
        theirs = self._theirs.results.get(local.calls[1])
        return [] if theirs is None else [Change({local.calls[0]: instead(theirs)})]

    def _without(self, side: str, call: int) -> list[Change]:
        """A call left out."""
        operation = getattr(self.setting.runs, side).operation(call)
        return [] if operation.writes or set(operation.outputs) != {"out"} else [Change({call: without})]

    def _run(self, side: str, changed: Change, *, rounding: bool = False, watch: bool = False) -> Ran | None:
        try:
            noise = self.stored.rounding_of_codes(side) if rounding else None
            return self.programs.run(side, kept=self._kept, redone=changed.ways, noise=noise, watch=watch)
        except CannotReplay:
            return None

    def _draws(self, count: int) -> list[Results]:
        """What roundings of the weights make of the difference, drawn at least `count` times."""
        while len(self._noise) < count:
            self._noise.append(self._draw(len(self._noise), self._theirs))
        return self._noise

    def _draw(self, number: int, theirs: Ran, changed: Change = UNCHANGED, scaled: Scaled | None = None) -> Results:
        """The `number`-th of them, of the target's program as it is, or changed and with a weight multiplied, which made `theirs`."""
        moved = []
        self.stored.move(number)
        self.stored.scale(*(scaled or (None,)))
        try:
            for side, way, exact in (("target", changed, theirs), ("reference", UNCHANGED, self.ours)):
                ran = self._run(side, way, rounding=True)
                off = None if ran is None else self._apart(self._handed(side, ran), self._handed(side, exact))
                if off is None:
                    raise CannotReplay("roundings of the weights make something that is not finite")
                moved.append(off)
        finally:
            self.stored.move(None)
            self.stored.scale(None)
        return [one - other for one, other in zip(*moved, strict=True)]

    def _handed(self, side: str, ran: Ran) -> Iterator[Array]:
        """What a program hands on, in the forms that the reference's has."""
        forms = self.programs.body.forms
        for pair, at, values in self._cuts:
            shapes = [run.file.shape(value) for run, value in zip(self.setting.runs, values, strict=True)]
            made, own = ran.cuts[getattr(Both(*pair), side), at], self.ours.cuts[pair[0], at]
            yield as_mask(forms.counted(made, side, shapes[0], shapes[1]), forms.counted(own, "reference", shapes[0], shapes[1]))

    def _apart(self, ones: Iterable[Array], others: Iterable[Array]) -> Results | None:
        """The difference of what two programs hand on; None where whole numbers, or what is not finite, differ."""
        found = []
        for one, other in zip(ones, others, strict=True):
            x, y = self.setting.alike(one, other)
            if x.dtype.kind != "f":
                if not np.array_equal(x, y):
                    return None
                continue
            finite = np.isfinite(x) & np.isfinite(y)
            if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
                return None
            found.append(np.where(finite, x - np.where(finite, y, 0.0), 0.0))
        return found or None

    def _ratio(self, left: Results, noise: Sequence[Results]) -> float:
        """What is left over what roundings make, the worst of what is handed on."""
        spreads = [Size.together(Size.of(one[at]) for one in noise) for at in range(len(left))]
        return max(ratio_of(Size.of(off), spread, Size(by, by)) for off, spread, by in zip(left, spreads, self._floors, strict=True))


def _dot(one: Results, other: Results, scale: Sequence[float]) -> float:
    return float(sum(by * float(np.sum(x * y)) for x, y, by in zip(one, other, scale, strict=True)))
