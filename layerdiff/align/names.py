"""Module calls paired by name: site, step and occurrence.

Where a module runs a different number of times on the two sides, the n-th call goes with the n-th,
because that is what `occurrence` means everywhere else; the calls beyond the shorter count are left
over and say so. Where two sites have become one (a rename rule may map copies onto one shared
module), occurrences are counted anew, in order of call. Where each call of a module was given another
word, and both sides gave the same words, calls of one word go together: a rotary table that is made
once for each kind of layer is made in the order of a set, which is another one in each process.
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
    occurrence = _by_words(group, _occurrences(group, recorded), Both(*map(_words, sides, rows)))
    ours, theirs = match(codes([number, slot, occurrence]))
    return rows.reference[ours], rows.target[theirs]


def _words(side: NamedCalls, rows: Rows) -> list[str]:
    return [side.calls.words[row] for row in rows.tolist()] if side.calls.words else [""] * rows.size


def _by_words(group: Both[Rows], occurrence: Both[Rows], words: Both[list[str]]) -> Both[Rows]:
    """Occurrences, the target's as the reference counts the calls that were given the same words, where these tell them apart."""
    said: Both[dict[int, dict[str, int]]] = Both({}, {})
    for calls, groups, texts in zip(said, group, words, strict=True):
        for row in (row for row, text in enumerate(texts) if text):
            calls.setdefault(int(groups[row]), {})[texts[row]] = row
    found = occurrence.target.copy()
    for one, theirs in said.target.items():
        ours = said.reference.get(one, {})
        sizes = [int(np.count_nonzero(groups == one)) for groups in group]
        if len(theirs) > 1 and ours.keys() == theirs.keys() and sizes == [len(ours)] * 2:
            for text, row in theirs.items():
                found[row] = occurrence.reference[ours[text]]
    return Both(occurrence.reference, found)


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
