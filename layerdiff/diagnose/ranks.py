"""What many ranks do wrong together, found at the origins that thresholds gave: a sum that was never reduced, or reduced twice, a value
that every rank adds, parts in another order, a statistic of a part.

Each is an equality between recorded values, with its residual; where none holds the origin stays as it is, with the rank that is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from layerdiff.align.forms import same_form
from layerdiff.align.placement import SURELY
from layerdiff.diagnose.findings import Origin
from layerdiff.diagnose.rank_orders import moved, places_of_others, two_orders
from layerdiff.diagnose.rank_values import APART, Array, RankValues, size_of
from layerdiff.judge.found import Found
from layerdiff.judge.tables import Columns
from layerdiff.trace.schema import CallKind, Role

_AT_MOST: Final = 0.1
"""`RankValues.holds` where what had come in was off: an equality must explain most of a difference."""


def findings_of_ranks(values: RankValues, origins: Sequence[int]) -> Iterator[tuple[int, Found]]:
    """(row of the origin, what it is), for the origins that one of the equalities explains."""
    for row in origins:
        for explain in (_never_reduced, _given_parts, _added_by_every_rank, two_orders, places_of_others, moved, _local_statistic):
            with np.errstate(invalid="ignore"):  # of two infinities there is no difference
                found = explain(values, row)
            if found is not None:
                yield row, found
                break


def _never_reduced(values: RankValues, row: int) -> Found | None:
    """A value inside that the ranks' parts add up to, and that each rank used as it was: what it misses is seen in a later value.

    Of modules that hand the same value on, the innermost.
    """
    later = [row, *values.inside(row)]
    best: tuple[int, Found] | None = None
    for one in values.inside(row):
        if best is not None and one not in set(values.inside(best[0])):
            break
        found = _unreduced_output(values, one, later)
        if found is not None:
            best = one, found
    return None if best is None else best[1]


def _given_parts(values: RankValues, row: int) -> Found | None:
    """An input that the ranks' parts add up to, in a call that adds nothing up: named is the call that handed it on."""
    for pair in [] if _reduces(values, row) else values.pairs_of(row, Role.INPUT):
        placed, held = values.placed.get(pair), values.held.target
        if placed is None or placed.placement.kind != "partial" or not placed.placement.error < SURELY:
            continue
        makers = [one for one in np.flatnonzero(values.pairs["role"] == Role.OUTPUT).tolist() if held[one] == held[pair]]
        made = makers[-1] if makers else pair
        at = f"{values.site(row)} {values.texts[int(values.pairs['position'][pair])]}"
        said = f"each rank used its own part as if it were the sum: the parts of {len(held[pair])} ranks add up to the reference's {at}"
        error = placed.placement.error
        return values.local(int(values.pairs["site"][made]), made, "allreduce-missing", said, error, SURELY, seen_at=at, sum_error=error)
    return None


def _unreduced_output(values: RankValues, row: int, later: Sequence[int]) -> Found | None:
    for pair in values.pairs_of(row, Role.OUTPUT):
        placed, sums = values.placed.get(pair), values.summed(pair)
        if placed is None or not (placed.placement.adds_up or sums is not None):
            continue
        if sums is not None:
            whole, parts = sums
            lacking = [part - whole for part in parts]
            error = size_of(np.sum(parts, axis=0) - whole) / max(size_of(whole), 1e-300)
        else:
            total, own = values.whole(pair), values.parts(pair)
            if total is None or own is None:
                continue
            parts, error = own, placed.placement.error
            lacking = [part - placed.placement.part(total, rank) for rank, part in enumerate(parts)]
        for other in later:
            seen_here = [] if other == row else [*values.pairs_of(other, Role.INPUT), *values.pairs_of(other, Role.OUTPUT)]
            for seen in seen_here:
                same = values.held.target[seen] == values.held.target[pair]  # handed on as it is, which shows nothing
                residual, allowed = (np.inf, 0.0) if same else _seen_in(values, seen, lacking, error)
                if not residual <= allowed:
                    continue
                at = f"{values.site(other)} {values.texts[int(values.pairs['position'][seen])]}"
                said = (
                    f"each rank used its own part as if it were the sum: the parts of {len(parts)} ranks add up to the reference's "
                    f"(off by {error:.2g}), and what each lacks is missing from {at} on that rank"
                )
                return values.local(row, pair, "allreduce-missing", said, residual, allowed, seen_at=at, sum_error=error)
    return None


def _seen_in(values: RankValues, pair: int, lacking: Sequence[Array], noise: float) -> tuple[float, float]:
    """How exactly the ranks differ from the reference here by what they lack there, and what is allowed; infinity where nothing says.

    `noise`: relative error of the sum of their parts, as what had come in leaves it.
    """
    whole, parts, placed = values.whole(pair), values.parts(pair), values.placed.get(pair)
    if whole is None or parts is None or placed is None or len(parts) != len(lacking) or placed.placement.kind == "unknown":
        return np.inf, 0.0
    own = [placed.placement.part(whole, rank) for rank in range(len(parts))]
    if any(one.shape != part.shape or not same_form(part.shape, lack.shape) for one, part, lack in zip(own, parts, lacking, strict=True)):
        return np.inf, 0.0
    lacking = [lack.reshape(part.shape) for lack, part in zip(lacking, parts, strict=True)]
    if not all(size_of(one) > 0 for one in lacking):
        return np.inf, 0.0
    residual = max(size_of(part - one - lack) / size_of(lack) for part, one, lack in zip(parts, own, lacking, strict=True))
    return residual, _allowed(values, noise, max(map(size_of, own)), min(map(size_of, lacking)))


def _allowed(values: RankValues, noise: float, whole: float, difference: float) -> float:
    """The residual of a difference that is allowed where values of size `whole` are off by `noise` of it for other reasons."""
    return min(_AT_MOST, values.holds + 2.0 * noise * whole / difference)


def _added_by_every_rank(values: RankValues, row: int) -> Found | None:
    """What every rank added, and the reduction counted P times: the difference is (P - 1) times a bias, an input, or an inner value."""
    for pair in values.pairs_of(row, Role.OUTPUT):
        count = len(values.held.target[pair])
        for whole, target, added_up in _totals(values, pair) if count > 1 else ():
            if whole.shape != target.shape:
                continue
            difference = target - whole
            size = size_of(difference)
            if not size > 0:
                continue
            best: tuple[float, int, int, str, str] | None = None
            allowed = _allowed(values, values.incoming(row), size_of(whole), size)
            if not added_up and _reduces(values, row):
                residual = size_of(difference - (count - 1) * whole) / size
                best = (residual, row, pair, "what it should be", "allreduce-duplicated") if residual <= allowed else None
            for one, other, name, cause in _addends(values, row):
                if added_up and cause != "bias-added-per-rank":
                    continue
                sums = values.summed(other)
                known = values.joined(other) if sums is None else np.sum(sums[1], axis=0)
                added = None if known is None else _in_form(known, whole.shape)
                if added is None:
                    continue
                residual = size_of(difference - (count - 1) * added) / size
                if residual <= allowed and (best is None or residual <= best[0]):  # of equals the innermost, which comes last
                    best = residual, one, other, name, cause
            if best is not None:
                residual, one, other, name, cause = best
                said = (
                    f"the difference is {count - 1} times {name}: each of {count} ranks has it whole, and their sum counts it {count} times"
                )
                return values.local(one, other if one != row else pair, cause, said, residual, allowed, ranks=count, added=name)
    return None


def _reduces(values: RankValues, row: int) -> bool:
    """Whether ranks add something up right inside of a call."""
    inside = np.flatnonzero((values.sites["parent"] == row) & (values.sites["kind"] == CallKind.COLLECTIVE)).tolist()
    return any("all_reduce" in (values.texts[int(values.sites["site"][one])] or "") for one in inside)


def _in_form(added: Array, shape: tuple[int, ...]) -> Array | None:
    """What is added to a value of this shape, as it is added there: the tokens of a batch may lie in a row; None where it cannot be."""
    if added.ndim <= len(shape) and added.shape == shape[len(shape) - added.ndim :]:
        return np.broadcast_to(added, shape)
    return added.reshape(shape) if same_form(added.shape, shape) else None


def _totals(values: RankValues, pair: int) -> Iterator[tuple[Array, Array, bool]]:
    """The reference's and the ranks' values together: the logical ones; and, True, sums where ranks differ, that a large bias hides."""
    whole, joined, parts, placed = values.whole(pair), values.joined(pair), values.parts(pair), values.placed.get(pair)
    if whole is not None and joined is not None:
        yield whole, joined, False
    if whole is not None and parts is not None and placed is not None and placed.placement.kind == "replicated" and placed.equal is False:
        yield whole, np.sum(parts, axis=0), True
    sums = values.summed(pair)
    if sums is not None:
        yield sums[0], np.sum(sums[1], axis=0), True


def _addends(values: RankValues, row: int) -> Iterator[tuple[int, int, str, str]]:
    """(row to blame, pair, what it is, cause) of what may have been added once too often."""
    for pair in values.pairs_of(row, Role.WEIGHT):
        name = values.texts[int(values.pairs["position"][pair])] or ""
        if "bias" in name:
            yield row, pair, f"its {name}", "bias-added-per-rank"
    for pair in values.pairs_of(row, Role.INPUT):
        yield row, pair, f"its input {values.texts[int(values.pairs['position'][pair])]}", "residual-added-per-rank"
    for one in values.inside(row):
        for pair in values.pairs_of(one, Role.INPUT):
            yield row, pair, f"{values.texts[int(values.pairs['position'][pair])]} of {values.site(one)}", "residual-added-per-rank"
    for one in values.inside(row):
        for pair in values.pairs_of(one, Role.OUTPUT):
            yield one, pair, f"the output of {values.site(one)}", "allreduce-duplicated"


def _local_statistic(values: RankValues, row: int) -> Found | None:
    """A norm over a part of the channels: on each rank, each row is the reference's times a factor of its own."""
    if "norm" not in (values.texts[int(values.sites["type"][row])] or "").lower():
        return None
    for pair in values.pairs_of(row, Role.OUTPUT):
        placed, whole, parts = values.placed.get(pair), values.whole(pair), values.parts(pair)
        if placed is None or whole is None or parts is None or placed.placement.kind != "sharded":
            continue
        if placed.placement.dim != whole.ndim - 1 and len(parts) > 1 and whole.shape[-1] == parts[0].shape[-1]:
            continue
        factors = []
        left = size = 0.0
        for rank, part in enumerate(parts):
            own = np.asarray(placed.placement.part(whole, rank), np.float64)
            power = np.sum(own * own, axis=-1, keepdims=True)
            factor = np.sum(own * part, axis=-1, keepdims=True) / np.where(power > 0, power, 1.0)
            factors.append((float(factor.min()), float(factor.max())))
            left += float(np.sum(np.square(part - factor * own)))
            size += float(np.sum(np.square(part - own)))
        if size > 0 and (left / size) ** 0.5 <= 0.1 and any(high - low > 1e-4 for low, high in factors):
            listed = "; ".join(f"rank {rank} {low:.4g} to {high:.4g}" for rank, (low, high) in enumerate(factors[:4]))
            said = f"on each rank every row is the reference's times a factor of its own ({listed}): the statistic is of its own channels"
            return values.local(row, pair, "tp-norm-local-statistic", said, (left / size) ** 0.5, factors=[list(one) for one in factors])
    return None


def with_ranks(origins: Sequence[Origin], sites: Columns, placed: Columns) -> tuple[Origin, ...]:
    """The origins of logical tensors with the error of each rank's part; where one rank alone is off, with that rank."""
    if not len(placed["pair"]):
        return tuple(origins)
    return tuple(_with_rank(origin, sites, placed) for origin in origins)


def _with_rank(origin: Origin, sites: Columns, placed: Columns) -> Origin:
    own = origin.evidence.get("rank")
    if own is not None:
        said = origin.statement if origin.statement.startswith(f"rank {int(own)} ") else f"on rank {int(own)}: {origin.statement}"
        return replace(origin, rank=int(own), statement=said)
    pair = int(sites["pair"][origin.row])
    here = np.flatnonzero(placed["pair"] == pair) if pair >= 0 else np.empty(0, np.int64)
    errors = {int(placed["rank"][i]): float(placed["error"][i]) for i in here.tolist() if not np.isnan(placed["error"][i])}
    if len(errors) < 2 or origin.cause is not None:
        return origin
    order = sorted(errors, key=lambda rank: -errors[rank])
    evidence = {**origin.evidence, "error_of_ranks": {str(rank): errors[rank] for rank in sorted(errors)}}
    if errors[order[0]] > APART * errors[order[1]] and errors[order[0]] > 0:
        rest = f"the others by {errors[order[1]]:.2g} at most"
        said = f"{origin.statement}; rank {order[0]} alone is off, by {errors[order[0]]:.2g} of its part, {rest}"
        return replace(origin, rank=order[0], statement=said, evidence=evidence)
    return replace(origin, evidence=evidence)
