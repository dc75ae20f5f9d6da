"""A value that ranks hold, opened for a screen as the comparison measured it: put together, added up, or of the rank furthest off.

A comparison keeps how a value was placed, and not which value of each rank's file its parts are: they are found again, at the same site,
step, occurrence and position. What comes out is held against the figures that the comparison keeps: no other value is shown instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import NOTHING_FILLED, Fillings, leading
from layerdiff.align.forms import without_ones
from layerdiff.align.placement import PAD, TURNED, Placement
from layerdiff.align.placements import infer
from layerdiff.align.runs import Run
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.measuring_layouts import measure_both
from layerdiff.judge.pairs.placed import Kept, Placed, joined, kept
from layerdiff.judge.tables import Placing, Source
from layerdiff.measure.blocks import ArrayBlocks
from layerdiff.measure.screening import screen
from layerdiff.rows.cells import visible
from layerdiff.rows.figures import amount, count
from layerdiff.rows.ranks.placement_words import holds_text
from layerdiff.rows.tensor.unreadable import why_unreadable
from layerdiff.rows.traces import Traces
from layerdiff.rows.values import Shape, value_name
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.placements import PlacedValue, Placements
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile

_LARGEST: Final = 2 << 30
"""Bytes of all parts up to which a screen puts them together."""
_CLOSE: Final = 1e-6
SHOWS_EACH: Final = "r shows each rank's part"
_Part = tuple[TraceFile, int]


@dataclass(frozen=True)
class Logical:
    """One pair of a comparison of ranks: the logical value of each side."""

    sides: Both[Kept]
    shape: Shape
    said: str
    """How the target's was made of its ranks."""


def of_ranks(comparison: Comparison, pair: int) -> bool:
    """Whether the target of a pair is made up of what ranks hold."""
    row = int(comparison.pairs["site"][pair])
    several = len(comparison.target.files) > 1 and int(comparison.sites["rank"][row]) < 0
    return several and (len(comparison.placed["pair"]) > 0 or int(comparison.pairs["source"][pair]) == Source.PENDING)


def ranks_of(comparison: Comparison, pair: int) -> list[int]:
    """The ranks whose parts make up a value, in the order of their files."""
    value = next((one for one in Placements(comparison).of_site(int(comparison.pairs["site"][pair])) if one.pair == pair), None)
    return [] if value is None else [part.rank for part in sorted(value.parts, key=lambda part: part.file)]


def put_together(traces: Traces, comparison: Comparison, pair: int, part: int | None = None) -> Logical:
    """Both logical values; or what the rank at number `part` of `ranks_of` holds, against its part of the reference's.

    Raises TraceError, in words for a user, where they cannot be had.
    """
    row, source = int(comparison.pairs["site"][pair]), int(comparison.pairs["source"][pair])
    value = next((one for one in Placements(comparison).of_site(row) if one.pair == pair), None)
    if value is None and source == Source.PENDING:
        raise TraceError("not compared yet: how the ranks make up this value is found when it is")
    if value is None or value.kind is Placing.UNKNOWN:
        unknown = "" if value is None else f": {visible(value.name)}"
        raise TraceError(
            f"this value is in parts on {amount(len(comparison.target.files), 'rank')}, and was not put together{unknown}; {SHOWS_EACH}"
        )
    parts = sorted(value.parts, key=lambda part: part.file)
    theirs = _parts(traces, comparison, pair, "target", [one.file for one in parts])
    ours = _parts(traces, comparison, pair, "reference", None)
    if sum(int(file.values.nbytes[one]) for file, one in (*ours, *theirs)) > _LARGEST:
        raise TraceError(f"this value is put together of {amount(len(parts), 'rank')}: too large for a screen; {SHOWS_EACH}")
    for name, side in (("reference", ours), ("target", theirs)):
        for file, one in side:
            if why := why_unreadable(file, one, f"rank {file.rank} of the {name}" if len(side) > 1 else f"the {name}"):
                raise TraceError(f"{why}; {SHOWS_EACH}")
    errors = tuple(part.error for part in parts)
    for placement, whole, held in _readings(value, ours, theirs):
        placed = Placed(placement, tuple(part.file for part in parts), errors, value.agree)
        found = joined(placement, whole.bits.shape, placed.standing(held))
        if source != Source.BYTES or _as_compared(comparison, pair, whole, found):
            if part is None:
                return Logical(Both(whole, found), whole.bits.shape, _said(value, placed, len(ours)))
            own = Kept(whole.dtype, np.ascontiguousarray(placement.part(whole.bits, part)))
            return Logical(Both(own, held[part]), own.bits.shape, _said_of_rank(value, part))
    if source == Source.NOTHING:
        raise TraceError(f"the parts of {amount(len(parts), 'rank')} were not put together: {visible(value.name)}; {SHOWS_EACH}")
    raise TraceError(
        f"what {amount(len(parts), 'rank')} hold of this value does not make up what was compared: "
        f"the traces are others by now, or it was placed in a way that is not kept. Compare the two again; {SHOWS_EACH}"
    )


def _readings(value: PlacedValue, ours: Sequence[_Part], theirs: Sequence[_Part]) -> Iterator[tuple[Placement, Kept, list[Kept]]]:
    """Every way in which the comparison may have put the value together, with the reference's value and the target's parts."""
    held = [kept(file, one) for file, one in theirs]
    if len(ours) == 1:
        whole = kept(*ours[0])
        known = _placement(value) or infer(whole.numbers, [part.numbers for part in held], None)
        form = held[0].bits.shape
        if known.kind in ("replicated", "partial") and form != whole.bits.shape and without_ones(form) == without_ones(whole.bits.shape):
            known = replace(known, form=form)
        if known.name == value.name:
            yield known, whole, held
            yield known, _counted(known, whole, held), held
        return
    numbers, files = tuple(range(len(ours))), Both(tuple(file for file, _ in ours), tuple(file for file, _ in theirs))
    mine, other = (tuple((i, one) for i, (_, one) in enumerate(side)) for side in (ours, theirs))
    ways = [(same, NOTHING_FILLED) for same in (None, True, False)]  # whether the two runs are cut alike was told by all weights
    for same, fillings in [*ways, (None, _filled(ours, theirs))]:
        _, placed = measure_both(files, mine, other, {}, same, Both([], []), fillings)
        if placed is not None and placed.ours is not None and placed.placement.name == value.name and len(placed.our_files) == len(numbers):
            yield placed.placement, joined(placed.ours, placed.shape or value.shape, [kept(file, one) for file, one in ours]), held


def _counted(placement: Placement, whole: Kept, parts: Sequence[Kept]) -> Kept:
    """The reference's value as it is compared where it is the reference that is filled up in a dimension."""
    bits = whole.bits
    if placement.kind == "sharded":
        bits = leading(bits, placement.dim, 1 + max(int(at.max(initial=PAD)) for at in placement.positions))
    elif bits.ndim == parts[0].bits.ndim:
        for dim, size in enumerate(parts[0].bits.shape):
            bits = leading(bits, dim, size)
    return Kept(whole.dtype, bits)


def _filled(ours: Sequence[_Part], theirs: Sequence[_Part]) -> Fillings:
    """The sizes that one side may have filled up: weights told which they were."""
    found: set[tuple[int, int]] = set()
    for mine, other in zip(*(zip(*(file.shape(one) for file, one in side), strict=False) for side in (ours, theirs)), strict=False):
        if set(mine) != set(other):
            found |= {(a, b) for a in {*mine, sum(mine)} for b in {*other, sum(other)} if a != b}
    return Fillings(frozenset(found))


def _placement(value: PlacedValue) -> Placement | None:
    """As the comparison keeps it; None where it keeps too little: of a grid, and of an order of too many runs."""
    turned = value.name.startswith(TURNED)
    if value.kind is Placing.REPLICATED:
        return Placement("replicated", value.name, value.dim, turned=turned)
    if value.kind is Placing.PARTIAL:
        return Placement("partial", value.name, turned=turned)
    holds = [part.holds for part in sorted(value.parts, key=lambda part: part.file)]
    if value.kind is not Placing.SHARDED or any(runs is None for runs in holds):
        return None
    return Placement("sharded", value.name, value.dim, tuple(_places(runs or ()) for runs in holds), turned=turned)


def _places(runs: Sequence[Run]) -> NDArray[np.intp]:
    each = [np.full(run.places, PAD) if run.start < 0 else run.start + run.step * np.arange(run.places) for run in runs]
    return np.concatenate(each).astype(np.intp) if each else np.empty(0, np.intp)


def _parts(traces: Traces, comparison: Comparison, pair: int, side: str, chosen: Sequence[int] | None) -> list[_Part]:
    """The value of a pair in each file of a side, or in those that are `chosen`. Raises TraceError where one is not found."""
    row, value = int(comparison.pairs["site"][pair]), int(comparison.pairs[f"{side}_value"][pair])
    first, call = traces.file(comparison, side, row)
    files = traces.files(comparison, side)
    if len(files) == 1:
        if not 0 <= value < len(first.values) or first.dtype_name(value) != value_name(comparison, pair, side).dtype:
            raise TraceError(f"{first.path} is not the {side} that was compared: its values are others. Compare the two again.")
        return [(first, value)]
    position = comparison.texts[int(comparison.pairs["position"][pair])]
    places = [(edge.role, edge.position) for edge in first.edges_of(call) if edge.value == value]
    place = next((one for one in places if one[1] == position), places[0] if places else None)
    find = _finder(first, call)
    found: list[_Part] = []
    for number in range(len(files)) if chosen is None else chosen:
        at = find(files[number])
        here = [] if at is None else [edge.value for edge in files[number].edges_of(at) if (edge.role, edge.position) == place]
        if here:
            found.append((files[number], here[0]))
        elif chosen is not None:
            raise TraceError(f"the part of rank {files[number].rank} is not found in {files[number].path.name}; {SHOWS_EACH}")
    return found


def _finder(first: TraceFile, call: int) -> Callable[[TraceFile], int | None]:
    """Finds the same call in the file of another rank."""
    site = first.site(call)

    def find(file: TraceFile) -> int | None:
        if file is first:
            return call
        mine, theirs = file.calls, first.calls
        same = np.ones(len(mine), bool)
        for column in ("kind", "step", "occurrence", "number"):
            same &= np.asarray(getattr(mine, column)) == getattr(theirs, column)[call]
        return next((one for one in np.flatnonzero(same).tolist() if file.site(one) == site), None)

    return find


def _as_compared(comparison: Comparison, pair: int, whole: Kept, found: Kept) -> bool:
    """Whether two values have the figures that the comparison keeps of a pair."""
    if whole.bits.shape != found.bits.shape:
        return False
    measured, pairs = vars(screen(ArrayBlocks(whole.dtype, whole.bits), ArrayBlocks(found.dtype, found.bits))), comparison.pairs
    return all(_close(float(pairs[name][pair]), float(measured[name])) for name in ("equal", "rel_l2", "max_abs", "mismatched"))


def _close(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=_CLOSE)


def _said_of_rank(value: PlacedValue, number: int) -> str:
    part = sorted(value.parts, key=lambda part: part.file)[number]
    said = f"rank {part.rank} of {count(len(value.parts))}"
    if value.kind is Placing.PARTIAL:
        return f"{said}: its part of the sum, against the whole"
    if value.kind is Placing.REPLICATED:
        return f"{said}: it holds the whole"
    if value.kind is Placing.SHARDED and part.holds is not None:
        return f"{said}: its part, {holds_text(part.holds)} along {value.dim}"
    return f"{said}: its part"


def _said(value: PlacedValue, placed: Placed, ours: int) -> str:
    ranks = [part.rank for part in sorted(value.parts, key=lambda part: part.file)]
    many = amount(len(ranks), "rank")
    if value.kind is Placing.REPLICATED:
        shown = placed.standing(list(range(len(ranks))))
        if len(ranks) == 1:
            said = f"rank {ranks[0]} alone has it"
        elif value.agree:
            said = f"the same on {many}"
        else:
            worst, others = placed.errors[shown[0]], [error for i, error in enumerate(placed.errors) if i != shown[0]]
            further = ", the furthest off" if any(error < worst for error in others) else ", the others are as far off"
            said = f"rank {ranks[shown[0]]} of {count(len(ranks))}{further}"
    elif value.kind is Placing.PARTIAL:
        said = f"the sum of {many}"
    elif value.kind is Placing.NESTED:
        said = f"put together of {many} in a grid"
    else:
        said = f"put together of {many}, {visible(value.name.partition(':')[0])}"
    return said if ours == 1 else f"target: {said}; reference: of {amount(ours, 'rank')}"
