"""Experts over ranks: which tokens each rank worked on, against those that chose the experts that it holds.

Nothing is fitted: a rank's part is not zero on the tokens that it worked on, and that set is held against the one that a wrong index
would make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.layouts import RANK_BY_RANK
from layerdiff.align.placement import PAD
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.judge.found import Found
from layerdiff.judge.pairs.expert_ids import NOBODY, maps_used
from layerdiff.trace.schema import Role


def experts_of_others(values: RankValues) -> Iterator[Found]:
    """Modules that hold some experts on each rank, and whose ranks work on other tokens than chose those."""
    stacked = [pair for pair in np.flatnonzero(values.pairs["role"] == Role.WEIGHT).tolist() if len(values.shape(pair)) == 3]
    for row in dict.fromkeys(int(values.pairs["site"][pair]) for pair in stacked):
        found = _wrong_ids(values, row) or _wrong_tokens(values, row)
        if found is not None:
            yield found


def _wrong_ids(values: RankValues, row: int) -> Found | None:
    """Ids that count a rank's own experts, made by a map that is not that of the experts that it holds; the module around makes them."""
    around, held = int(values.sites["parent"][row]), next(_held(values, row), [])
    for pair in values.pairs_of(row, Role.INPUT) if held and around >= 0 else ():
        placed, ids, chosen = values.placed.get(pair), values.ids(pair), _chosen_beside(values, row, pair)
        if placed is None or ids is None or len(ids[1]) != len(held) or (chosen is None and placed.placement.numbers):
            continue
        whole, parts = ids if chosen is None else (chosen, ids[1])
        experts = int(max(at.max(initial=0) for at in held)) + 1
        for rank, (used, own) in enumerate(zip(maps_used(whole, parts, experts), held, strict=True)):
            told = np.flatnonzero(used > NOBODY)
            if not told.size or np.array_equal(used[told], told):  # ids of the whole model
                continue
            right = np.full(experts, -1)
            right[own] = np.arange(own.size)
            mine = (used >= 0) & (used < own.size)
            wrong = np.flatnonzero((used > NOBODY) & np.where(right >= 0, used != right, mine))
            if not wrong.size:
                continue
            masked = wrong.size > 1 and not np.any(used[wrong]) and not np.any(right[wrong] >= 0)
            counts = ", ".join(f"expert {expert} as {used[expert]}" for expert in wrong[:3].tolist())
            said = f"rank {values.rank(placed.files[rank])} holds experts {_listed(own)}, and the ids that it is given count {counts}"
            cause, to = "ep-masked-id" if masked else "ep-expert-index", values.texts[int(values.pairs["position"][pair])]
            handed_to = {"site": values.site(row), "value": to}
            return values.local(around, pair, cause, said, 0.0, map=used[told].tolist(), handed_to=handed_to)
    return None


def _chosen_beside(values: RankValues, row: int, pair: int) -> NDArray[np.int64] | None:
    """The choices that all ranks made alike right beside a module, in the form of the ids that it is given; None where there are none."""
    ids = values.ids(pair)
    for one in np.flatnonzero(values.sites["parent"] == values.sites["parent"][row]).tolist() if ids is not None else ():
        for other in values.pairs_of(one, Role.OUTPUT):
            chosen = values.choices(other)
            if ids is not None and chosen is not None and chosen.shape == ids[0].shape:
                return chosen
    return None


def _wrong_tokens(values: RankValues, row: int) -> Found | None:
    for chosen, held, parts, pair in _asked(values, row):
        own = [_chose(chosen, experts) for experts in held]
        worked = [np.any(part.reshape(len(chosen), -1) != 0, axis=1) for part in parts]
        wrong = [rank for rank, (mine, there) in enumerate(zip(own, worked, strict=True)) if not np.array_equal(mine, there)]
        if not wrong or all(there.all() for there in worked):  # a sum, or what is added beside, hides whose it is
            continue
        counted = [_chose(chosen, np.arange(experts.size)) for experts in held]
        if all(np.array_equal(one, other) for one, other in zip(worked, counted, strict=True)):
            how = f"those that chose experts 0 to {held[wrong[0]].size - 1}, its own counted from zero"
        elif (ahead := _ahead(chosen, held, worked)) is not None:
            how = f"those that chose the experts {ahead} further on"
        elif len(wrong) < len(held) and not any(worked[rank].any() for rank in wrong):
            how = "none, as if the numbers of experts were local"
        else:
            continue
        said = (
            f"rank {values.rank(values.held.target[pair][wrong[0]][0])} holds experts {_listed(held[wrong[0]])}, which "
            f"{int(own[wrong[0]].sum())} of {len(chosen)} tokens chose, and worked on {int(worked[wrong[0]].sum())}: {how}"
        )
        return values.local(row, pair, "ep-expert-index", said, 0.0, ranks_off=len(wrong))
    return None


def _ahead(chosen: NDArray[np.int64], held: Sequence[NDArray[np.intp]], worked: Sequence[NDArray[np.bool_]]) -> int | None:
    """By how many experts what each rank worked on is ahead of what it holds, all ranks alike; None where it is not so."""
    count = int(max(experts.max(initial=0) for experts in held)) + 1
    for step in range(1, count):
        if all(np.array_equal(_chose(chosen, (experts + step) % count), there) for experts, there in zip(held, worked, strict=True)):
            return step
    return None


def _asked(values: RankValues, row: int) -> Iterator[tuple[NDArray[np.int64], list[NDArray[np.intp]], list[NDArray[np.float64]], int]]:
    """Choices, shape (tokens, k); the experts that each rank holds; each rank's result by tokens; and the pair of that result."""
    held = next(_held(values, row), None)
    if held is None or sum(experts.size for experts in held) > np.unique(np.concatenate(held)).size:
        return  # of several ranks with the same experts one may do the work of all
    choices = [one for pair in values.pairs_of(row, Role.INPUT) if (one := values.choices(pair)) is not None]
    for pair in values.pairs_of(row, Role.OUTPUT):
        parts = values.parts(pair)
        if parts is None or len(parts) != len(held):
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
        elif placed is not None and placed.placement.kind in ("sharded", "nested") and len(values.shape(pair)) == 3:
            held = [placed.placement.held_along(0, values.shape(pair)[0], rank) for rank in range(len(placed.files))]
            if any(at.size < values.shape(pair)[0] for at in held):
                yield [at[at != PAD] for at in held]


def _chose(chosen: NDArray[np.int64], experts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which tokens chose one of some experts."""
    return np.asarray(np.isin(chosen, experts).any(axis=1))


def _listed(experts: NDArray[np.intp]) -> str:
    return f"{int(experts.min())} to {int(experts.max())}" if experts.size else "none"
