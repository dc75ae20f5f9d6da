"""Numbers in the whole model for layers, and experts inside them, that a rank counts for itself: told from weights, never from names.

A path `layers.0.norm` of a rank is the reference's `layers.8.norm` where its weights have the same bits, or are a part of the reference's:
names only say which weights may be one. Weights in another dtype are found by their mean and root mean square too.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

Print = tuple[tuple[int, int], str, tuple[int, ...]]
"""Fingerprint, dtype and shape of a weight."""
Figures = tuple[str, tuple[int, ...], float, float]
"""Dtype, shape, mean and root mean square of a weight."""
Offsets = Mapping[int, int]
"""Of a list of layers what has to be added to a rank's own numbers, from each of these numbers on."""
PartsOf = Callable[[str], Iterable[str]]
"""By the name of a rank's weight the names of the reference's of which it may be a part."""
_NEAR: Final = 0.01
"""How far two figures of one weight may be apart, over its root mean square: rounding to bf16 moves them by 1e-4 of it at most."""
_NEARER: Final = 0.1
"""How much nearer one layer must be than every other."""
_ASKED: Final = 3
"""Weights of a layer that are asked whose part they are, until one tells."""
_NUMBER = re.compile(r"^(.*?)(?:^|\.)(\d+)(?:\.(.*))?$")


def split_number(path: str) -> tuple[str, int, str] | None:
    """`model.layers.3.mlp` as (`model.layers`, 3, `mlp`), at the first number; None where there is none."""
    found = _NUMBER.match(path)
    return None if found is None else (found.group(1), int(found.group(2)), found.group(3) or "")


def stage_offsets(
    reference: Mapping[str, Print], stage: Mapping[str, Print], rounded: Iterable[tuple[str, Print]] = (), parts_of: PartsOf = lambda _: ()
) -> dict[str, Offsets]:
    """By list of layers (`model.layers`) what has to be added to a stage's own numbers; nothing for lists that count globally already.

    A list may lie inside another: the experts of a layer (`model.layers.3.mlp.experts`) on a rank that counts its own from zero. A weight
    speaks where its name differs from the reference's in one number, or in two; where both lists are off, the outer one is found first.

    Args:
        reference, stage: the bits of each weight, by its whole name.
        rounded: those that the reference's would have in narrower dtypes.
        parts_of: asked of weights whose bits are not found, where those of their layer do not tell its number.
    """
    places: dict[Print, list[str]] = {}
    for name, bits in (*reference.items(), *rounded):
        places.setdefault(bits, []).append(name)
    votes = Votes()
    for name, bits in stage.items():
        votes.add(name, places.get(bits, ()))
    for name in votes.to_ask({name: bits for name, bits in stage.items() if bits not in places}):
        votes.add(name, parts_of(name))
    return votes.elected()


class Votes:
    """Which number of the whole model each own number of a list has, a vote a weight; lists by their names, as the rank has them."""

    def __init__(self) -> None:
        self._told: dict[str, dict[int, Counter[int]]] = {}

    def add(self, name: str, others: Iterable[str]) -> None:
        """A weight, and those of the reference that it may be."""
        own = name.split(".")
        for before, mine, theirs in {vote for other in others for vote in _votes(own, other.split("."))}:
            self._told.setdefault(before, {}).setdefault(mine, Counter()).update([theirs])

    def elected(self) -> dict[str, Offsets]:
        """The offset that most weights of a list have, where it is another than none; where layers were dealt in turn, one a number."""
        return {before: offsets for before, numbers in self._told.items() if (offsets := _elected(numbers))}

    def to_ask(self, weights: Mapping[str, Print]) -> Iterator[str]:
        """Of weights that have no vote those that would tell, the outer lists first, small ones before large ones; one by one.

        Of a list the first and the last number are asked, and where these have two offsets all others.
        """
        lists: dict[str, dict[int, list[str]]] = {}
        for name in sorted(weights, key=lambda name: math.prod(weights[name][2])):
            for before, number in _numbers(name):
                lists.setdefault(before, {}).setdefault(number, []).append(name)
        depths: dict[int, list[str]] = {}
        for before in lists:
            depths.setdefault(sum(part.isdecimal() for part in before.split(".")), []).append(before)
        for _, same in sorted(depths.items()):
            for before in same:
                numbers = sorted(lists[before])
                ends = [numbers[0], numbers[-1]]
                for number in ends:
                    yield from self._until_sure(before, number, lists[before][number])
                if len({self._offset(before, number) for number in ends}) > 1:
                    for number in numbers[1:-1]:
                        yield from self._until_sure(before, number, lists[before][number])
            if any(before in same for before in self.elected()):
                return  # what lies inside has another name then

    def _until_sure(self, before: str, number: int, names: Sequence[str]) -> Iterator[str]:
        for name in names[:_ASKED]:
            if self._offset(before, number) is not None:
                return
            yield name

    def _offset(self, before: str, number: int) -> int | None:
        """None where no number has more votes than every other."""
        first, *others = self._told.get(before, {}).get(number, Counter[int]()).most_common(2) or [(0, 0)]
        return first[0] - number if first[1] > (others[0][1] if others else 0) else None


def _elected(numbers: Mapping[int, Counter[int]]) -> Offsets:
    votes: Counter[int] = Counter()
    for own, counted in numbers.items():
        votes.update({theirs - own: count for theirs, count in counted.items()})
    offset, most = max(votes.items(), key=lambda one: (one[1], one[0] == 0))
    offset = offset if most > votes.get(0, 0) else 0
    having = sum(counted[own + offset] == max(counted.values()) for own, counted in numbers.items())
    in_turn = None if having == len(numbers) else _in_turn(numbers)
    if in_turn is not None:
        return in_turn
    return {0: offset} if offset and 2 * having > len(numbers) else {}


def _in_turn(numbers: Mapping[int, Counter[int]]) -> Offsets | None:
    """An offset a number, where numbers only ascend: layers of several chunks, experts dealt to the ranks one by one. None else."""
    found: dict[int, int] = {}
    last = -1
    for own, counted in sorted(numbers.items()):
        theirs = min((one for one, count in counted.items() if count == max(counted.values()) and one > last), default=-1)
        if theirs < 0:
            return None
        last, found[own] = theirs, theirs - own
    return found


def _numbers(name: str) -> Iterator[tuple[str, int]]:
    """(list, number) for each number in a name."""
    own = name.split(".")
    for i, part in enumerate(own):
        if part.isdecimal():
            yield ".".join(own[:i]), int(part)


def _votes(own: Sequence[str], other: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(list, number, the other's) for each number in a name up to the first that differs from another name's; at most two may."""
    if len(own) != len(other):
        return
    differing = [i for i, (mine, theirs) in enumerate(zip(own, other, strict=True)) if mine != theirs]
    if len(differing) > 2 or not all(own[i].isdecimal() and other[i].isdecimal() for i in differing):
        return
    for i, part in enumerate(own[: differing[0] + 1] if len(differing) == 2 else own):
        if part.isdecimal():
            yield ".".join(own[:i]), int(part), int(other[i])


def rounded_stage_offsets(reference: Mapping[str, Figures], stage: Mapping[str, Figures]) -> dict[str, Offsets]:
    """As `stage_offsets`, of weights that the stage has in another dtype than the reference."""
    places: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, str, Figures]]] = {}
    for name, known in reference.items():
        where = split_number(name)
        if where is not None:
            places.setdefault((where[0], where[2], known[1]), []).append((where[1], name, known))
    votes = Votes()
    for name, mine in stage.items():
        own = split_number(name)
        if own is None:
            continue
        others = [(number, other, known) for number, other, known in places.get((own[0], own[2], mine[1]), []) if known[0] != mine[0]]
        apart = sorted((_apart(known, mine), number, other) for number, other, known in others)
        if apart and apart[0][0] <= _NEAR and (len(apart) == 1 or apart[0][0] < _NEARER * apart[1][0]):
            votes.add(name, [apart[0][2]])
    return votes.elected()


def _apart(one: Figures, other: Figures) -> float:
    """How far mean and root mean square are apart, over the larger root mean square."""
    size = max(one[3], other[3])
    return (abs(one[2] - other[2]) + abs(one[3] - other[3])) / size if size > 0 else 0.0


def renumbered(offsets: Mapping[str, Offsets]) -> Callable[[str], str]:
    """Sites with the global numbers of their layers, and of what is counted inside them; `offsets` by the names that the stage has."""
    inner_first = sorted(offsets.items(), key=lambda one: -one[0].count(".") - bool(one[0]))
    lists = [(before, sorted(own), own) for before, own in inner_first]

    def site(path: str) -> str:
        for before, numbers, own in lists:
            head = f"{before}." if before else ""
            if path.startswith(head):
                number, dot, rest = path[len(head) :].partition(".")
                digits, slash, operator = number.partition("/")
                if digits.isdecimal():
                    added = own[numbers[max(0, bisect_right(numbers, int(digits)) - 1)]]
                    path = f"{head}{int(digits) + added}{slash}{operator}{dot}{rest}"
        return path

    return site
