"""Module calls paired by name: site, step and occurrence.

Where a module runs a different number of times on the two sides, the n-th call goes with the n-th,
because that is what `occurrence` means everywhere else; the calls beyond the shorter count are left
over and say so. Where two sites have become one (a rename rule may map copies onto one shared
module), occurrences are counted anew, in order of call.
"""

from __future__ import annotations

import numpy as np

from layerdiff.align.keys import Rows, codes, match, order_within
from layerdiff.align.sites import NamedCalls
from layerdiff.align.slots import Slots
from layerdiff.sides import Both


def pair_modules(sides: Both[NamedCalls], slots: Slots) -> tuple[Rows, Rows]:
    """(reference calls, target calls) of paired module calls, in the order of the target's."""
    rows = Both(
        np.flatnonzero(sides.reference.is_module & ~sides.reference.dropped & (slots.slot.reference >= 0)),
        np.flatnonzero(sides.target.is_module & ~sides.target.dropped & (slots.slot.target >= 0)),
    )
    number = Both(sides.reference.number[rows.reference], sides.target.number[rows.target])
    slot = Both(slots.slot.reference[rows.reference], slots.slot.target[rows.target])
    occurrences = sides.map(lambda side: np.asarray(side.calls.occurrence, np.int64))
    recorded = Both(occurrences.reference[rows.reference], occurrences.target[rows.target])
    group = codes([number, slot])
    occurrence = _occurrences(group, recorded)
    ours, theirs = match(codes([number, slot, occurrence]))
    return rows.reference[ours], rows.target[theirs]


def _occurrences(group: Both[Rows], recorded: Both[Rows]) -> Both[Rows]:
    """As recorded, or counted in order where a group has one occurrence twice on either side."""
    repeated = codes([group, recorded]).map(lambda code: order_within(code) > 0)
    doubtful = np.unique(np.concatenate([group.reference[repeated.reference], group.target[repeated.target]]))
    if not doubtful.size:
        return recorded
    return Both(
        np.where(np.isin(group.reference, doubtful), order_within(group.reference), recorded.reference),
        np.where(np.isin(group.target, doubtful), order_within(group.target), recorded.target),
    )
