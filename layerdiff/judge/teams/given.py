"""Whether the ranks' calls were given what the reference's was: what a call makes of something else is no fault of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import infer_both
from layerdiff.align.matching import matched_places
from layerdiff.align.placements import infer
from layerdiff.judge.programs.constants import unmasked
from layerdiff.judge.teams.in_pieces import InPieces
from layerdiff.judge.teams.running import TeamPrograms, TeamRan
from layerdiff.measure.rows import row_difference
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.enclosing import around
from layerdiff.trace.joined import own_of
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
Calls = Mapping[int, int]
"""By file."""
_FEWEST: Final = 4
"""Lines by which a column is told from others."""


def made_up(ours: Sequence[Array], theirs: Sequence[Array], within: float) -> bool | None:
    """Whether what the ranks have is what the reference has, in one placement or another; None where that is not known."""
    placement = infer(ours[0], list(theirs)) if len(ours) == 1 else infer_both(list(ours), list(theirs))[2]
    if placement.kind != "unknown" and placement.error <= within:
        return True
    if len(ours) == 1 and _has_columns(ours[0], theirs, within):
        return True
    return None if placement.kind == "unknown" else False


def _has_columns(whole: Array, parts: Sequence[Array], within: float) -> bool:
    """Whether the columns of a product are among those that the ranks made, in another order or beside more: of one product for several."""
    if whole.ndim != 2 or len(whole) < _FEWEST or any(part.ndim != 2 or len(part) != len(whole) for part in parts):
        return False
    every = np.concatenate(parts, axis=1)
    if every.shape[1] <= whole.shape[1]:  # all of it is told by placements
        return False
    at = matched_places(every, whole, 1)
    return at is not None and row_difference(whole.T, every[:, at].T).figure <= within


def given_otherwise(programs: TeamPrograms, calls: Both[Calls], within: float) -> int | None:
    """Which argument of a call is another tensor, where it is given one and ranks have it in a form that would tell. Weights do not count.

    Of several a rank may have each in an order of its own, the keys of another rank's tokens say.
    `calls`: of each process the last one of its pieces.
    """
    sides = []
    for side, own in zip(("reference", "target"), calls, strict=True):
        pieces: InPieces = getattr(programs.pieces, side)
        try:
            ran = programs.run(side, watched=frozenset((file, one) for file, call in own.items() for one in pieces.calls(file, call)))
        except CannotReplay:
            return None
        sides.append([_operands(getattr(programs.runs, side)[file], file, call, ran, pieces) for file, call in own.items()])
    for number, whole in sides[0][0].items() if len(sides[0][0]) == 1 else ():
        known = [[unmasked(of[number]) for of in side if number in of] for side in sides]
        complete = all(len(some) == len(every) for some, every in zip(known, sides, strict=True))
        if complete and len(known[0]) == 1 and _would_tell(whole, known[1]) and not made_up(known[0], known[1], within):
            return number
    return None


def _operands(run: Recorded, file: int, call: int, ran: TeamRan, pieces: InPieces) -> dict[int, Array]:
    """The floats that a call is given, by place among its arguments, as what its pieces are given together; without weights."""
    each = [ran.operands.get((file, one)) for one in pieces.calls(file, call)]
    found: dict[int, Array] = {}
    for number in range(len((run.operation(call).picture or {}).get("args", []))):
        value = argument(run, call, number)
        if value is None or run.weight(value) is not None:
            continue
        parts = [None if one is None or len(one.args) <= number else one.args[number] for one in each]
        whole = pieces.as_one(file, call, parts)
        if whole is not None and whole.dtype.kind == "f":
            found[number] = whole
    return found


def argument(run: Recorded, call: int, number: int) -> int | None:
    """The value that is an argument of a call; None of what is none."""
    operation = run.operation(call)
    picture = (operation.picture or {}).get("args", [])[number]
    return operation.inputs.get(picture.get("tensor", "")) if isinstance(picture, dict) else None


def module_around(run: Recorded, call: int, value: int) -> int:
    """The innermost module call in which a call and the maker of a value that it is given are; -1 where there is none."""
    file = run.file
    made = (file.edges.value == value) & (file.edges.role == Role.OUTPUT) & (file.calls.kind[file.edges.call] != CallKind.MODULE)
    makers = [one for one in file.edges.call[made].tolist() if one not in own_of(file)]
    parents = file.calls.parent
    shared = set(around(parents, makers[0])) if makers else set()
    return next((one for one in around(parents, call) if one in shared), -1)


def _would_tell(whole: Array, parts: Sequence[Array]) -> bool:
    """Whether parts may be the whole on each rank, or the whole cut along one dimension."""
    if any(part.ndim != whole.ndim for part in parts):
        return False
    if all(part.shape == whole.shape for part in parts):
        return True
    other = [dim for dim in range(whole.ndim) if any(part.shape[dim] != whole.shape[dim] for part in parts)]
    return len(other) == 1 and sum(part.shape[other[0]] for part in parts) == whole.shape[other[0]]
