"""What many ranks do wrong together, found at the origins that thresholds gave: a sum that was never reduced, or reduced twice, a value
that every rank adds, parts in another order, a statistic of a part.

Each is an equality between recorded values, with its residual; where none holds the origin stays as it is, with the rank that is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placements import matched_places
from layerdiff.align.stages import split_number
from layerdiff.diagnose.findings import Origin
from layerdiff.errors import TraceError
from layerdiff.judge.exact import Found
from layerdiff.judge.local import Local
from layerdiff.judge.measuring_ranks import Part, Placed
from layerdiff.judge.tables import Columns, Texts, Verdict
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[np.float64]
HOLDS: Final = 0.02
"""Relative residual up to which an equality holds: rounding in bf16 leaves 4e-3 of a value."""
_MOST: Final = 1 << 24
"""Elements of a value that is looked at."""
RULE: Final = "ranks: an equality between what they recorded"


@dataclass(frozen=True)
class RankValues:
    """The tables of a ranked comparison, with the values behind them."""

    sites: Columns
    pairs: Columns
    texts: Texts
    reference: TraceFile
    targets: Sequence[TraceFile]
    ranks: Sequence[tuple[Part, ...]]
    placed: dict[int, Placed]

    def pairs_of(self, row: int, role: Role) -> list[int]:
        """The pairs of a site, of one role."""
        return [pair for pair in np.flatnonzero(self.pairs["site"] == row).tolist() if self.pairs["role"][pair] == role]

    def inside(self, row: int) -> Iterator[int]:
        """The rows of the module calls inside a call, all the way down, in order."""
        parents = self.sites["parent"].tolist()
        known = {row}
        for one in range(row + 1, len(parents)):
            if parents[one] in known:
                known.add(one)
                if self.sites["kind"][one] == CallKind.MODULE:
                    yield one

    def whole(self, pair: int) -> Array | None:
        """The reference's value; None where it is no float, too large or not kept."""
        value = int(self.pairs["reference_value"][pair])
        return _numbers(self.reference, value)

    def parts(self, pair: int) -> list[Array] | None:
        """What each rank recorded."""
        found = [_numbers(self.targets[file], value) for file, value in self.ranks[pair]]
        return None if not found or any(one is None for one in found) else [one for one in found if one is not None]

    def joined(self, pair: int) -> Array | None:
        """The target's logical value."""
        whole, parts, placed = self.whole(pair), self.parts(pair), self.placed.get(pair)
        if whole is None or parts is None or placed is None or placed.placement.kind == "unknown":
            return None
        return np.asarray(placed.placement.joined(placed.standing(parts), whole.shape), np.float64)

    def local(self, row: int, pair: int, cause: str | None, statement: str, residual: float, **evidence: Any) -> Found:
        """A finding at a value."""
        calls = int(self.sites["reference_call"][row]), int(self.sites["target_call"][row])
        position = self.texts[int(self.pairs["position"][pair])] or "out"
        return Found(row, Local(calls, position, Verdict.DEFECT, statement, residual, HOLDS, RULE, cause=cause, evidence=evidence))

    def site(self, row: int) -> str:
        """The site of a row."""
        return self.texts[int(self.sites["site"][row])] or "the root"


def _numbers(file: TraceFile, value: int) -> Array | None:
    if value < 0 or file.count(value) > _MOST or not file.has_bytes(value):
        return None
    try:
        read = file.read(value)
    except TraceError:
        return None
    return read.astype(np.float64) if read.dtype.kind == "f" else None


def findings_of_ranks(values: RankValues, origins: Sequence[int]) -> Iterator[tuple[int, Found]]:
    """(row of the origin, what it is), for the origins that one of the equalities explains."""
    for row in origins:
        for explain in (_never_reduced, _added_by_every_rank, _two_orders, _moved, _local_statistic):
            found = explain(values, row)
            if found is not None:
                yield row, found
                break


def _size(x: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.sum(np.square(np.where(np.isfinite(x), x, 0.0)))))


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


def _unreduced_output(values: RankValues, row: int, later: Sequence[int]) -> Found | None:
    for pair in values.pairs_of(row, Role.OUTPUT):
        placed = values.placed.get(pair)
        if placed is None or placed.placement.kind != "partial":
            continue
        whole, parts = values.whole(pair), values.parts(pair)
        if whole is None or parts is None:
            continue
        lacking = [part - whole for part in parts]
        for other in later:
            seen_here = [] if other == row else [*values.pairs_of(other, Role.INPUT), *values.pairs_of(other, Role.OUTPUT)]
            for seen in seen_here:
                same = values.ranks[seen] == values.ranks[pair]  # handed on as it is, which shows nothing
                residual = None if same else _seen_in(values, seen, lacking)
                if residual is None or residual > HOLDS:
                    continue
                at = f"{values.site(other)} {values.texts[int(values.pairs['position'][seen])]}"
                said = (
                    f"each rank used its own part as if it were the sum: the parts of {len(parts)} ranks add up to the reference's "
                    f"(off by {placed.placement.error:.2g}), and what each lacks is missing from {at} on that rank"
                )
                return values.local(row, pair, "allreduce-missing", said, residual, seen_at=at, sum_error=placed.placement.error)
    return None


def _seen_in(values: RankValues, pair: int, lacking: Sequence[Array]) -> float | None:
    """How exactly the ranks differ from the reference here by what they lack there; None where that cannot be asked."""
    whole, parts = values.whole(pair), values.parts(pair)
    if whole is None or parts is None or len(parts) != len(lacking) or any(part.shape != whole.shape for part in parts):
        return None
    if whole.shape != lacking[0].shape or not all(_size(one) > 0 for one in lacking):
        return None
    return max(_size(part - whole - lack) / _size(lack) for part, lack in zip(parts, lacking, strict=True))


def _added_by_every_rank(values: RankValues, row: int) -> Found | None:
    """What every rank added, and the reduction counted P times: the difference is (P - 1) times a bias, an input, or an inner value."""
    for pair in values.pairs_of(row, Role.OUTPUT):
        whole, count = values.whole(pair), len(values.ranks[pair])
        if whole is None or count < 2:
            continue
        for target in _totals(values, pair):
            if whole.shape != target.shape:
                continue
            difference = target - whole
            size = _size(difference)
            if not size > 0:
                continue
            best: tuple[float, int, int, str, str] | None = None
            for one, other, name, cause in _addends(values, row):
                known = values.joined(other)
                if known is None or known.ndim > whole.ndim or known.shape != whole.shape[whole.ndim - known.ndim :]:
                    continue
                residual = _size(difference - (count - 1) * np.broadcast_to(known, whole.shape)) / size
                if residual <= HOLDS and (best is None or residual <= best[0]):  # of equals the innermost, which comes last
                    best = residual, one, other, name, cause
            if best is not None:
                residual, one, other, name, cause = best
                said = (
                    f"the difference is {count - 1} times {name}: each of {count} ranks has it whole, and their sum counts it {count} times"
                )
                return values.local(one, other if one != row else pair, cause, said, residual, ranks=count, added=name)
    return None


def _totals(values: RankValues, pair: int) -> Iterator[Array]:
    """What the ranks' values may be together: the logical value, and the sum where they differ, that a large addend hides."""
    joined, parts, placed = values.joined(pair), values.parts(pair), values.placed.get(pair)
    if joined is not None:
        yield joined
    if parts is not None and placed is not None and placed.placement.kind == "replicated" and placed.equal is False:
        yield np.sum(parts, axis=0)


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


def _two_orders(values: RankValues, row: int) -> Found | None:
    """Inputs of one call whose parts lie in different orders: positions of contiguous parts for tokens in zigzag order."""
    lies: dict[tuple[int, ...], dict[str, list[int]]] = {}
    for pair in values.pairs_of(row, Role.INPUT):
        placed = values.placed.get(pair)
        if placed is None or not placed.placement.reading or not placed.placement.fits or placed.placement.also:
            continue
        whole = values.reference.shape(int(values.pairs["reference_value"][pair]))
        sizes = whole[placed.placement.dim], *(at.size for at in placed.placement.positions)
        lies.setdefault(sizes, {}).setdefault(placed.placement.reading, []).append(pair)
    for sizes, orders in lies.items():
        if len(orders) < 2:
            continue
        first, other = sorted(orders, key=lambda order: orders[order][0])[:2]  # what is computed comes before what it is given beside it
        names = [values.texts[int(values.pairs["position"][orders[order][0]])] for order in (first, other)]
        said = (
            f"{names[1]} lies {other} over the ranks and {names[0]} {first}, along {sizes[0]} places of each: "
            f"what a rank is given of the one is not of the places that it holds of the other"
        )
        return values.local(row, orders[other][0], "cp-position-ids", said, 1.0, orders={names[0]: first, names[1]: other})
    return None


def _moved(values: RankValues, row: int) -> Found | None:
    """A value that is the reference's in another order along one dimension: parts gathered or given in another order."""
    asked = [(row, pair) for pair in values.pairs_of(row, Role.OUTPUT)]
    for one in values.inside(row):
        asked = [*[(one, pair) for pair in values.pairs_of(one, Role.INPUT)], *asked]
    asked.sort(key=lambda at: (at[0] == row, at[0]))
    for one, pair in asked:
        if not float(values.pairs["rel_l2"][pair]) > 0.1:
            continue
        whole, target = values.whole(pair), values.joined(pair)
        if whole is None or target is None or whole.shape != target.shape:
            continue
        for dim in range(whole.ndim):
            if whole.shape[dim] < 2:
                continue
            at = matched_places(whole, target, dim)
            if at is None or np.array_equal(at, np.arange(at.size)):
                continue
            there = np.array([bool(np.any(np.take(target, place, axis=dim))) for place in range(at.size)])
            found = np.take(whole, at, axis=dim)
            keep = np.flatnonzero(there)
            size = _size(np.take(target, keep, axis=dim))
            residual = _size(np.take(target - found, keep, axis=dim)) / size if size > 0 else np.inf
            if residual <= HOLDS and keep.size >= 2:
                runs = _runs(at, there)
                position = values.texts[int(values.pairs["position"][pair])]
                empty = int(at.size - keep.size)
                gap = f", and {empty} places hold nothing" if empty else ""
                said = f"{position} is the reference's in another order along dimension {dim}: {runs}{gap}"
                cause = "parts-shifted" if empty else "sequence-order"
                return values.local(one, pair, cause, said, residual, dim=dim, order=runs)
    return None


def _runs(at: NDArray[np.intp], there: NDArray[np.bool_]) -> str:
    """`places 0 to 11 hold 12 to 23, 12 to 23 hold 0 to 11`."""
    texts = []
    start = 0
    for place in range(1, at.size + 1):
        if place == at.size or at[place] != at[place - 1] + 1 or there[place] != there[place - 1]:
            if there[start]:
                texts.append(f"{start} to {place - 1} hold {at[start]} to {at[place - 1]}")
            start = place
    return "places " + ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")


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


def misplaced_weights(values: RankValues) -> Iterator[Found]:
    """Weights that no reading puts together: a rank that holds part of another weight, or what another rank has already."""
    told: set[tuple[int, int]] = set()
    for pair in np.flatnonzero(values.pairs["role"] == Role.WEIGHT).tolist():
        placed, row = values.placed.get(pair), int(values.pairs["site"][pair])
        key = int(values.sites["site"][row]), int(values.pairs["position"][pair])
        if placed is None or placed.placement.kind != "sharded" or key in told:
            continue
        if placed.placement.fits and not placed.placement.missing and "on no rank" not in placed.placement.name:
            continue
        found = _of_another(values, row, pair, placed) or _held_twice(values, row, pair, placed)
        if found is not None:
            told.add(key)
            yield found


def weights_of_one_rank(values: RankValues, told: Sequence[Found]) -> Iterator[Found]:
    """Weights of which one rank alone holds other numbers than its part of the reference's; those in `told` are left out."""
    known = {(one.row, one.local.value) for one in told}
    seen: set[tuple[int, int]] = set()
    for pair in np.flatnonzero(values.pairs["role"] == Role.WEIGHT).tolist():
        placed, row = values.placed.get(pair), int(values.pairs["site"][pair])
        key = int(values.sites["site"][row]), int(values.pairs["position"][pair])
        name = values.texts[key[1]] or "weight"
        if placed is None or key in seen or (row, name) in known or len(placed.errors) < 2:
            continue
        seen.add(key)
        *others, most = sorted(placed.errors)
        if not (most > HOLDS and others[-1] <= HOLDS and most > _APART * others[-1]):
            continue
        index = placed.errors.index(most)
        rank = values.targets[placed.files[index]].rank or 0
        said = f"holds another {name} than its part of the reference's, by {most:.2g} of it; those of the other ranks agree"
        yield values.local(row, pair, None, said, most, rank=rank)


def _of_another(values: RankValues, row: int, pair: int, placed: Placed) -> Found | None:
    """A part that is made of rows of the weights of other modules beside this one."""
    parts, dim = values.parts(pair), placed.placement.dim
    if parts is None:
        return None
    mine = values.texts[int(values.pairs["position"][pair])]
    beside = [one for one in np.flatnonzero(values.sites["parent"] == values.sites["parent"][row]).tolist() if one != row]
    for rank, (part, error) in enumerate(zip(parts, placed.errors, strict=False)):
        if not error > HOLDS:
            continue
        for one in beside:
            for other in values.pairs_of(one, Role.WEIGHT):
                whole = values.whole(other)
                if values.texts[int(values.pairs["position"][other])] != mine or whole is None or whole.ndim != part.ndim:
                    continue
                if any(whole.shape[d] != part.shape[d] for d in range(part.ndim) if d != dim):
                    continue
                at = matched_places(whole, part, dim)
                if at is None:
                    continue
                same = np.all(np.moveaxis(np.take(whole, at, axis=dim) == part, dim, 0).reshape(at.size, -1), axis=1)
                if int(same.sum()) >= max(1, at.size // 4):
                    ranges = f"{int(at[same].min())} to {int(at[same].max())}"
                    held = f"{values.site(one)}.{mine}"
                    said = f"rank {placed.files[rank]} holds rows {ranges} of {held} here: fused weights were cut as one block"
                    return values.local(row, pair, "tp-fused-shard", said, float(error), rank=rank, holds=held)
    return None


def _held_twice(values: RankValues, row: int, pair: int, placed: Placed) -> Found | None:
    """Parts that several ranks hold while others are on none."""
    held = np.concatenate(placed.placement.positions)
    whole = values.whole(pair)
    left = 0 if whole is None else whole.shape[placed.placement.dim] - np.unique(held[held >= 0]).size
    if not placed.placement.fits or left <= 0 or held.size == np.unique(held).size:
        return None
    said = f"ranks hold the same part, and {left} places are on no rank: {placed.placement.name}"
    return values.local(row, pair, "tp-duplicate-shard", said, float(left), places_on_no_rank=left)


_APART: Final = 10.0
"""How many times further off one rank's part must be than any other's, to be named alone."""


def with_ranks(origins: Sequence[Origin], sites: Columns, placed: Columns) -> tuple[Origin, ...]:
    """The origins of logical tensors with the error of each rank's part; where one rank alone is off, with that rank."""
    if not len(placed["pair"]):
        return tuple(origins)
    return tuple(_with_rank(origin, sites, placed) for origin in origins)


def _with_rank(origin: Origin, sites: Columns, placed: Columns) -> Origin:
    own = origin.evidence.get("rank")
    if own is not None:
        return replace(origin, rank=int(own), statement=f"on rank {int(own)}: {origin.statement}")
    pair = int(sites["pair"][origin.row])
    here = np.flatnonzero(placed["pair"] == pair) if pair >= 0 else np.empty(0, np.int64)
    errors = {int(placed["rank"][i]): float(placed["error"][i]) for i in here.tolist() if not np.isnan(placed["error"][i])}
    if len(errors) < 2 or origin.cause is not None:
        return origin
    order = sorted(errors, key=lambda rank: -errors[rank])
    evidence = {**origin.evidence, "error_of_ranks": {str(rank): errors[rank] for rank in sorted(errors)}}
    if errors[order[0]] > _APART * errors[order[1]] and errors[order[0]] > 0:
        rest = f"the others by {errors[order[1]]:.2g} at most"
        said = f"{origin.statement}; rank {order[0]} alone is off, by {errors[order[0]]:.2g} of its part, {rest}"
        return replace(origin, rank=order[0], statement=said, evidence=evidence)
    return replace(origin, evidence=evidence)


def missing_layers(values: RankValues) -> Iterator[Found]:
    """Layers that run on no rank; where others run on several with inputs of their own, a stage that loaded the layers of another."""
    on_none: dict[str, dict[int, int]] = {}
    on_two: dict[str, dict[int, list[int]]] = {}
    held: dict[int, set[int]] = {}
    for pair in range(len(values.pairs["site"])):
        held.setdefault(int(values.pairs["site"][pair]), set()).update(file for file, _ in values.ranks[pair])
    parents = np.asarray(values.sites["parent"])
    gone = np.asarray(values.sites["target_call"]) < 0
    for row in np.flatnonzero(np.asarray(values.sites["kind"]) == CallKind.MODULE).tolist():
        where = split_number(values.texts[int(values.sites["site"][row])] or "")
        if where is None or where[2]:
            continue
        if gone[row] and not (parents[row] >= 0 and gone[parents[row]] and _is_layer(values, int(parents[row]))):
            on_none.setdefault(where[0], {}).setdefault(where[1], row)
        elif len(held.get(row, ())) > 1 and any(_ranks_differ(values, pair) for pair in values.pairs_of(row, Role.INPUT)):
            on_two.setdefault(where[0], {}).setdefault(where[1], sorted(held[row]))
    for before, layers in on_none.items():
        twice = on_two.get(before, {})
        numbers = sorted(layers)
        said = f"{_listed(before, numbers)} on no rank"
        cause, row = "layer-missing", layers[numbers[0]]
        if twice:
            cause = "pp-layer-offset"
            ranks = sorted({values.targets[file].rank or 0 for files in twice.values() for file in files})
            said += f", and {_listed(before, sorted(twice))} on ranks {', '.join(map(str, ranks))}: a stage holds the layers of another"
        calls = int(values.sites["reference_call"][row]), -1
        yield Found(
            row, Local(calls, "out", Verdict.DEFECT, said, float(len(numbers)), 0.0, RULE, cause=cause, evidence={"layers": numbers})
        )


def _ranks_differ(values: RankValues, pair: int) -> bool:
    """Whether ranks that hold the same places hold other numbers: the layers of one stage never do that."""
    placed = values.placed.get(pair)
    return placed is not None and placed.equal is False


def _is_layer(values: RankValues, row: int) -> bool:
    where = split_number(values.texts[int(values.sites["site"][row])] or "")
    return where is not None and not where[2]


def _listed(before: str, numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"{before}.{listed} {'runs' if len(numbers) == 1 else 'run'}"
