"""Operators and collectives paired inside modules that are paired: by operator and number.

`pair_operators` is the one place that decides it. It is handed which region (a paired module call, or
what ran outside every root in one step) each call belongs to, so an alignment by sequence can take
its place without anything else changing.
"""

from __future__ import annotations

import numpy as np

from layerdiff.align.keys import Rows, codes, match, order_within
from layerdiff.align.sites import NamedCalls
from layerdiff.align.slots import Slots
from layerdiff.sides import Both


def regions_of(sides: Both[NamedCalls], slots: Slots, modules: tuple[Rows, Rows]) -> Both[Rows]:
    """The region of each call, the same number on both sides; -1 for modules, and for calls whose module has no partner."""
    return Both(_regions(sides.reference, slots.slot.reference, modules[0]), _regions(sides.target, slots.slot.target, modules[1]))


def _regions(named: NamedCalls, slot: Rows, paired: Rows) -> Rows:
    of_module = np.full(len(named.names) + 1, -1, np.int64)  # the last entry answers for owner -1
    of_module[paired] = np.arange(paired.size)
    region = np.where(named.owner >= 0, of_module[named.owner], np.where(slot >= 0, paired.size + slot, -1))
    region[named.is_module | named.dropped | (slot < 0)] = -1
    return region


def pair_operators(sides: Both[NamedCalls], region: Both[Rows]) -> tuple[Rows, Rows]:
    """(reference calls, target calls) of paired operator calls, in the order of the target's."""
    rows = region.map(lambda side: np.flatnonzero(side >= 0))
    numbers: dict[str, int] = {}
    operator = Both(_operators(sides.reference, rows.reference, numbers), _operators(sides.target, rows.target, numbers))
    own = Both(region.reference[rows.reference], region.target[rows.target])
    group = codes([own, operator])
    ours, theirs = match(codes([own, operator, group.map(order_within)]))
    return rows.reference[ours], rows.target[theirs]


def _operators(named: NamedCalls, rows: Rows, numbers: dict[str, int]) -> Rows:
    """The number of each call's text after its module path, `aten.mm.default#2`."""
    names = named.names
    return np.fromiter((numbers.setdefault(names[row].rpartition("/")[2], len(numbers)) for row in rows.tolist()), np.int64, rows.size)
