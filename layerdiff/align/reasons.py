"""Why a call has no partner, in words."""

from __future__ import annotations

import numpy as np

from layerdiff.align.keys import Rows
from layerdiff.align.sites import NamedCalls
from layerdiff.align.slots import OUTSIDE_STEPS, Slots
from layerdiff.sides import Both

_TIMES = {0: "never", 1: "once", 2: "twice"}


def unpaired(sides: Both[NamedCalls], slots: Slots, pairs: tuple[Rows, Rows], region: Both[Rows]) -> Both[list[tuple[int, str]]]:
    """(call, reason) of every call of the compared steps without a partner, in order of call."""
    return Both(
        _Side("reference", "target", sides.reference, sides.target, slots.slot, slots.steps, region.reference).reasons(pairs[0]),
        _Side(
            "target",
            "reference",
            sides.target,
            sides.reference,
            Both(slots.slot.target, slots.slot.reference),
            Both(slots.steps.target, slots.steps.reference),
            region.target,
        ).reasons(pairs[1]),
    )


class _Side:
    """The leftovers of one run, `own`, told by what the `other` run did. In `slot` and `steps`, own is first."""

    def __init__(
        self, own_word: str, other_word: str, own: NamedCalls, other: NamedCalls, slot: Both[Rows], steps: Both[Rows], region: Rows
    ) -> None:
        self._words, self._own, self._other, self._slot, self._steps, self._region = (own_word, other_word), own, other, slot, steps, region
        self._counts: tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]] | None = None
        self._paths: set[str] | None = None
        self._numbers: set[int] | None = None

    def reasons(self, paired: Rows) -> list[tuple[int, str]]:
        alone = (self._slot.reference != OUTSIDE_STEPS) & ~self._own.dropped
        alone[paired] = False
        known: dict[tuple[int, int, int], str] = {}
        found: list[tuple[int, str]] = []
        rows = np.flatnonzero(alone)
        regions = np.where(self._own.is_module[rows], 0, np.where(self._region[rows] >= 0, 1, 2))
        keys = zip(self._own.number[rows].tolist(), self._slot.reference[rows].tolist(), regions.tolist(), strict=True)
        for call, key in zip(rows.tolist(), keys, strict=True):
            reason = known.get(key)
            if reason is None:
                reason = known[key] = self._reason(call, *key)
            found.append((call, reason))
        return found

    def _reason(self, call: int, number: int, slot: int, what: int) -> str:
        site, (own, other) = self._own.names[call], self._words
        if what == 2:
            path = site.rpartition("/")[0]
            return f"its module {path or '(the root)'} has no partner in the {other}"
        closed = next((path for path in sorted(self._other.calls.closed) if not path or site.startswith((f"{path}.", f"{path}/"))), None)
        if closed is not None:
            return f"it runs compiled in the {other}, inside {closed or '(the root)'}"
        if what == 0 and number not in self._other_numbers():
            return f"the {other} never runs {self._highest_missing(site) or '(the root)'}"
        ours, theirs = (counts.get((number, slot), 0) for counts in self._both_counts())
        if theirs == 0:
            if what == 1:
                path, _, operator = site.rpartition("/")
                return f"the {other} does not run {operator} in {path or '(the root)'}"
            return f"the {other} does not run it in step {int(self._steps.target[slot])}" if slot >= 0 else f"the {other} does not run it"
        return f"called {_times(ours)} in the {own}, {_times(theirs)} in the {other}"

    def _other_numbers(self) -> set[int]:
        if self._numbers is None:
            self._numbers = set(np.unique(self._other.number[self._other.is_module]).tolist())
        return self._numbers

    def _both_counts(self) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """How often each site runs in each slot, here and there."""
        if self._counts is None:
            self._counts = _counts(self._own, self._slot.reference), _counts(self._other, self._slot.target)
        return self._counts

    def _highest_missing(self, site: str) -> str:
        """The outermost module on the way to `site` of which the other run has nothing."""
        if self._paths is None:
            self._paths = set()
            for number in self._first_calls():
                path = self._other.names[number]
                while path and path not in self._paths:
                    self._paths.add(path)
                    path = path.rpartition(".")[0]
        end = site.find(".")
        while end >= 0:
            if site[:end] not in self._paths:
                return site[:end]
            end = site.find(".", end + 1)
        return site

    def _first_calls(self) -> list[int]:
        rows = np.flatnonzero(self._other.is_module)
        return [int(call) for call in rows[np.unique(self._other.number[rows], return_index=True)[1]]]


def _counts(named: NamedCalls, slot: Rows) -> dict[tuple[int, int], int]:
    rows = np.flatnonzero(~named.dropped)
    least = int(slot.min(initial=0))
    width = int(slot.max(initial=0)) - least + 1
    keys, counts = np.unique(named.number[rows] * width + (slot[rows] - least), return_counts=True)
    return {(key // width, key % width + least): count for key, count in zip(keys.tolist(), counts.tolist(), strict=True)}


def _times(count: int) -> str:
    return _TIMES.get(count, f"{count} times")
