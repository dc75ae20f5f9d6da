"""Parts of a sum that ranks go on with, where that is less than rounding: what each lacks is missing from what follows.

A layer may add little to what it is given, so that half of it is within what bfloat16 rounds; but rounding knows nothing of the other half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np

from layerdiff.align.forms import same_form
from layerdiff.align.placement import SURELY
from layerdiff.diagnose.rank_values import Array, RankValues, size_of
from layerdiff.judge.found import Found
from layerdiff.trace.schema import Role

_LEVELS: Final = 3
"""Calls around a sum in which it is looked for."""
_SIGMAS: Final = 8.0
"""Standard deviations by which what is missing must be told from nothing."""
_MOSTLY: Final = 0.2
"""How far from all of it what is missing may be, or four standard deviations."""


def quietly_unreduced(values: RankValues, explained: Collection[int]) -> Iterator[Found]:
    """Values that the ranks' parts add up to, and that each rank used as it was; of calls that hand on the same, the innermost.

    `explained`: rows of which something is said already.
    """
    parents, told = values.sites["parent"], set(explained)
    for pair in reversed(
        np.flatnonzero(values.pairs["role"] == Role.OUTPUT).tolist()
    ):  # a call's row comes before those of the calls inside
        placed, row = values.placed.get(pair), int(values.pairs["site"][pair])
        if placed is None or placed.placement.kind != "partial" or not placed.placement.error < SURELY:
            continue
        inside = list(values.inside(row))
        if told & {row, *inside}:
            continue
        around, last = int(parents[row]), max([row, *inside])
        for _ in range(_LEVELS):
            if around < 0:
                break
            later = [one for one in values.inside(around) if one > last]
            found = _missing_from(values, row, pair, [*later, around])
            if found is not None:
                told.add(row)
                yield found
                break
            around = int(parents[around])


def _missing_from(values: RankValues, row: int, pair: int, later: Sequence[int]) -> Found | None:
    for other in later:
        roles = (Role.INPUT, Role.OUTPUT) if other > row else (Role.OUTPUT,)
        for seen in (one for role in roles for one in values.pairs_of(other, role)):
            placed = values.placed.get(seen)
            if placed is None or placed.placement.kind != "replicated" or placed.equal is not False:
                continue
            shares = _shares(values, pair, seen)
            if not shares or not all(abs(share - 1.0) <= max(_MOSTLY, 4.0 * off) and share > _SIGMAS * off for share, off in shares):
                continue
            least, most = min(shares)[0], max(shares)[0]
            at = f"{values.site(other)} {values.texts[int(values.pairs['position'][seen])]}"
            said = (
                f"each rank used its own part as if it were the sum: the parts of {len(shares)} ranks add up to the reference's, "
                f"and {least:.2f} to {most:.2f} of what each lacks is missing from {at} on that rank"
            )
            residual = max(abs(share - 1.0) for share, _ in shares)
            allowed = max(_MOSTLY, 4.0 * max(off for _, off in shares))
            return values.local(row, pair, "allreduce-missing", said, residual, allowed, seen_at=at)
    return None


def _shares(values: RankValues, pair: int, seen: int) -> list[tuple[float, float]]:
    """For each rank how much of what its part lacks is missing from another value, and the standard deviation of that; empty if unknown.

    By how ranks differ from one another: what all have alike, such as a residual that one run hands on beside a value, says nothing.
    """
    parts, there = values.parts(pair), values.parts(seen)
    if parts is None or there is None or len(parts) != len(there):
        return []
    if any(part.shape != parts[0].shape or own.shape != there[0].shape for part, own in zip(parts, there, strict=True)):
        return []
    if not same_form(parts[0].shape, there[0].shape):
        return []
    found = []
    for lacks, off in zip(_apart(parts), _apart(there), strict=True):
        size = size_of(lacks) ** 2
        if not size > 0 or not np.isfinite(off).all() or not np.isfinite(lacks).all():
            return []
        share = float(np.dot(off, lacks)) / size
        found.append((share, size_of(off - share * lacks) / (size * lacks.size) ** 0.5))
    return found


def _apart(parts: Sequence[Array]) -> list[Array]:
    """What each rank has otherwise than all have on average."""
    with np.errstate(invalid="ignore"):  # of two infinities there is no difference: nothing is said of it
        mean = np.mean(parts, axis=0)
        return [(part - mean).reshape(-1) for part in parts]
