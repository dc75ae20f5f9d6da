"""Operators and collectives paired inside modules that are paired: in order, with insertions and deletions.

An operator of a module that has no partner belongs to the nearest module around it that has one. `pair_operators` is the one place
that decides which goes with which.
"""

from __future__ import annotations

import numpy as np

from layerdiff.align.keys import Rows
from layerdiff.align.sequence import align_sequences
from layerdiff.align.sites import NamedCalls, climb
from layerdiff.align.slots import Slots
from layerdiff.sides import Both


def regions_of(sides: Both[NamedCalls], slots: Slots, modules: tuple[Rows, Rows]) -> Both[Rows]:
    """The region of each call, the same number on both sides; -1 for modules, and for calls that nothing paired encloses."""
    return Both(_regions(sides.reference, slots.slot.reference, modules[0]), _regions(sides.target, slots.slot.target, modules[1]))


def _regions(named: NamedCalls, slot: Rows, paired: Rows) -> Rows:
    of_module = np.full(len(named.names) + 1, -1, np.int64)  # the last entry answers for owner -1
    of_module[paired] = np.arange(paired.size)
    around = climb(named.owner, np.asarray(named.calls.parent, np.int64), of_module[:-1] >= 0)
    region = np.where(around >= 0, of_module[around], np.where((named.owner < 0) & (slot >= 0), paired.size + slot, -1))
    region[named.is_module | named.dropped | (slot < 0)] = -1
    return region


def pair_operators(sides: Both[NamedCalls], region: Both[Rows]) -> tuple[Rows, Rows]:
    """(reference calls, target calls) of paired operator calls, in the order of the target's."""
    groups = Both(_by_region(region.reference), _by_region(region.target))
    ours: list[int] = []
    theirs: list[int] = []
    for number, calls in groups.target.items():
        partners = groups.reference.get(number)
        if partners is None:
            continue
        exact = [_signatures(sides.reference, partners), _signatures(sides.target, calls)]
        loose = [_operators(sides.reference, partners), _operators(sides.target, calls)]
        for i, j in align_sequences(exact[0], exact[1], loose):
            ours.append(partners[i])
            theirs.append(calls[j])
    order = np.argsort(np.array(theirs, np.int64), kind="stable")
    return np.array(ours, np.int64)[order], np.array(theirs, np.int64)[order]


def _by_region(region: Rows) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for call in np.flatnonzero(region >= 0).tolist():
        found.setdefault(int(region[call]), []).append(call)
    return found


def _operators(named: NamedCalls, calls: list[int]) -> list[str]:
    return [named.names[call].rpartition("/")[2].partition("#")[0] for call in calls]


def _signatures(named: NamedCalls, calls: list[int]) -> list[str]:
    signature = named.calls.signature
    names = _operators(named, calls)
    return [f"{name} {signature[call]}" for name, call in zip(names, calls, strict=True)] if signature else names
