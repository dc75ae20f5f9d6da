"""Values of steps that are one which are not one themselves, although their shapes allow it: told by what the other run has there.

A mean over tokens has the shape of the last token's logits, and is another one of each step: what is clearly nearest to the other run's is
the last token's, and so is what a module makes of such alone, however far off: it is judged. So are the last tokens of several requests,
which are nearer to their own than to one another's. The tokens that an expert is given may be as many as a step has, and lie in another
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import Forms
from layerdiff.align.forms import same_form
from layerdiff.align.placements import relative_error
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.packing import of_batches
from layerdiff.sides import Both
from layerdiff.trace.along import Along
from layerdiff.trace.chunks import Spot
from layerdiff.trace.enclosing import around, outermost
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
_NEAR: Final = 0.5
_CLEARLY: Final = 3.0
"""How many times further those of the other steps must be."""
_ALIKE: Final = 1e-4
_MOST_ENDS: Final = 64
"""Last tokens that are held against one another."""
_SAME_ROW: Final = 0.25
"""How far off a row may be, of its size, to be the same one. Of 100 000 others of 16 numbers the nearest is 0.5 off."""
_PROJECTIONS: Final = 32
_MOST_ROWS: Final = 64
"""Of those that are not in place, that are looked for."""


def no_last_tokens(files: Both[TraceFile], roots: Sequence[Both[int]], side: str) -> frozenset[int]:
    """Values of one side, the last of several, that do not stand for all. `roots`: the calls of both that are compared."""
    file: TraceFile = getattr(files, side)
    other: TraceFile = files.target if side == "reference" else files.reference
    refused: set[int] = set()
    if not isinstance(file, Joined):
        return frozenset()
    tops = files.map(lambda one: outermost(one.calls.parent))
    for both in roots:
        here, there = (both.reference, both.target)[:: 1 if side == "reference" else -1]
        beside = dict(spots(other, there, tops.target if side == "reference" else tops.reference))
        told = of_batches(files, both)
        forms = None if told is None else Forms(packing=told.packing, ends=told.further)
        last: set[int] = set()
        calls = np.flatnonzero((getattr(tops, side) == here) & (np.asarray(file.calls.kind) == CallKind.MODULE)).tolist()
        for role, order in ((Role.INPUT, calls), (Role.OUTPUT, calls[::-1])):  # what an inner call makes is told before it is handed on
            for call in order:
                given = [edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT and role == Role.OUTPUT]
                for edge in file.edges_of(call):
                    ends = file.ends(edge.value)
                    if edge.role != role or not (ends or edge.value in file.lasts) or edge.value in last or edge.value in refused:
                        continue
                    value = beside.get(_spot(file, call, edge.role, edge.position))
                    if (given and last.issuperset(given)) or value is None:
                        last.add(edge.value)
                    elif ends and forms is not None:
                        (last if _are_ends(forms, Both(file, other), Both(edge.value, value), side) else refused).add(edge.value)
                    else:
                        (last if _is_last(file, edge.value, other, value) else refused).add(edge.value)
    return frozenset((file.ends(value) or (value,))[-1] for value in refused)


def _are_ends(forms: Forms, files: Both[TraceFile], values: Both[int], side: str) -> bool:
    """Whether one run's values (named first) of last tokens are the other's, and not as near to those of other requests."""
    try:
        read = Both(*(file.read(value) for file, value in zip(files, values, strict=True)))
    except TraceError:
        return False
    beside = forms.beside(*(read if side == "reference" else Both(read.target, read.reference)))
    if beside is None:
        return True  # another shape is told elsewhere
    usual, own = (x.reshape(len(x), -1)[:_MOST_ENDS].astype(np.float64) for x in beside)
    apart = np.sqrt(np.square(usual[:, None] - usual[None]).sum(-1))
    nearest = np.min(np.where(apart > _ALIKE * apart.max(), apart, np.inf), axis=1, initial=np.inf)  # requests that are alike left out
    off, size = (np.linalg.norm(x, axis=1) for x in (usual - own, usual))
    return bool(np.all((off <= _NEAR * size) & (_CLEARLY * off <= nearest)))


def rows_in_another_order(files: Both[TraceFile], roots: Sequence[Both[int]], side: str) -> frozenset[int]:
    """Values of one side, the last of several, that have the other run's rows in another order, inside a module that hands on none so.

    So have the tokens that an expert is given: of one chunk those that chose it first, then the others. Of a call
    that is given, or makes, several rows of each token all such are, where some are.
    """
    file: TraceFile = getattr(files, side)
    other: TraceFile = files.target if side == "reference" else files.reference
    if not isinstance(file, Joined):
        return frozenset()
    tops, parents = files.map(lambda one: outermost(one.calls.parent)), np.asarray(file.calls.parent)
    found: set[int] = set()
    for both in roots:
        here, there = (both.reference, both.target)[:: 1 if side == "reference" else -1]
        beside = dict(spots(other, there, tops.target if side == "reference" else tops.reference))
        moved: dict[int, list[int]] = {}
        in_order: set[int] = set()
        for call in np.flatnonzero((getattr(tops, side) == here) & (np.asarray(file.calls.kind) == CallKind.MODULE)).tolist():
            several: list[int] = []
            for edge in file.edges_of(call):
                whole = file.whole(edge.value)
                value = beside.get(_spot(file, call, edge.role, edge.position))
                several += whole.parts[-1:] if whole is not None and isinstance(whole.how, Along) and whole.how.lines > 1 else ()
                order = None if whole is None or value is None or whole.how.keys else _order(file, edge.value, other, value)
                if order == "same" and edge.role == Role.OUTPUT:
                    in_order.add(call)
                elif order == "other" and whole is not None and whole.how.axis == 0:
                    moved.setdefault(call, []).append(whole.parts[-1])
            if not set(several).isdisjoint(moved.get(call, ())):
                found.update(several)
        found.update(part for call, values in moved.items() if not in_order.isdisjoint(around(parents, call)) for part in values)
    return frozenset(found)


def _order(file: TraceFile, value: int, other: TraceFile, there: int) -> str | None:
    """Whether two values have the same rows in the same order, or in another one: most that are not in place are elsewhere.

    None where they have other rows.
    """
    if file.shape(value) != other.shape(there) or len(file.shape(value)) < 2:
        return None
    try:
        usual, own = other.read(there), file.read(value)
    except TraceError:
        return None
    if usual.dtype.kind != "f" or own.dtype.kind != "f":
        return None
    if relative_error(usual, own) < _NEAR:
        return "same"
    by = np.random.default_rng(0).standard_normal((usual.shape[-1], _PROJECTIONS))
    rows, mine = (x.reshape(-1, x.shape[-1]).astype(np.float64) @ by for x in (usual, own))
    limit = _SAME_ROW * np.linalg.norm(mine, axis=1)
    moved = np.flatnonzero(~(np.linalg.norm(mine - rows, axis=1) <= limit))
    some = moved[np.linspace(0, moved.size - 1, min(moved.size, _MOST_ROWS)).astype(np.intp)]
    elsewhere = [np.linalg.norm(rows - mine[row], axis=1).min() <= limit[row] for row in some.tolist()]
    return "other" if elsewhere and np.mean(elsewhere) > _NEAR else None


def spots(file: TraceFile, root: int, tops: NDArray[np.int64]) -> Iterator[tuple[Spot, int]]:
    """What modules of a step are given and hand on. `tops`: by call its outermost."""
    for call in np.flatnonzero((tops == root) & (np.asarray(file.calls.kind) == CallKind.MODULE)).tolist():
        for edge in file.edges_of(call):
            yield _spot(file, call, edge.role, edge.position), edge.value


def _spot(file: TraceFile, call: int, role: int, position: str) -> Spot:
    return file.text(int(file.calls.module[call])) or "", int(file.calls.occurrence[call]), role, position


def _is_last(file: Joined, value: int, other: TraceFile, there: int) -> bool:
    """Whether what the other run has is nearest to what the last step has; another shape is told elsewhere."""
    if not same_form(file.shape(value), other.shape(there)):
        return True
    try:
        usual, each = other.read(there), [file.read(one) for one in file.lasts[value]]
    except TraceError:
        return False
    if usual.dtype.kind not in "fiub" or usual.dtype.kind != each[-1].dtype.kind:
        return False
    errors = [relative_error(usual, one.reshape(usual.shape)) for one in each]
    return bool(errors[-1] <= _NEAR and _CLEARLY * errors[-1] < min(errors[:-1]))
