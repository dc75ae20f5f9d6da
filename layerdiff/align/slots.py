"""The slot of each call: which of the compared steps it belongs to.

Roots of the two runs go together by their site; where none does, the only one, or the one of the
same class, or the busiest goes with its like, so that names may still be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from layerdiff.align.sites import NamedCalls, Rows
from layerdiff.align.steps import Steps, every_step, pair_steps
from layerdiff.sides import Both
from layerdiff.trace.schema import ABSENT

OUTSIDE_STEPS: Final = -1
"""Slot of a call of a step that is not compared."""
NO_ROOT: Final = -2
"""Slot of a call under a root that the other run lacks."""


@dataclass(frozen=True)
class Slots:
    """One entry a call in `slot`; equal slots are compared with each other."""

    slot: Both[Rows]
    steps: Both[Rows]
    """The step of each slot."""
    main_steps: tuple[tuple[int, int], ...]
    """(reference step, target step) of the main root."""
    main_steps_all: Both[tuple[str, ...]]
    steps_told: bool
    """Whether input shapes told which steps of the main root go together."""
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Root:
    site: str
    type: str | None
    calls: int
    steps: Steps


def find_slots(sides: Both[NamedCalls], otherwise: Sequence[tuple[int, int]]) -> Slots:
    """Pair the steps of every root, and say which slot each call belongs to. `otherwise`: as `pair_steps` has it."""
    roots = sides.map(_roots)
    slot = sides.map(lambda side: np.full(len(side.names), NO_ROOT, np.int64))
    steps: Both[list[int]] = Both([], [])
    remarks: list[str] = []
    main: tuple[int, int] | None = None
    main_steps: tuple[tuple[int, int], ...] = ()
    main_first, told = 0, True
    for numbers in _paired_roots(roots):
        ours, theirs = roots.reference[numbers[0]], roots.target[numbers[1]]
        paired = pair_steps(ours.steps, theirs.steps, ours.site, otherwise)
        remarks.extend(paired.remarks)
        first = len(steps.reference)
        if main is None or ours.calls > roots.reference[main[0]].calls:
            main, main_steps, main_first, told = numbers, paired.pairs, first, paired.told
        for index, (named, found, kept) in enumerate(zip(sides, slot, steps, strict=True)):
            kept.extend(pair[index] for pair in paired.pairs)
            _fill(named, found, numbers[index], [pair[index] for pair in paired.pairs], first)
    trailing = len(steps.reference)  # what ran after the last forward of the main root
    steps.reference.append(main_steps[-1][0] + 1 if main_steps else 0)
    steps.target.append(main_steps[-1][1] + 1 if main_steps else 0)
    every = Both(roots.reference[main[0]].steps, roots.target[main[1]].steps) if main is not None else Both((), ())
    ends = all(side and kept[-1] > side[-1][0] for side, kept in zip(every, steps, strict=True))
    for index, (named, found) in enumerate(zip(sides, slot, strict=True)):
        _fill(named, found, ABSENT, [pair[index] for pair in main_steps], main_first, trailing if ends or main is None else None)
    return Slots(slot, steps.map(lambda kept: np.array(kept, np.int64)), main_steps, every.map(every_step), told, tuple(remarks))


def _fill(named: NamedCalls, slot: Rows, root: int, steps: list[int], first: int, trailing: int | None = None) -> None:
    chosen = np.flatnonzero(np.asarray(named.calls.root) == root)
    if not chosen.size:
        return
    step = np.asarray(named.calls.step, np.int64)[chosen]
    table = np.full(max(int(step.max()), max(steps, default=0)) + 2, OUTSIDE_STEPS, np.int64)
    table[steps] = np.arange(first, first + len(steps))
    if trailing is not None:
        table[steps[-1] + 1 if steps else 0 :] = trailing
    slot[chosen] = table[step]
    if root != ABSENT:
        _fill_before(named, slot, chosen, steps, first)


def _fill_before(named: NamedCalls, slot: Rows, chosen: Rows, steps: list[int], first: int) -> None:
    """What a root has inside and was called by itself, in steps before those that are compared alone, is part of the first of these.

    A run without a cache is given all tokens again in each step, of which the last is compared: its encoder ran once, before the first.
    """
    tops = chosen[np.asarray(named.calls.parent)[chosen] == ABSENT] if steps else chosen[:0]
    if not tops.size:
        return
    own = named.names[_own_call(named, tops.tolist())]
    inside = [call for call in tops.tolist() if named.names[call] != own and named.is_module[call]]
    compared = {named.names[call] for call in inside if slot[call] != OUTSIDE_STEPS}
    last = {named.names[call]: call for call in inside if named.names[call] not in compared and named.calls.step[call] < min(steps)}
    before = set(last.values())
    parents = np.asarray(named.calls.parent)
    for call in chosen.tolist() if before else ():
        if call in before or (int(parents[call]) in before):
            before.add(call)
            slot[call] = first


def _roots(named: NamedCalls) -> dict[int, _Root]:
    calls = named.calls
    root, parent = np.asarray(calls.root, np.int64), np.asarray(calls.parent)
    top = np.flatnonzero((parent == ABSENT) & named.is_module & (root >= 0))
    count = np.bincount(root[root >= 0], minlength=1)
    tops: dict[int, list[int]] = {}
    for call in top.tolist():
        tops.setdefault(int(root[call]), []).append(call)
    found: dict[int, _Root] = {}
    for number, every in tops.items():
        own = _own_call(named, every)
        steps: dict[int, str] = {}
        for call in sorted(every, key=lambda call: named.names[call] != named.names[own]):  # its own forward tells, where there is one
            steps.setdefault(int(calls.step[call]), calls.inputs[call])
        found[number] = _Root(named.names[own], calls.type[own], int(count[number]), sorted(steps.items()))
    return found


def _own_call(named: NamedCalls, tops: Sequence[int]) -> int:
    """The first call of a root itself, of those that nothing encloses: an encoder may be called before the model around it."""
    names = {named.names[call]: call for call in reversed(tops)}
    first = named.names[tops[0]]
    around = [name for name in names if name != first and (not name or first.startswith(f"{name}."))]
    return names[min(around, key=len, default=first)]


def _paired_roots(roots: Both[dict[int, _Root]]) -> list[tuple[int, int]]:
    by_site: dict[str, int] = {}
    for number, root in roots.target.items():
        by_site.setdefault(root.site, number)
    pairs = [(number, by_site.pop(root.site)) for number, root in roots.reference.items() if root.site in by_site]
    if pairs or not roots.reference or not roots.target:
        return pairs
    ours = max(roots.reference, key=lambda number: roots.reference[number].calls)
    of_class = [number for number, root in roots.target.items() if root.type == roots.reference[ours].type]
    return [(ours, max(of_class or roots.target, key=lambda number: roots.target[number].calls))]
