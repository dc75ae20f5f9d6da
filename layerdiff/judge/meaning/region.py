"""`Region`: a module taken whole, both programs with their own weights, and how far apart they are in roundings of those weights.

The unit is drawn: the weights that are not the other run's are rounded otherwise, some times over, and both programs run again. What a
body was blamed for is undone in one program; where undoing it goes along with what is left of the difference, it is no folding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.decisions import with_decisions
from layerdiff.judge.meaning.precision import ratio_to_spread
from layerdiff.judge.meaning.stored import Stored
from layerdiff.judge.programs.padding import without_padding
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import COARSE_RATIO, NOTHING, BodyVerdict, Setting
from layerdiff.replay.once import operands_by_position, run_once
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
Results = list[Array]
"""The difference of what two programs return, by position."""
Taken = Mapping[int, Mapping[str, Array]]
Way = Callable[[Arguments], Mapping[str, Array]]
"""What a call makes of its operands."""
_DRAWS: Final = 8
_SIGMAS: Final = 12.0
"""How many standard deviations, estimated from the draws, the share of an undone change in what is left may be: with so few draws one
in a million harmless ones lies over it, and one in ten thousand where three roundings were made in place of one."""
_TELLS: Final = 0.125
"""A change is told from rounding where that many standard deviations are less than this share of it."""
_PART: Final = 1.0 / 16.0
"""Of a change, that is undone: small, so that what it does to what is returned lies along what any part of it does."""


@dataclass(frozen=True)
class Change:
    """A program with results that are not its own: `taken` as they are, or made of operands in another `way`."""

    taken: Taken = field(default_factory=dict)
    ways: Mapping[int, Way] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.taken or self.ways)

    def beside(self, other: Change) -> Change:
        """Both changes."""
        return Change({**self.taken, **other.taken}, {**self.ways, **other.ways})


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

    def __init__(self, setting: Setting, programs: Programs, stored: Stored) -> None:
        self._setting, self._programs, self._stored = setting, programs, stored
        self._theirs = programs.run("target", watch=True)
        ours, self._kept = with_decisions(setting, programs, self._theirs, BodyVerdict())
        if ours.opaque or self._theirs.opaque or not ours.cuts:
            raise CannotReplay("a call of the module cannot be run again")
        self._ours = programs.run("reference", kept=self._kept, watch=True)
        self._noise: list[Results] = []
        returned = [self._theirs.cuts[programs.body.calls[1], at] for at, _ in programs.body.interface.outputs]
        self._floors = [NOTHING * _rms(made) for made in returned if made.dtype.kind == "f"]
        """What float64 itself may make, by position."""

    @property
    def quantised(self) -> str | None:
        """The dtype of the whole numbers that stand for weights in either program; None where there are none."""
        for side, run in (("reference", self._setting.runs.reference), ("target", self._setting.runs.target)):
            for call in getattr(self._stored.codes, side):
                for value in run.operation(call).inputs.values():
                    name = run.file.dtype_name(value)
                    if "int" in name:
                        return name
        return None

    def weights(self, found: Sequence[Local] | None) -> list[str]:
        """The names of weights that are another in one of the runs: those that the calls of some findings read, or all of them."""
        names: dict[str, None] = {}
        for side, run, here in (("reference", self._setting.runs.reference, 0), ("target", self._setting.runs.target, 1)):
            own: frozenset[str] = getattr(self._stored.own_weights, side)
            calls = getattr(self._programs.body.items, side) if found is None else [local.calls[here] for local in found]
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
        ours = self._run("reference", changed, watch=True) if changed else self._ours
        left = None if ours is None else self._apart(self._theirs, ours)
        if ours is None or left is None:
            return None
        ratio = 0.0
        for count in (1, _DRAWS):  # most that do not meet are told by one draw
            ratio = self._ratio(left, self._draws(count))
            if not ratio <= self.limit * (2 if count == 1 else 1):
                return None
        if any(share > allowed for share, allowed in (self._share(left, change) for change in self._sizes)):
            return None
        return Base(changed, ours, left, ratio)

    def faulty(self, local: Local) -> list[Change]:
        """How the reference's program does at a finding that is a fault: what the target's call does, or what that made."""
        if min(local.calls) < 0 or any(run.is_module(call) for run, call in zip(self._setting.runs, local.calls, strict=True)):
            return []
        way = self._in_its_way(local)
        return [*([] if way is None else [Change(ways={local.calls[0]: way})]), *self._taken(local, self._ours)]

    def is_folded(self, local: Local, base: Base) -> bool:
        """Whether what a finding says is part of a folding: undone, the programs part, and in no way in which they are apart already.

        What cannot be undone, or changes nothing by itself (a call that is written otherwise), is believed where there is no other fault.
        """
        changes = self._undone(local, base)
        changes = [change for change in changes if any(_rms(off) > floor for off, floor in zip(change, self._floors, strict=True))]
        if not changes:
            return not base.changed
        told = [(share, allowed) for share, allowed in (self._share(base.left, change) for change in changes) if allowed <= _TELLS]
        return bool(told) and all(share <= allowed for share, allowed in told)

    def _share(self, left: Results, change: Results) -> tuple[float, float]:
        """How much of a change is in what is left of the difference, and how much of it roundings of the weights may be."""
        noise = self._draws(_DRAWS)
        scale = [
            1.0 / (float(np.mean([np.mean(np.square(one[at])) for one in noise])) + np.square(floor) + np.finfo(float).tiny)
            for at, floor in enumerate(self._floors)
        ]
        size = _dot(change, change, scale)
        if not size > 0.0:
            return 0.0, float("inf")
        shares = [_dot(one, change, scale) / size for one in noise]
        allowed = _SIGMAS * float(np.sqrt(np.mean(np.square(shares)))) + NOTHING
        return abs(_dot(left, change, scale) / size), allowed

    @cached_property
    def _sizes(self) -> list[Results]:
        """How what is returned changes with the size of each weight of the target's that is another, and with what codes count from."""
        ran = []
        for name in sorted(self._stored.own_weights.target):
            if not self._stored.is_real(name):
                continue
            self._stored.scale(name, 1.0 + _PART)
            ran.append(self._run("target", Change()))
            self._stored.scale(None)
        shifted = {call: {at: made + _PART for at, made in self._theirs.results[call].items()} for call in self._stored.codes.target}
        ran += [self._run("target", Change(shifted))] if shifted else []
        found = [self._apart(one, self._theirs) for one in ran if one is not None]
        return [[off / _PART for off in change] for change in found if change is not None]

    def _undone(self, local: Local, base: Base) -> list[Results]:
        """How what is returned changes where one program does at a finding as the other does, in each way in which that can be tried."""
        r, t = local.calls
        reference, target = self._setting.runs
        if (r >= 0 and reference.is_module(r)) or (t >= 0 and target.is_module(t)):
            return []
        if r < 0 or t < 0:
            side, before = ("target", self._theirs) if r < 0 else ("reference", base.ran)
            ways = self._without(side, t if r < 0 else r, before)
        else:
            side, before = "reference", base.ran
            ways = self._taken(local, before)
            if (way := self._in_its_way(local)) is not None and r not in base.changed.ways:
                given = self._programs.run(
                    "reference", looked_at=r, kept=self._kept, taken=base.changed.taken, redone=base.changed.ways
                ).operands.get(r)
                ways += [Change({r: way(given)})] if given is not None else []
        found = []
        for one in ways:
            part = Change(_in_part(one.taken, before))
            ran = self._run(side, part if r < 0 else base.changed.beside(part))
            change = None if ran is None else self._apart(ran, before)
            found += [] if change is None else [[off / _PART for off in change]]
        return found

    def _in_its_way(self, local: Local) -> Way | None:
        """What the target's call makes of what the reference's is given: with its own scalars, and its own weights. None for the same."""
        reference, target = self._setting.runs
        ours, theirs = reference.operation(local.calls[0]), target.operation(local.calls[1])
        made = self._ours.results.get(ours.call)
        if made is None:
            return None
        weights = {
            position: self._stored.for_target(value)
            for position, value in theirs.inputs.items()
            if (weight := target.weight(value)) is not None and weight[0] in self._stored.own_weights.target
        }

        def way(given: Arguments) -> Mapping[str, Array]:
            return run_once(target, theirs, {**operands_by_position(ours, given), **weights})

        try:
            given = self._programs.run("reference", looked_at=ours.call, kept=self._kept).operands.get(ours.call)
            results = {} if given is None else way(given)
        except CannotReplay:
            return None
        fits = results.keys() == made.keys() and all(results[at].shape == made[at].shape for at in made)
        return way if fits else None

    def _taken(self, local: Local, ran: Ran) -> list[Change]:
        """What the target makes at a finding, in place of what the reference does."""
        r, t = local.calls
        ours, theirs = ran.results.get(r), self._theirs.results.get(t)
        if ours is None or theirs is None or ours.keys() != theirs.keys():
            return []
        return [Change({r: theirs})] if all(ours[at].shape == theirs[at].shape for at in ours) else []

    def _without(self, side: str, call: int, ran: Ran) -> list[Change]:
        """A call left out: what it was given goes on in its place, or nothing does where that is of another shape."""
        made = ran.results.get(call)
        operation = getattr(self._setting.runs, side).operation(call)
        if made is None or operation.writes or set(made) != {"out"}:
            return []
        given = self._programs.run(side, looked_at=call, kept=self._kept).operands.get(call)
        for operand in given.args if given is not None else ():
            if isinstance(operand, np.ndarray) and operand.dtype.kind == "f" and operand.shape == made["out"].shape:
                return [Change({call: {"out": operand}})]
        return [Change({call: {"out": np.zeros_like(made["out"])}})]

    def _run(self, side: str, changed: Change, *, rounding: bool = False, watch: bool = False) -> Ran | None:
        try:
            noise = self._stored.rounding_of_codes(side) if rounding else None
            return self._programs.run(side, kept=self._kept, taken=changed.taken, redone=changed.ways, noise=noise, watch=watch)
        except CannotReplay:
            return None

    def _draws(self, count: int) -> list[Results]:
        """What roundings of the weights make of the difference, drawn at least `count` times."""
        while len(self._noise) < count:
            self._stored.move(len(self._noise))
            ran = [self._run(side, Change(), rounding=True) for side in ("target", "reference")]
            self._stored.move(None)
            moved = [None if one is None else self._apart(one, exact) for one, exact in zip(ran, (self._theirs, self._ours), strict=True)]
            if moved[0] is None or moved[1] is None:
                raise CannotReplay("roundings of the weights make something that is not finite")
            self._noise.append([one - other for one, other in zip(moved[0], moved[1], strict=True)])
        return self._noise

    def _apart(self, one: Ran, other: Ran) -> Results | None:
        """The difference of what two programs return; None where whole numbers, or what is not finite, differ."""
        found = []
        padded = self._setting.padded
        for position, values in self._programs.body.interface.outputs:
            x, y = _returned(one, self._programs.body.calls, position), _returned(other, self._programs.body.calls, position)
            if x is None or y is None:
                return None
            shapes = [run.file.shape(value) for run, value in zip(self._setting.runs, values, strict=True)]
            x, y = (self._programs.body.forms.counted(made, shapes[0], shapes[1]) for made in (x, y))
            x = without_padding(x, y, padded)
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
        worst = 0.0
        for at, off in enumerate(left):
            spread = np.stack([one[at] for one in noise])
            floor = np.full(spread.shape, self._floors[at])
            worst = max(worst, ratio_to_spread(np.broadcast_to(off, spread.shape), spread, floor))
        return worst


def _in_part(taken: Taken, ran: Ran) -> dict[int, dict[str, Array]]:
    """Results that lie a part of the way from what was made to what is to be taken over."""
    found: dict[int, dict[str, Array]] = {}
    for call, results in taken.items():
        made = ran.results[call]
        found[call] = {at: made[at] + _PART * (there - made[at]) if there.dtype.kind == "f" else there for at, there in results.items()}
    return found


def _returned(ran: Ran, calls: tuple[int, int], position: str) -> Array | None:
    return next((ran.cuts[call, position] for call in calls if (call, position) in ran.cuts), None)


def _rms(made: Array) -> float:
    finite = made[np.isfinite(made)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _dot(one: Results, other: Results, scale: Sequence[float]) -> float:
    return float(sum(by * float(np.sum(x * y)) for x, y, by in zip(one, other, scale, strict=True)))
