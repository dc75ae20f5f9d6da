"""Scalars of two calls of one operator that differ, and the target's call with the reference's in their place.

A scalar is to blame only if the reference's mends what the call makes: a flag that says what a mask says in the other run is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from layerdiff.replay.recorded import Operation

Key = tuple[str, int | str]
_LACKING: Final = object()
_MOST: Final = 4
"""Scalars that are tried one by one."""


def other_scalars(target: Operation, reference: Operation) -> Iterator[tuple[Key, ...]]:
    """The scalars that differ, one by one, then all together; nothing where the two are calls of other operators."""
    if target.name != reference.name:
        return
    ours, theirs = _entries(reference.picture), _entries(target.picture)
    keys = [key for key in dict.fromkeys([*theirs, *ours]) if _differs(theirs.get(key, _LACKING), ours.get(key, _LACKING))]
    yield from ((key,) for key in keys[:_MOST] if len(keys) > 1)
    if keys:
        yield tuple(keys)


def with_scalars(target: Operation, reference: Operation, keys: Sequence[Key]) -> Any:
    """The picture of the target's call with these scalars of the reference's."""
    ours, theirs = _entries(reference.picture), dict(_entries(target.picture))
    for key in keys:
        if ours.get(key, _LACKING) is _LACKING:
            theirs.pop(key, None)
        else:
            theirs[key] = ours[key]
    places = [place for kind, place in theirs if kind == "args" and isinstance(place, int)]
    args = [theirs.get(("args", place), ours.get(("args", place))) for place in range(max(places, default=-1) + 1)]
    return {"args": args, "kwargs": {name: value for (kind, name), value in theirs.items() if kind == "kwargs"}}


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
