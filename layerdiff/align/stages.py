"""Which ranks are one stage of a pipeline, which hands on to which, and what a chain of stages that count from zero has as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from layerdiff.align.global_numbers import Offsets, Print, split_number


def stages(sites: Sequence[Iterable[str]]) -> list[int]:
    """For each rank the number of its stage, by the module paths that it ran: ranks that ran most of their layers together are of one.

    A layer that a rank has in place of one of its own makes it no part of another stage. Of a model without numbered layers nothing tells
    stages: there is one.
    """
    layers = [{where[:2] for where in map(split_number, own) if where is not None} for own in sites]
    if not any(layers):
        return [0] * len(layers)
    found = list(range(len(layers)))
    for rank, own in enumerate(layers):
        together = {found[other] for other in range(rank) if 2 * len(own & layers[other]) >= max(1, len(own | layers[other]))}
        found = [rank if stage in together else stage for stage in found]
    order = list(dict.fromkeys(found))
    return [order.index(stage) for stage in found]


def chained_offsets(chain: Sequence[Mapping[str, Print]]) -> list[dict[str, Offsets]]:
    """As `stage_offsets`, of stages that hand on to each other in this order and each count from zero; nothing where they do not.

    Args:
        chain: of each stage the bits of its weights, by name.
    """
    lists = {where[0] for stage in chain for name in stage if (where := split_number(name)) is not None}
    found: list[dict[str, Offsets]] = [{} for _ in chain]
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
                    found[i][before] = {0: sum(counts[:i])}
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
