"""Which value of a reference call goes with which of its target call: by role and position."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layerdiff.align.forms import Shape, is_turned, same_form
from layerdiff.sides import Both

Position = tuple[int, str]
"""(role, position): an input, an output or a weight, and where it stood."""
_NAMED = "in."
_PLACED = "in["
_ALONE = "out"


def pair_positions(
    reference: Sequence[Position],
    target: Sequence[Position],
    shapes: Both[Sequence[Shape]] | None = None,
    kinds: Both[Sequence[str]] | None = None,
    *,
    inside: bool = False,
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Pairs of indices with equal role and position, in the target's order; then those left on each side.

    A value handed over by name on one side and by place on the other is paired where exactly one is
    left of its role on each side, or one of its form by `shapes` (as a rank's part of it, where nothing has its form). So is a result
    that one side returns alone and the other beside others, such as weights of attention or a cache. Never is a mask paired with what
    is none by its name, nor at one place a cache with what has no such form, nor what is of another kind by `kinds` ("float", ...): ids
    with what an embedding made of them.
    `inside`: in another module call. There the form of whole numbers says nothing: an engine hands on slots as a model hands on positions.
    """

    def alike(i: int, j: int) -> bool:
        return kinds is None or _of_one_kind(kinds.reference[i], kinds.target[j], reference[i][1], target[j][1])

    where: dict[Position, list[int]] = {}
    for i, position in enumerate(reference):
        where.setdefault(position, []).append(i)
    pairs: list[tuple[int, int]] = []
    target_left: list[int] = []
    for j, position in enumerate(target):
        candidates = where.get(position)
        if candidates and not (shapes is not None and _is_another_thing(position, shapes.reference[candidates[0]], shapes.target[j])):
            pairs.append((candidates.pop(0), j))
        else:
            target_left.append(j)
    paired = {i for i, _ in pairs}
    reference_left = [i for i in range(len(reference)) if i not in paired]
    for same in (_same_form, _is_part_of) if shapes is not None else ():  # a table of cosines looks like a part of the hidden states
        assert shapes is not None
        for i in list(reference_left):
            role, name = reference[i]
            if inside and kinds is not None and kinds.reference[i] == "integer":
                continue
            like = [j for j in target_left if role == target[j][0] and _in_two_ways(name, target[j][1])]
            like = [j for j in like if same(shapes.reference[i], shapes.target[j]) and alike(i, j)]
            if len(like) != 1:
                continue
            others = [k for k in reference_left if reference[k][0] == role and same(shapes.reference[k], shapes.target[like[0]])]
            if others == [i]:
                pairs.append((i, like[0]))
                reference_left.remove(i)
                target_left.remove(like[0])
    for role in sorted({reference[i][0] for i in reference_left}):
        ours = [i for i in reference_left if reference[i][0] == role]
        theirs = [j for j in target_left if target[j][0] == role]
        if len(ours) != 1 or len(theirs) != 1 or not alike(ours[0], theirs[0]):
            continue
        if not _is_mask_alone(reference[ours[0]][1], target[theirs[0]][1]):
            pairs.append((ours[0], theirs[0]))
            reference_left.remove(ours[0])
            target_left.remove(theirs[0])
    return pairs, reference_left, target_left


def _is_another_thing(position: Position, one: Shape, other: Shape) -> bool:
    """Whether two values at the same place of a call have forms that nothing has in two ways, cut on ranks or not."""
    if not position[1].startswith(_PLACED):
        return False
    counts = sorted((math.prod(one), math.prod(other)))
    dims = [sum(size != 1 for size in shape) for shape in (one, other)]
    return abs(dims[0] - dims[1]) > 1 and (counts[0] == 0 or counts[1] % counts[0] != 0)


def _same_form(one: Shape, other: Shape) -> bool:
    return same_form(one, other) or is_turned(one, other)


def _is_part_of(one: Shape, other: Shape) -> bool:
    return _is_part(one, other) or _is_part(one, (*other[1::-1], *other[2:]))


def _is_part(one: Shape, other: Shape) -> bool:
    """Whether a rank may have a value of the second shape as its part of one of the first."""
    differing = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    return len(one) == len(other) > 2 and len(differing) == 1 and differing[0][1] > 0 and differing[0][0] % differing[0][1] == 0


def _of_one_kind(one: str, other: str, *names: str) -> bool:
    """Whether values of these kinds may be one input: a mask is written in floats, in whole numbers, or in booleans."""
    if one == other or {one, other} == {"boolean", "float"} or any(name.endswith("mask") for name in names):
        return True
    return not all(name.startswith((_NAMED, _PLACED)) for name in names)  # weights are kept as codes, too


def _is_mask_alone(one: str, other: str) -> bool:
    """Whether one of two values that are handed over by name is a mask, and the other is not."""
    return all(name.startswith(_NAMED) for name in (one, other)) and one.endswith("mask") != other.endswith("mask")


def _in_two_ways(one: str, other: str) -> bool:
    """Whether two may be one: an input by name and by place (`in.x`, `in[0]`), a result alone and beside others (`out`, `out[0]`)."""
    if {one[:3], other[:3]} == {_NAMED, _PLACED}:
        return True
    alone, beside = sorted((one, other), key=len)
    return alone == _ALONE and beside.startswith((f"{_ALONE}[", f"{_ALONE}."))
