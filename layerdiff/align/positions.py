"""Which value of a reference call goes with which of its target call: by role and position."""

from __future__ import annotations

from collections.abc import Sequence

Position = tuple[int, str]
"""(role, position): an input, an output or a weight, and where it stood."""
_NAMED = "in."


def pair_positions(reference: Sequence[Position], target: Sequence[Position]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Pairs of indices with equal role and position, in the target's order; then those left on each side.

    A value handed over by name on one side and by place on the other is paired where exactly one is
    left of its role on each side; never a mask with what is none by its name.
    """
    where: dict[Position, list[int]] = {}
    for i, position in enumerate(reference):
        where.setdefault(position, []).append(i)
    pairs: list[tuple[int, int]] = []
    target_left: list[int] = []
    for j, position in enumerate(target):
        candidates = where.get(position)
        if candidates:
            pairs.append((candidates.pop(0), j))
        else:
            target_left.append(j)
    paired = {i for i, _ in pairs}
    reference_left = [i for i in range(len(reference)) if i not in paired]
    for role in sorted({reference[i][0] for i in reference_left}):
        ours = [i for i in reference_left if reference[i][0] == role]
        theirs = [j for j in target_left if target[j][0] == role]
        if len(ours) == len(theirs) == 1 and not _is_mask_alone(reference[ours[0]][1], target[theirs[0]][1]):
            pairs.append((ours[0], theirs[0]))
            reference_left.remove(ours[0])
            target_left.remove(theirs[0])
    return pairs, reference_left, target_left


def _is_mask_alone(one: str, other: str) -> bool:
    """Whether one of two values that are handed over by name is a mask, and the other is not."""
    return all(name.startswith(_NAMED) for name in (one, other)) and one.endswith("mask") != other.endswith("mask")
