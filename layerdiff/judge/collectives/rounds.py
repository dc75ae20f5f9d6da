"""Which calls of different ranks are one collective: by group and number in it; and where ranks part, which of them goes another way.

A number counts every collective of a group, so that from a missing one on all later ones stand beside another: the first parting is a
finding, and what follows on that group is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from layerdiff.judge.issued import Group, Issued, listed
from layerdiff.trace.schema import POINT_TO_POINT

_MATCHED: Final = 4000
"""Collectives around a parting among which the rest of a rank's order is looked for."""


@dataclass(frozen=True)
class Round:
    """One collective: the calls of the ranks that issued it, in the order of the group."""

    group: Group
    parts: tuple[Issued, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks of the group of which no call is recorded."""
        there = {part.rank for part in self.parts}
        return tuple(rank for rank in self.group.ranks if rank not in there)


@dataclass(frozen=True)
class Parting:
    """Where the ranks of a group part: the calls at that number, the rank that goes another way, and how, in words."""

    group: Group
    sequence: int
    calls: Mapping[int, Issued]
    """By rank; a rank without one issued none."""
    rank: int | None
    """None where the numbers of ranks are equal on both sides."""
    statement: str
    at: Issued
    """The call that it is said of."""


def rounds_of(every: Iterable[Issued], cut_short: Iterable[int] = ()) -> tuple[list[Round], list[Parting]]:
    """The collectives that all ranks issued alike, in order, and where the ranks of a group part. Messages of two ranks are left out.

    `cut_short`: ranks whose recording is incomplete: that they issue no more says nothing.
    """
    groups: dict[Group, dict[int, dict[int, Issued]]] = {}
    for one in every:
        if one.operator not in POINT_TO_POINT:
            groups.setdefault(one.group, {}).setdefault(one.rank, {})[one.sequence] = one
    rounds: list[Round] = []
    partings: list[Parting] = []
    for group, by_rank in groups.items():
        order = group.ranks or tuple(sorted(by_rank))
        by_rank = {rank: by_rank[rank] for rank in order if rank in by_rank}
        parting = _parting(group, by_rank, frozenset(cut_short))
        end = None if parting is None else parting.sequence
        if parting is not None:
            partings.append(parting)
        for sequence in sorted({number for numbers in by_rank.values() for number in numbers}):
            if end is None or sequence < end:
                parts = tuple(numbers[sequence] for numbers in by_rank.values() if sequence in numbers)
                rounds.append(Round(Group(group.name, order), parts))
    return rounds, partings


def _parting(group: Group, by_rank: Mapping[int, Mapping[int, Issued]], cut_short: frozenset[int]) -> Parting | None:
    """The first number at which ranks do not say the same."""
    if len(by_rank) < 2:
        return None
    for sequence in sorted({number for numbers in by_rank.values() for number in numbers}):
        calls = {rank: numbers[sequence] for rank, numbers in by_rank.items() if sequence in numbers}
        silent = [rank for rank in by_rank if rank not in calls]
        ended = [rank for rank in silent if rank in cut_short and sequence > max(by_rank[rank], default=-1)]
        if len({call.signature for call in calls.values()}) > 1 or len(silent) > len(ended):
            return _other_way(group, by_rank, sequence, calls, [rank for rank in silent if rank not in ended])
    return _swapped(group, by_rank)


def _other_way(
    group: Group, by_rank: Mapping[int, Mapping[int, Issued]], sequence: int, calls: Mapping[int, Issued], silent: Sequence[int]
) -> Parting:
    said: dict[int, Any] = {rank: call.signature for rank, call in calls.items()} | dict.fromkeys(silent)
    (common, most), *others = Counter(said.values()).most_common()
    plain, odd = next(rank for rank in said if said[rank] == common), next(rank for rank in said if said[rank] != common)
    tied = bool(others) and others[0][1] == most
    sequence = _began(by_rank[plain], by_rank[odd], sequence)
    way = _way(by_rank[plain], by_rank[odd], sequence)
    if tied and way.kind == "insert":  # of two ranks that disagree, the one without it is named
        plain, odd = odd, plain
        way = _way(by_rank[plain], by_rank[odd], sequence)
    alone = [rank for rank, one in said.items() if one == said[odd]]
    silent = [rank for rank in silent if sequence not in by_rank[rank]]
    calls = {rank: numbers[sequence] for rank, numbers in by_rank.items() if sequence in numbers}
    named = len(alone) == 1 and (not tied or way.kind == "delete")
    there: dict[str, list[int]] = {}
    for rank, call in calls.items():
        there.setdefault(str(call), []).append(rank)
    listing = [f"{_ranks(ranks)}: {text}" for text, ranks in there.items()] + ([f"{_ranks(silent)}: none"] if silent else [])
    statement = (
        f"the ranks of {group} do not issue the same collectives: at number {sequence} {_ranks(alone)} "
        f"{'part' if len(alone) > 1 else 'parts'} from the others, {way.words} ({'; '.join(listing)})"
    )
    return Parting(group, sequence, calls, odd if named else None, statement, way.at)


def _began(plain: Mapping[int, Issued], odd: Mapping[int, Issued], sequence: int) -> int:
    """Where two ranks that do not say the same at a number left their common way: before it they may issue what only looks alike."""
    if not {call.place for call in plain.values()} & {call.place for call in odd.values()}:  # stages of a pipeline
        return sequence
    before = sequence - 1
    while before in plain and before in odd and plain[before].place != odd[before].place:
        before -= 1
    return before + 1


class _Way(NamedTuple):
    """How one rank goes on where another goes on otherwise: a kind of edit, in words, and the call that it is about."""

    kind: str
    words: str
    at: Issued


def _way(plain: Mapping[int, Issued], odd: Mapping[int, Issued], sequence: int) -> _Way:
    ours = [plain[number] for number in sorted(plain) if number >= sequence][:_MATCHED]
    theirs = [odd[number] for number in sorted(odd) if number >= sequence][:_MATCHED]
    by_place = bool({one.place for one in ours} & {one.place for one in theirs})  # stages of a pipeline share none
    left, right = ([(one.signature, one.place if by_place else None) for one in side] for side in (ours, theirs))
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "delete":
            later = left[a] in right[d:]
            more = f" and {b - a - 1} more" if b - a > 1 and not later else ""
            return _Way(
                "moved" if later else kind, f"issuing {_named(ours[a])} later" if later else f"without {_named(ours[a])}{more}", ours[a]
            )
        if kind == "insert":
            earlier = right[c] in left[b:]
            more = f" and {d - c - 1} more" if d - c > 1 and not earlier else ""
            words = f"issuing {_named(theirs[c])} earlier" if earlier else f"with {_named(theirs[c])}{more} besides"
            return _Way("moved" if earlier else kind, words, theirs[c])
        if kind == "replace":
            return _Way(kind, f"issuing {theirs[c]} instead of {ours[a]}", theirs[c])
    return _Way("replace", "numbering its collectives otherwise", (theirs or ours)[0])


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(list(ranks))}"


def _named(call: Issued) -> str:
    return f"{call.name} at {call.site}"


def _swapped(group: Group, by_rank: Mapping[int, Mapping[int, Issued]]) -> Parting | None:
    """The same collectives from the same places in another order: they look alike, and pair wrongly."""
    orders = {rank: [numbers[number] for number in sorted(numbers)] for rank, numbers in by_rank.items()}
    places = {rank: [call.place for call in order] for rank, order in orders.items()}
    counts = Counter(tuple(order) for order in places.values())
    (common, most), *others = counts.most_common()
    for rank, order in places.items():
        if tuple(order) == common or Counter(order) != Counter(common):
            continue
        number = next(i for i, (one, other) in enumerate(zip(order, common, strict=True)) if one != other)
        plain = next(one for one, at in places.items() if tuple(at) == common)
        mine, theirs = orders[rank][number], orders[plain][number]
        said = f"rank {rank} issues {_named(mine)} where rank {plain} issues {_named(theirs)}, and each issues the other's later"
        calls = {one: at[number] for one, at in orders.items() if len(at) > number}
        sure = not others or most > others[0][1]
        statement = f"the ranks of {group} issue the same collectives in another order: at number {mine.sequence} {said}"
        return Parting(group, mine.sequence, calls, rank if sure else None, statement, mine)
    return None
