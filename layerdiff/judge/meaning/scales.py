"""`other_scale`: a scale of weights that are kept as whole numbers, where another one makes the programs meet.

Where a scale goes is not recognised by any layout: its elements are moved, each by a share of its own, and what changes by that share
was made with it. What fits the reference's weight best is then put in its place, and both programs must meet as they do where the scales
are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.meaning.changes import UNCHANGED, Change
from layerdiff.judge.meaning.region import Region, Scaled
from layerdiff.judge.meaning.wording import shown
from layerdiff.judge.programs.running import Ran
from layerdiff.replay.refusal import CannotReplay

Array = NDArray[Any]
_MOST: Final = 0.5
"""By what share a scale is moved at most, to see where it goes."""
_CLEARLY: Final = 0.01
"""How far from a share of its own, in steps between two shares, a change may be."""
_SEEN: Final = 0.99
"""Of the elements that change, which must do so by a share of one scale."""
_ALIKE: Final = 0.5
"""Of the signs, more than disagree, that must agree: another weight than the one that was quantised is nowhere near."""
_TOLD: Final = 8
"""Elements a scale there must be, to say anything of it."""
_MOST_SCALES: Final = 8
"""Scales that are tried in a module."""
_SIGMAS: Final = 8.0
"""How many standard deviations of its fit a scale is off that is said to be another."""


@dataclass(frozen=True)
class OtherScale:
    """A scale with which the programs do not meet, and with another one do."""

    call: int
    """The target's call that multiplies by it."""
    cause: str
    evidence: Mapping[str, Any]
    """What it is times what fits, and how far the programs are apart with that, in what roundings of the weights make."""
    statement: str


@dataclass(frozen=True)
class _Scale:
    """A weight of the target's by name, or a number of one of its calls."""

    call: int
    name: str | None
    shape: tuple[int, ...]


def other_scale(region: Region) -> OtherScale | None:
    """The first scale of the target's in a module whose weights are codes with which alone it does not meet; None where there is none."""
    before = region.target_with(UNCHANGED)
    if before is None:
        return None
    try:
        if (shifted := _counted_from(region)) is not None:
            return shifted
        for scale in islice(_scales(region), _MOST_SCALES):
            found = _fits(region, scale, before)
            if found is not None:
                return found
    except CannotReplay:
        pass
    return None


def _counted_from(region: Region) -> OtherScale | None:
    """Codes that count from one more than fits, or from one less."""
    for by in (1, -1) if region.stored.codes.target else ():
        ratio = region.apart_with(Change(region.stored.codes_shifted(by)))
        if ratio is not None and ratio <= region.limit:
            said = f"codes count from {'one more' if by > 0 else 'one less'} than fits the reference's weight"
            call = min(region.stored.codes.target)
            return OtherScale(call, "quant-zero-point", {"static": said, "shift": by, "with_what_fits": ratio}, said)
    return None


def _scales(region: Region) -> Iterator[_Scale]:
    run, told = region.setting.runs.target, set[str]()
    for call in region.programs.body.items.target:
        operation = None if run.is_module(call) else run.operation(call)
        if operation is None or run.is_view(operation):
            continue
        for value in operation.inputs.values():
            weight = run.weight(value)
            own = weight is not None and weight[0] in region.stored.own_weights.target and region.stored.is_real(weight[0])
            if weight is not None and own and weight[0] not in told:
                told.add(weight[0])
                yield _Scale(call, weight[0], run.file.shape(weight[1]))
        if operation.base in ("mul", "div") and len(operation.inputs) == 1:
            yield _Scale(call, None, ())


def _fits(region: Region, scale: _Scale, before: Ran) -> OtherScale | None:
    count = int(np.prod(scale.shape))
    moved = region.target_with(*_multiplied(scale, 1.0 + _MOST * np.arange(1, count + 1) / count))
    if moved is None:
        return None
    for call, results in before.results.items():
        made, after = results.get("out"), moved.results.get(call, {}).get("out")
        if made is None or after is None or made.dtype.kind != "f" or made.size < _TOLD * count:
            continue
        if np.array_equal(made, after, equal_nan=True):
            continue
        returned = _returned_for(region, before, made)
        wanted = _nearest(made, [*_weights_of_size(region, made.size), *(ours for ours, _ in returned)])
        scales = None if wanted is None else _made_with(made, after, count)
        if wanted is not None and scales is not None:
            by, sigma = _fitted(made, wanted, scales, count)
            for _, position in returned:  # weights are rounded, and not what is made of them, element by element
                drawn = [_fitted(made, made + one.reshape(made.shape), scales, count)[0] - 1.0 for one in region.roundings_at(position)]
                sigma = np.maximum(sigma, np.sqrt(np.mean(np.square(drawn), axis=0)))
            ratio = region.apart_with(*_multiplied(scale, by))
            off = _off(by, sigma)
            return None if ratio is None or ratio > region.limit or not off.any() else _said(region, scale, by[off], count, ratio)
    return None


def _weights_of_size(region: Region, size: int) -> Iterator[Array]:
    """The weights of the reference's alone that have so many elements."""
    run = region.setting.runs.reference
    for row in range(len(run.file.values)):
        own = run.file.weight_name(row) in region.stored.own_weights.reference
        if own and math.prod(run.file.shape(row)) == size:
            yield region.setting.contents(run, row)


def _returned_for(region: Region, before: Ran, made: Array) -> list[tuple[Array, str]]:
    """What the reference's program returns where the target's returns `made`, and where."""
    found = []
    for position, _ in region.programs.body.interface.outputs:
        r, t = region.programs.body.calls
        ours, theirs = region.ours.cuts.get((r, position)), before.cuts.get((t, position))
        if ours is not None and theirs is not None and np.array_equal(theirs.reshape(-1), made.reshape(-1)):
            found.append((ours, position))
    return found


def _multiplied(scale: _Scale, by: Array) -> tuple[Change, Scaled | None]:
    """A scale as another one. A weight is changed where it is read; of a number, what the call makes is."""
    if scale.name is not None:
        return UNCHANGED, (scale.name, by.reshape(scale.shape))
    return Change({scale.call: lambda _, made: {at: x * float(by[0]) for at, x in made.items()}}), None


def _made_with(before: Array, after: Array, count: int) -> NDArray[np.intp] | None:
    """For each element with which of the moved scales it was made, -1 where none shows; None where it was made in another way."""
    told = np.isfinite(before) & (before != 0) & np.isfinite(after)
    moved = np.full(before.shape, -1.0)
    np.divide(after, before, out=moved, where=told)
    moved = np.where(told, (moved - 1.0) * count / _MOST - 1.0, -1.0)
    found = np.rint(moved)
    clear = told & (np.abs(moved - found) < _CLEARLY) & (found >= 0) & (found < count)
    if not told.any() or np.count_nonzero(clear) < _SEEN * np.count_nonzero(told):
        return None
    return np.where(clear, found, -1.0).astype(np.intp)


def _fitted(made: Array, wanted: Array, scales: NDArray[np.intp], count: int) -> tuple[Array, Array]:
    """What each scale has to be multiplied by, so that what was made comes nearest to what is wanted, and how sure that is."""
    at = scales.reshape(-1)
    inside = at >= 0
    at, x, y = at[inside], made.reshape(-1)[inside], wanted.reshape(-1)[inside]
    over, under, number = np.bincount(at, x * y, count), np.bincount(at, x * x, count), np.bincount(at, minlength=count)
    by = np.where(under > 0, over / np.where(under > 0, under, 1.0), 1.0)
    left = np.bincount(at, np.square(y - by[at] * x), count) / np.maximum(number - 1, 1)
    return by, np.sqrt(left / np.where(under > 0, under, np.inf))


def _nearest(made: Array, candidates: Iterable[Array]) -> Array | None:
    """Of values with as many elements, each as it is and turned over, the one whose signs are those of what was made."""
    found: Array | None = None
    most = _ALIKE
    for one in candidates:
        for way in (one, one.T) if one.ndim == 2 else (one,):
            alike = float(np.mean(np.sign(made.reshape(-1)) * np.sign(way.reshape(-1))))
            if alike > most:
                found, most = way, alike
    return found


def _off(by: Array, sigma: Array) -> NDArray[np.bool_]:
    """Which scales are others, each by itself; or all of them, where they are together."""
    off = np.abs(by - 1.0) > _SIGMAS * sigma
    if off.any() or not np.all(sigma > 0):
        return off
    weights = 1.0 / np.square(sigma)
    together = float(np.sum(weights * by) / np.sum(weights))
    return np.full(by.shape, abs(together - 1.0) * float(np.sqrt(np.sum(weights))) > _SIGMAS)


def _said(region: Region, scale: _Scale, by: Array, count: int, ratio: float) -> OtherScale:
    run, times = region.setting.runs.target, 1.0 / by
    low, high = float(times.min()), float(times.max())
    how = f"{low:.3g} times" if high - low <= 0.01 * abs(high) else f"{low:.3g} to {high:.3g} times"
    words = shown(run, scale.call) if scale.name is None else scale.name
    many = f"{times.size} of {count} scales in {words}" if count > 1 else words
    said = f"{many}: {how} what fits the reference's weight"
    evidence = {"static": words} if scale.name is None else {"constant": words}
    cause = "scalar-differs" if scale.name is None else "weight-differs"
    return OtherScale(scale.call, cause, {**evidence, "scale": how, "with_what_fits": ratio}, said)
