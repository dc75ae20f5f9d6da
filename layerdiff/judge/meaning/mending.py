"""Scalars of two calls of one operator that differ, and the target's call with the reference's in their place.

A scalar is to blame only if the reference's mends what the call makes: a flag that says what a mask says in the other run is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from layerdiff.judge.meaning.suspects import Suspects
from layerdiff.judge.meaning.wording import shown
from layerdiff.judge.programs.inside import numbers_inside
from layerdiff.judge.programs.running import Programs, Redone
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay

Key = tuple[str, int | str]
_LACKING: Final = object()
_MOST: Final = 4
"""Scalars that are tried one by one."""
_NEUTRAL: Final = {"add": 0, "sub": 0, "rsub": None, "mul": 1, "div": 1, "pow": 1}
"""Operators that follow from whole numbers, too, and the number with which each does nothing."""
_MOST_NUMBERS: Final = 12
"""Numbers that are tried in a call that has no partner."""


def other_scalars(target: Operation, reference: Operation) -> Iterator[tuple[Key, ...]]:
    """The scalars that differ, one by one, then all together; nothing where the two are calls of other operators."""
    if target.name != reference.name:
        return
    ours, theirs = _entries(reference.picture), _entries(target.picture)
    keys = [key for key in dict.fromkeys([*theirs, *ours]) if _differs(theirs.get(key, _LACKING), ours.get(key, _LACKING))]
    yield from ((key,) for key in keys[:_MOST] if len(keys) > 1)
    if keys:
        yield tuple(keys)


def only_number(target: Operation, reference: Operation) -> dict[str, float] | None:
    """The number of each of two calls, by side, where one number is all that differs."""
    (*_, keys) = [(), *other_scalars(target, reference)]
    ours, theirs = _entries(reference.picture), _entries(target.picture)
    if len(keys) != 1 or not all(_is_number(one, entries.get(keys[0])) for one, entries in ((target, theirs), (reference, ours))):
        return None
    return {"reference": float(ours[keys[0]]), "target": float(theirs[keys[0]])}


def with_scalars(target: Operation, reference: Operation, keys: Sequence[Key]) -> Any:
    """The picture of the target's call with these scalars of the reference's."""
    ours, theirs = _entries(reference.picture), dict(_entries(target.picture))
    for key in keys:
        if ours.get(key, _LACKING) is _LACKING:
            theirs.pop(key, None)
        else:
            theirs[key] = ours[key]
    places = [place for kind, place in theirs if kind == "args" and isinstance(place, int)]
    usual: dict[Key, Any] = {("args", place): ours.get(("args", place)) for place in range(max(places, default=-1) + 1)}
    return _pictured({**usual, **theirs})


def _pictured(entries: Mapping[Key, Any]) -> Any:
    args = [value for (kind, _), value in entries.items() if kind == "args"]
    return {"args": args, "kwargs": {name: value for (kind, name), value in entries.items() if kind == "kwargs"}}


def _entries(picture: Mapping[str, Any] | None) -> Mapping[Key, Any]:
    known = picture or {"args": [], "kwargs": {}}
    found: dict[Key, Any] = {("args", place): value for place, value in enumerate(known["args"])}
    return {**found, **{("kwargs", name): value for name, value in known["kwargs"].items()}}


def _differs(one: Any, other: Any) -> bool:
    return one != other and not _has_tensor(one) and not _has_tensor(other)


def _has_tensor(thing: Any) -> bool:
    if isinstance(thing, Mapping):
        return "tensor" in thing or any(map(_has_tensor, thing.values()))
    return isinstance(thing, (list, tuple)) and any(map(_has_tensor, thing))


@dataclass(frozen=True)
class OtherNumber:
    """A number of a call of the target's, and the one of the reference's with which it makes what the reference makes."""

    number: dict[str, float]
    """The one of each side, by side."""
    reference: int
    """The call in which the reference's stands, where it is one of the same operator; else -1."""
    words: str


def other_number(programs: Programs, seen: Suspects, passed: Mapping[int, Redone]) -> OtherNumber | None:
    """Whether the call that the target makes first of what the reference never makes does so for a number alone.

    Tried are the numbers of the reference's calls on the way that make what the target never does. None where none mends it.
    """
    assert seen.first is not None
    call, position = seen.first
    operation = programs.runs.target.operation(call)
    entries = dict(_entries(operation.picture))
    places = [key for key, thing in entries.items() if _is_number(operation, thing)]
    numbers = list(_numbers(programs.runs.reference, seen)) if places else []
    for reference, number in numbers[: _MOST_NUMBERS // max(1, len(places))]:
        for place in places:
            if entries[place] == number or number == _NEUTRAL.get(operation.base.rstrip("_")):
                continue
            try:
                changed = {call: _pictured({**entries, place: number})}
                made = programs.run("target", watch=frozenset({call}), pictures=changed, redone=passed).results.get(call, {}).get(position)
            except CannotReplay:
                continue
            if made is not None and made.any() and seen.known.reference.has(seen.counted(made), call):
                there = programs.runs.reference.operation(reference)
                words = shown(programs.runs.reference, reference)
                return OtherNumber(
                    {"reference": float(number), "target": float(entries[place])},
                    reference if there.name == operation.name else -1,
                    words if str(number) in words else f"{number} in {words}",
                )
    return None


def _is_number(operation: Operation, thing: Any) -> bool:
    """Whether an argument is a number that what is made follows from; whole ones may be sizes."""
    whole = isinstance(thing, int) and not isinstance(thing, bool)
    return isinstance(thing, float) or (whole and operation.base.rstrip("_") in _NEUTRAL)


def _numbers(run: Recorded, seen: Suspects) -> Iterator[tuple[int, float]]:
    """Calls of the reference's that make what the target never does, and the numbers that they are given."""
    told: set[float] = set()
    for call in sorted(seen.apart.reference):
        made = seen.ours.results.get(call, {})
        if not made or all(seen.known.target.has(one) for one in made.values()):
            continue
        operation = run.operation(call)
        own = [thing for thing in _entries(operation.picture).values() if _is_number(operation, thing)]
        first = operation.inputs.get("in[0]")
        usual = () if first is None else numbers_inside(operation.name, run.file.shape(first))
        for number in (*own, *usual):
            if number not in told:
                told.add(number)
                yield call, number
