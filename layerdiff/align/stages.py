"""Global numbers for the layers of a pipeline stage that counts its own from zero: told from the weights, never from names.

A path `layers.0.norm` of a stage is the reference's `layers.8.norm` where its weights have the same bits. One offset must hold for all
numbered weights of a list of layers that are found at all; weights that are cut (tensor parallel) or rounded are not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

Print = tuple[tuple[int, int], str, str]
"""Fingerprint, dtype and shape of a weight."""
_NUMBER = re.compile(r"^(.*?)(?:^|\.)(\d+)(?:\.(.*))?$")


def split_number(path: str) -> tuple[str, int, str] | None:
    """`model.layers.3.mlp` as (`model.layers`, 3, `mlp`), at the first number; None where there is none."""
    found = _NUMBER.match(path)
    return None if found is None else (found.group(1), int(found.group(2)), found.group(3) or "")


def stage_offsets(reference: Mapping[str, Print], stage: Mapping[str, Print]) -> dict[str, int]:
    """By list of layers (`model.layers`) what has to be added to a stage's own numbers; nothing for lists that count globally already.

    Args:
        reference, stage: the bits of each weight, by its whole name.
    """
    places: dict[Print, list[tuple[str, int, str]]] = {}
    for name, bits in reference.items():
        where = split_number(name)
        if where is not None:
            places.setdefault(bits, []).append(where)
    votes: dict[str, Counter[int]] = {}
    for name, bits in stage.items():
        own = split_number(name)
        if own is None:
            continue
        found = [number - own[1] for before, number, after in places.get(bits, []) if (before, after) == (own[0], own[2])]
        if found:
            votes.setdefault(own[0], Counter()).update(set(found))
    offsets = {}
    for before, counted in votes.items():
        offset, most = max(counted.items(), key=lambda one: (one[1], one[0] == 0))
        if offset != 0 and most > counted.get(0, 0):
            offsets[before] = offset
    return offsets


def stages(sites: Sequence[Iterable[str]]) -> list[int]:
    """For each rank the number of its stage, by the module paths that it ran: ranks that ran a layer together are of one stage."""
    layers = [{where[:2] for where in map(split_number, own) if where is not None} for own in sites]
    found = list(range(len(layers)))
    for rank, own in enumerate(layers):
        together = {found[other] for other in range(rank) if own & layers[other]}
        found = [rank if stage in together else stage for stage in found]
    order = list(dict.fromkeys(found))
    return [order.index(stage) for stage in found]


def renumbered(offsets: Mapping[str, int]) -> Callable[[str], str]:
    """Sites with the global numbers of their layers."""

    def site(path: str) -> str:
        for before, offset in offsets.items():
            head = f"{before}." if before else ""
            if path.startswith(head):
                number, dot, rest = path[len(head) :].partition(".")
                digits, slash, operator = number.partition("/")
                if digits.isdecimal():
                    return f"{head}{int(digits) + offset}{slash}{operator}{dot}{rest}"
        return path

    return site
