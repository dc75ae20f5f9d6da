"""Sums over ranks: given what each rank put in, the order in which a collective added it up.

A ring adds every chunk of the buffer in rank order too, but begins at another rank in each: no single order makes the whole, and one
makes each chunk. So orders are looked for in stretches of the flattened result, the fewest that make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT32, Format, round_to
from layerdiff.arithmetic.orders.narrow import add_up

Array = NDArray[np.float64]
SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
LEAST: Final = 64
"""Elements of a stretch, on average at least: shorter ones are found by chance."""


@dataclass(frozen=True)
class Stretch:
    """Elements first .. last - 1 of the flattened result, and the ways that make all of them."""

    first: int
    last: int
    ways: tuple[str, ...]


@dataclass(frozen=True)
class RankSum:
    """How a sum over ranks was added.

    Attributes:
        ways: the ways that make every element; several are a class that these numbers do not tell apart. Empty where none does.
        stretches: where no single way does, a ring's chunks; empty where there is none.
        shares: the share of elements that each way makes, the best first.
    """

    ways: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    shares: tuple[tuple[str, float], ...]

    @property
    def explained(self) -> bool:
        """Whether every element is made."""
        return bool(self.ways or self.stretches)


def ways_of(parts: Array, format: Format) -> dict[str, Array]:
    """The result by every way that is tried: what the ranks put in, [P, n] of `format`, added wide and rounded once, or in `format`."""
    count = parts.shape[0]
    short = SHORT.get(format.name, format.name)
    found: dict[str, Array] = {}
    for name, to in (("fp32", FLOAT32), (short, format)):
        if name in [text.rpartition(" in ")[2] for text in found]:
            continue
        found[f"in rank order in {name}"] = round_to(add_up(parts, "chain", to), format)
        found[f"from the last rank in {name}"] = round_to(add_up(parts[::-1], "chain", to), format)
        found[f"pairwise in {name}"] = round_to(add_up(parts, "pairs", to), format)
        found[f"by recursive halving in {name}"] = round_to(add_up(parts, "halves", to), format)
        for first in range(1, count):
            found[f"in a ring from rank {first} in {name}"] = round_to(add_up(np.roll(parts, -first, 0), "chain", to), format)
        for first in range(count - 1):
            found[f"in a ring from rank {first} downwards in {name}"] = round_to(
                add_up(np.roll(parts, -first - 1, 0)[::-1], "chain", to), format
            )
    return found


def rank_sum(parts: Array, recorded: Array, format: Format, certain: NDArray[np.bool_] | None = None) -> RankSum:
    """How `recorded` [n] was added from what P ranks put in, [P, n].

    `certain`: elements that are counted; what the ranks put in is not known to the bit at the others.
    """
    found = ways_of(np.asarray(parts, np.float64), format)
    names = list(found)
    equal = np.stack([values == recorded for values in found.values()])
    if certain is not None:
        equal |= ~certain
    shares = sorted(((name, float(row.mean())) for name, row in zip(names, equal, strict=True)), key=lambda one: -one[1])
    ways = tuple(name for name, row in zip(names, equal, strict=True) if row.all())
    return RankSum(ways, () if ways else _stretches(names, equal), tuple(shares))


def _stretches(names: list[str], equal: NDArray[np.bool_]) -> tuple[Stretch, ...]:
    """The fewest stretches each made by one way, where there are few enough; greedy, which is optimal for runs."""
    count = equal.shape[1]
    if not np.all(equal.any(0)):
        return ()
    ends = np.full(equal.shape, count)
    for way, row in enumerate(equal):  # the first miss at or after each element
        misses = np.flatnonzero(~row)
        if misses.size:
            following = np.searchsorted(misses, np.arange(count))
            ends[way] = np.where(following < misses.size, misses[np.minimum(following, misses.size - 1)], count)
    found: list[Stretch] = []
    at = 0
    while at < count:
        end = int(ends[:, at].max())
        found.append(Stretch(at, end, tuple(name for name, stop in zip(names, ends[:, at], strict=True) if stop == end)))
        at = end
        if len(found) * LEAST > count:
            return ()
    return tuple(found)
