"""Global numbers for the layers of a pipeline stage that counts its own from zero: told from the weights, never from names.

A path `layers.0.norm` of a stage is the reference's `layers.8.norm` where its weights have the same bits. One offset must hold for all
numbered weights of a list of layers that are found at all; weights in another dtype are found by their mean and root mean square, and
weights that are cut (tensor parallel) are not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

Print = tuple[tuple[int, int], str, str]
"""Fingerprint, dtype and shape of a weight."""
Figures = tuple[str, str, float, float]
"""Dtype, shape, mean and root mean square of a weight."""
_NEAR: Final = 0.01
"""How far two figures of one weight may be apart, over its root mean square: rounding to bf16 moves them by 1e-4 of it at most."""
_NEARER: Final = 0.1
"""How much nearer one layer must be than every other."""
_NUMBER = re.compile(r"^(.*?)(?:^|\.)(\d+)(?:\.(.*))?$")


def split_number(path: str) -> tuple[str, int, str] | None:
    """`model.layers.3.mlp` as (`model.layers`, 3, `mlp`), at the first number; None where there is none."""
    found = _NUMBER.match(path)
    return None if found is None else (found.group(1), int(found.group(2)), found.group(3) or "")


def stage_offsets(reference: Mapping[str, Print], stage: Mapping[str, Print], rounded: Iterable[tuple[str, Print]] = ()) -> dict[str, int]:
    """By list of layers (`model.layers`) what has to be added to a stage's own numbers; nothing for lists that count globally already.

    A list may lie inside another: the experts of a layer (`model.layers.3.mlp.experts`) on a rank that counts its own from zero. A weight
    speaks where its name differs from the reference's in one number, or in two; where both lists are off, the outer one is found first.

    Args:
        reference, stage: the bits of each weight, by its whole name.
        rounded: those that the reference's would have in narrower dtypes.
    """
    places: dict[Print, list[list[str]]] = {}
    for name, bits in (*reference.items(), *rounded):
        places.setdefault(bits, []).append(name.split("."))
    votes: dict[str, Counter[int]] = {}
    for name, bits in stage.items():
        own = name.split(".")
        said = {vote for other in places.get(bits, []) for vote in _votes(own, other)}
        for before, offset in said:
            votes.setdefault(before, Counter()).update([offset])
    return _elected(votes)


def _votes(own: list[str], other: list[str]) -> Iterator[tuple[str, int]]:
    """(list, offset) for each number in a name up to the first that differs from another name's; at most two may."""
    if len(own) != len(other):
        return
    differing = [i for i, (mine, theirs) in enumerate(zip(own, other, strict=True)) if mine != theirs]
    if len(differing) > 2 or not all(own[i].isdecimal() and other[i].isdecimal() for i in differing):
        return
    for i, part in enumerate(own[: differing[0] + 1] if len(differing) == 2 else own):
        if part.isdecimal():
            yield ".".join(own[:i]), int(other[i]) - int(part)


def rounded_stage_offsets(reference: Mapping[str, Figures], stage: Mapping[str, Figures]) -> dict[str, int]:
    """As `stage_offsets`, of weights that the stage has in another dtype than the reference."""
    places: dict[tuple[str, str, str], list[tuple[int, Figures]]] = {}
    for name, known in reference.items():
        where = split_number(name)
        if where is not None:
            places.setdefault((where[0], where[2], known[1]), []).append((where[1], known))
    votes: dict[str, Counter[int]] = {}
    for name, mine in stage.items():
        own = split_number(name)
        if own is None:
            continue
        others = [(number, known) for number, known in places.get((own[0], own[2], mine[1]), []) if known[0] != mine[0]]
        apart = sorted((_apart(known, mine), number) for number, known in others)
        if apart and apart[0][0] <= _NEAR and (len(apart) == 1 or apart[0][0] < _NEARER * apart[1][0]):
            votes.setdefault(own[0], Counter()).update([apart[0][1] - own[1]])
    return _elected(votes)


def _apart(one: Figures, other: Figures) -> float:
    """How far mean and root mean square are apart, over the larger root mean square."""
    size = max(one[3], other[3])
    return (abs(one[2] - other[2]) + abs(one[3] - other[3])) / size if size > 0 else 0.0


def _elected(votes: Mapping[str, Counter[int]]) -> dict[str, int]:
    """The offset that most weights of a list of layers have, where it is another than none."""
    offsets = {}
    for before, counted in votes.items():
        offset, most = max(counted.items(), key=lambda one: (one[1], one[0] == 0))
        if offset != 0 and most > counted.get(0, 0):
            offsets[before] = offset
    return offsets


def stages(sites: Sequence[Iterable[str]]) -> list[int]:
    """For each rank the number of its stage, by the module paths that it ran: ranks that ran a layer together are of one stage.

    Of a model without numbered layers nothing tells stages: there is one.
    """
    layers = [{where[:2] for where in map(split_number, own) if where is not None} for own in sites]
    if not any(layers):
        return [0] * len(layers)
    found = list(range(len(layers)))
    for rank, own in enumerate(layers):
        together = {found[other] for other in range(rank) if own & layers[other]}
        found = [rank if stage in together else stage for stage in found]
    order = list(dict.fromkeys(found))
    return [order.index(stage) for stage in found]


def chained_offsets(chain: Sequence[Mapping[str, Print]]) -> list[dict[str, int]]:
    """As `stage_offsets`, of stages that hand on to each other in this order and each count from zero; nothing where they do not.

    Args:
        chain: of each stage the bits of its weights, by name.
    """
    lists = {where[0] for stage in chain for name in stage if (where := split_number(name)) is not None}
    found: list[dict[str, int]] = [{} for _ in chain]
    for before in lists:
        counts: list[int] = []
        told: dict[str, set[Print]] = {}
        first = True
        for stage in chain:
            numbered = {name: where[1] for name in stage if (where := split_number(name)) is not None and where[0] == before}
            counts.append(max(numbered.values(), default=-1) + 1)
            first &= not numbered or min(numbered.values()) == 0
            for name in numbered:
                told.setdefault(name, set()).add(stage[name])
        other_layers = any(len(prints) > 1 for prints in told.values())
        if first and other_layers:
            for i in range(1, len(chain)):
                if counts[i] and sum(counts[:i]):
                    found[i][before] = sum(counts[:i])
    return found


def levels(ranks: Sequence[int], sends: Iterable[tuple[int, int]]) -> list[int]:
    """For each rank how many handed on to each other before it; `sends`: (sender, receiver), of which the first of two ranks counts."""
    before: dict[int, set[int]] = {}
    for sender, receiver in sends:
        if sender not in before.get(receiver, ()) and receiver not in before.get(sender, ()):
            before.setdefault(receiver, set()).add(sender)
    found = dict.fromkeys(ranks, 0)
    for _ in ranks:
        for rank in ranks:
            found[rank] = max((found[one] + 1 for one in before.get(rank, ()) if one in found), default=0)
            found[rank] = min(found[rank], len(ranks) - 1)
    return [found[rank] for rank in ranks]


def renumbered(offsets: Mapping[str, int]) -> Callable[[str], str]:
    """Sites with the global numbers of their layers, and of what is counted inside them; `offsets` by the names that the stage has."""
    inner_first = sorted(offsets.items(), key=lambda one: -one[0].count(".") - bool(one[0]))

    def site(path: str) -> str:
        for before, offset in inner_first:
            head = f"{before}." if before else ""
            if path.startswith(head):
                number, dot, rest = path[len(head) :].partition(".")
                digits, slash, operator = number.partition("/")
                if digits.isdecimal():
                    path = f"{head}{int(digits) + offset}{slash}{operator}{dot}{rest}"
        return path

    return site
