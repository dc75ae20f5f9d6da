"""Where what the ranks make together is not what the reference makes: each value that crosses, the logical one and every rank's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.matching import matched_places
from layerdiff.align.placements import infer
from layerdiff.judge.programs.constants import as_mask, unmasked
from layerdiff.judge.programs.padding import dead_elements, where_finite
from layerdiff.judge.programs.setting import NOTHING
from layerdiff.judge.teams.bodies import TeamBody
from layerdiff.judge.teams.crossings import Crossing, TeamCall
from layerdiff.judge.teams.running import TeamRan
from layerdiff.measure.rows import RowDifference, row_difference

Array = NDArray[Any]


@dataclass(frozen=True)
class Apart:
    """Where the programs part: what crosses, into which call or out of the body, and how far each process is off."""

    crossing: Crossing
    call: TeamCall
    handed: bool
    """Whether it is handed to `call`, a child; else it is what the body's own call returns."""
    difference: RowDifference
    figures: tuple[tuple[int, float], ...]
    """(file, figure) of each process's part; empty of a sum."""


def parted(body: TeamBody, ours: TeamRan, theirs: TeamRan, padded: NDArray[Any] | None) -> list[Apart]:
    """What crosses differently, the worst first; empty where all is the same. `padded`: as `judge.padding` has it."""
    found: list[Apart] = []
    for call, handed in body.crossing():
        for crossing in call.inputs if handed else call.outputs:
            held = crossing.held
            whole = held.reference.joined([ours.cuts[file][crossing.key] for file, _ in held.reference.parts])
            figures: list[tuple[int, float]] = []
            difference: RowDifference | None = None
            parts = [theirs.cuts[file][crossing.key] for file, _ in held.target.parts]
            dead = None if padded is None else dead_elements(whole.shape, padded)
            without = repeat((None, None, None)) if dead is None else held.target.beside(dead, parts)
            for (rank, right, part), (_, uncounted, _) in zip(held.target.beside(whole, parts), without, strict=False):
                part = as_mask(part.reshape(right.shape), right)
                counted = right if uncounted is None else where_finite(right, part, uncounted)
                here = row_difference(unmasked(counted), unmasked(part))
                if rank is not None:
                    figures.append((held.target.parts[rank][0], here.figure))
                difference = here if difference is None or here.figure > difference.figure else difference
            matched = held.target.placement.kind == "sharded" and not held.target.placement.reading
            if (matched or not crossing.known) and _made_up(whole, parts, dead, in_any_order=matched):
                continue
            if difference is not None and difference.figure > NOTHING:
                found.append(Apart(crossing, call, handed, difference, tuple(figures)))
    return sorted(found, key=lambda apart: -apart.difference.figure)


def _made_up(whole: Array, parts: Sequence[Array], dead: NDArray[np.bool_] | None, *, in_any_order: bool) -> bool:
    """Whether exact parts are the whole, add up to it, or are its parts in a regular order, where recorded ones did not tell which; or are
    its rows, as they were matched.
    """

    def same(made: Array) -> bool:
        counted = whole if dead is None else where_finite(whole, made, dead)
        return row_difference(unmasked(counted), unmasked(made)).figure <= NOTHING

    if in_any_order:
        at = matched_places(whole, parts[0], 0, once=True) if len(parts) == 1 and parts[0].shape == whole.shape else None
        if at is not None:
            return row_difference(whole[at], parts[0]).figure <= NOTHING
    elif all(part.shape == whole.shape for part in parts):
        return whole.dtype.kind in "fc" and (all(map(same, parts)) or same(np.sum(parts, axis=0)))
    placement = infer(whole, parts)
    if placement.kind == "unknown" or placement.twice or not placement.covers(whole.shape) or not placement.error <= NOTHING:
        return False
    return (in_any_order or bool(placement.reading) or placement.kind == "nested") and same(placement.joined(parts, whole.shape))
