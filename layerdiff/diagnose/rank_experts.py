"""Experts over ranks: which tokens each rank worked on, against those that chose the experts that it holds.

Nothing is fitted: a rank's part is not zero on the tokens that it worked on, and that set is held against the sets that a wrong index
or a wrong mask would make.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import RANK_BY_RANK
from layerdiff.align.placement import PAD
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.judge.exact import Found
from layerdiff.trace.schema import Role

Tokens = NDArray[np.bool_]


def experts_of_others(values: RankValues) -> Iterator[Found]:
    """Modules that hold some experts on each rank, and whose ranks work on other tokens than chose those."""
    stacked = [pair for pair in np.flatnonzero(values.pairs["role"] == Role.WEIGHT).tolist() if len(values.shape(pair)) == 3]
    for row in dict.fromkeys(int(values.pairs["site"][pair]) for pair in stacked):
        found = _wrong_tokens(values, row)
        if found is not None:
            yield found


def _wrong_tokens(values: RankValues, row: int) -> Found | None:
    for chosen, held, parts, pair in _asked(values, row):
        ranks = range(len(held))
        own = [_any_in(chosen, held[rank]) for rank in ranks]
        worked = [np.any(part.reshape(len(chosen), -1) != 0, axis=1) for part in parts]
        if all(np.array_equal(a, b) for a, b in zip(own, worked, strict=True)):
            continue
        local = [_any_in(chosen, np.arange(held[rank].size)) for rank in ranks]
        beside = [own[rank] | _any_in(chosen, held[rank], inside=False) for rank in ranks]
        wrong = [rank for rank in ranks if not np.array_equal(own[rank], worked[rank])]
        first = wrong[0]
        said = f"rank {values.rank(values.held.target[pair][first][0])} holds experts {_listed(held[first])}, which "
        said += f"{int(own[first].sum())} of {len(chosen)} tokens chose, and worked on {int(worked[first].sum())}: "
        if all(np.array_equal(worked[rank], local[rank]) for rank in ranks):
            said += f"those that chose experts 0 to {held[first].size - 1}, its own counted from zero"
            return values.local(row, pair, "ep-expert-index", said, 0.0, ranks_off=len(wrong))
        if all(not worked[rank].any() for rank in wrong) and len(wrong) < len(held):
            said += "none, as if the numbers of experts were local"
            return values.local(row, pair, "ep-expert-index", said, 0.0, ranks_off=len(wrong))
        if all(np.array_equal(worked[rank], beside[rank]) for rank in ranks):
            said += "those too that chose experts of other ranks"
            return values.local(row, pair, "ep-masked-id", said, 0.0, ranks_off=len(wrong))
    return None


def _asked(values: RankValues, row: int) -> Iterator[tuple[NDArray[np.int64], list[NDArray[np.intp]], list[NDArray[np.float64]], int]]:
    """Choices, shape (tokens, k); the experts that each rank holds; each rank's result by tokens; and the pair of that result."""
    held = next(iter(_held(values, row)), None)
    choices = [one for pair in values.pairs_of(row, Role.INPUT) if (one := values.choices(pair)) is not None]
    for pair in values.pairs_of(row, Role.OUTPUT) if held is not None else ():
        parts = values.parts(pair)
        if held is None or parts is None or len(parts) != len(held):
            continue
        for chosen in choices:
            rows = chosen.reshape(-1, chosen.shape[-1])
            if all(part.size % len(rows) == 0 and int(np.prod(part.shape[:-1])) == len(rows) for part in parts):
                yield rows, held, parts, pair


def _held(values: RankValues, row: int) -> Iterator[list[NDArray[np.intp]]]:
    """The experts that each rank holds: the places of its stacked weights along their first dimension."""
    for pair in values.pairs_of(row, Role.WEIGHT):
        placed = values.placed.get(pair)
        parts = values.parts(pair) if placed is not None and placed.placement.name == RANK_BY_RANK else None
        if parts is not None and parts[0].ndim == 3:
            edges = np.cumsum([0, *(len(part) for part in parts)]).tolist()
            yield [np.arange(start, stop, dtype=np.intp) for start, stop in pairwise(edges)]
        elif placed is not None and placed.placement.kind == "sharded" and placed.placement.dim == 0 and len(values.shape(pair)) == 3:
            yield [at[at != PAD] for at in placed.placement.positions]


def _any_in(chosen: NDArray[np.int64], experts: NDArray[np.intp], *, inside: bool = True) -> Tokens:
    return np.asarray(np.isin(chosen, experts, invert=not inside).any(axis=1))


def _listed(experts: NDArray[np.intp]) -> str:
    return f"{int(experts.min())} to {int(experts.max())}" if experts.size else "none"
