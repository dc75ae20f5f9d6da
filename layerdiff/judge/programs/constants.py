"""Constants: the parameters and buffers of both runs held against each other, each by itself.

A constant is the same in two dtypes where the values differ by at most half an ulp of each. Where it is another, the
reference's is what its program uses, so that the difference shows where it is used, and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.filling import leading
from layerdiff.arithmetic.formats import format_named, round_to
from layerdiff.judge.programs.fused import FusedRows, rearranged
from layerdiff.judge.programs.quantised import quantised_width
from layerdiff.replay.recorded import Place, Recorded, row_major
from layerdiff.replay.refusal import CannotReplay
from layerdiff.replay.weights import Weight
from layerdiff.sides import Both
from layerdiff.trace.schema import ValueKind

Array = NDArray[Any]
NARROW: Final = ("bfloat16", "float16")
"""The dtypes to which a constant may have been rounded once and kept in a wider one."""


@dataclass(frozen=True)
class ConstantPair:
    """A constant that both runs have."""

    name: str
    reference: int
    target: int
    same: bool
    """Equal, or one a rounding of the other."""
    rounded: str | None
    """The dtype to which it was rounded once, though both runs keep it in a wider one."""
    quantised: str | None
    """How it is the reference's quantised: `int8 by rows`."""
    difference: float
    """max |t - r| over rms of the reference, where it is another."""
    filled: tuple[int, int] | None = None
    """Where one run filled it up: the dimension, and the places that both have, where it is the same."""
    rearranged: bool = False
    """Whether it has the same elements in both runs, in another order or another shape: transposed, or its rows permuted."""


class Constants:
    """The named constants of two runs. `contents` reads one as float64 and raises where its bytes were not kept; `rename` says how the
    reference calls one of the target's."""

    def __init__(self, runs: Both[Recorded], contents: Callable[[Recorded, int], Array], rename: Callable[[str], str] = str) -> None:
        self._runs = runs
        self._contents = contents
        self._named = runs.map(whole_constants)
        self._target = {rename(name): value for name, value in self._named.target.items()}
        self._rename = rename
        self._known: dict[str, ConstantPair | None] = {}

    def pair(self, name: str) -> ConstantPair | None:
        """The constant of that name (the reference's) on both sides; None where one lacks it, or its bytes."""
        if name not in self._known:
            self._known[name] = self._compare(name)
        return self._known[name]

    def pair_of_target(self, name: str) -> ConstantPair | None:
        """The same, by the target's name of it."""
        return self.pair(self._rename(name))

    def _compare(self, name: str) -> ConstantPair | None:
        ours, theirs = self._named.reference.get(name), self._target.get(name)
        if ours is None or theirs is None:
            return None
        files = self._runs.map(lambda run: run.file)
        if files.reference.shape(ours) != files.target.shape(theirs):
            filled, moved = self._filled(ours, theirs), self._rearranged(ours, theirs)
            return ConstantPair(name, ours, theirs, False, None, None, float("inf"), filled, moved)
        dtypes = files.reference.dtype_name(ours), files.target.dtype_name(theirs)
        prints = files.reference.fingerprint(ours), files.target.fingerprint(theirs)
        if dtypes[0] == dtypes[1] and prints[0] is not None and prints[0] == prints[1]:
            return ConstantPair(name, ours, theirs, True, None, None, 0.0)
        try:
            r, t = self._contents(self._runs.reference, ours), self._contents(self._runs.target, theirs)
        except CannotReplay:  # without bytes there is no telling; whoever reads the constant says so
            return None
        if np.array_equal(r, t, equal_nan=True):
            return ConstantPair(name, ours, theirs, True, None, None, 0.0)
        same = within_rounding(r, t, *dtypes)
        once = None if same else rounded_once(r, t, NARROW)
        width = None if same or once is not None or r.dtype.kind != "f" else quantised_width(r, t)
        same = same or once is not None or width is not None
        moved = not same and rearranged(r, t, *dtypes)
        return ConstantPair(name, ours, theirs, same, once, width, _difference(r, t), rearranged=moved)

    @cached_property
    def rearranged(self) -> frozenset[str]:
        """The target's constants that have the same elements in both runs, in other places."""
        return frozenset(name for name in self._named.target if (pair := self.pair_of_target(name)) is not None and pair.rearranged)

    def is_elsewhere(self, side: str, name: str) -> bool:
        """Whether the other run has a constant as well, though in another form: rearranged, or as a part of another."""
        pair = self.pair(self._rename(name) if side == "target" else name)
        if pair is not None and (pair.same or pair.rearranged):
            return True
        value: int | None = getattr(self._named, side).get(name)
        try:
            return value is not None and self._in_another(side, name, value)
        except CannotReplay:
            return False

    def _in_another(self, side: str, name: str, value: int) -> bool:
        """Whether the rows of a constant are rows of others; of a vector, whose elements are met by chance, those of its module's too."""
        rows: FusedRows = getattr(self._fused, side)
        if len(getattr(self._runs, side).file.shape(value)) > 1:
            return rows.has(value)
        run: Recorded = getattr(self._runs, side)
        owner = name.rpartition(".")[0]
        beside = [
            other
            for known, other in getattr(self._named, side).items()
            if known.rpartition(".")[0] == owner and len(run.file.shape(other)) > 1
        ]
        return bool(beside) and rows.has(value) and all(rows.has(other) for other in beside)

    def number(self, side: str, name: str) -> object:
        """What a constant is, the same for both sides where it is the same."""
        compared = self._rename(name) if side == "target" else name
        pair = self.pair(compared)
        return ("both", compared) if pair is not None and pair.same else (side, name)

    def contents(self, weight: Weight, value: int) -> Array:
        """What the reference's program reads of a constant at a value: the target's where it is the same.

        Raises CannotReplay where its bytes were not kept.
        """
        pair, run = self.pair(weight.name), self._runs.reference
        if pair is None or not pair.same:
            rows = self._fused.reference.instead(weight.whole) if pair is None or pair.rearranged or np.isinf(pair.difference) else None
            if rows is None and pair is not None and pair.filled is not None:
                rows = self._with_filling(pair, *pair.filled)
            if rows is None and pair is not None and pair.rearranged:
                rows = self._as_coarse(pair)
            return read_weight(run, value, self._contents) if rows is None else viewed(run, rows, weight.whole, weight.place)
        theirs, whole = self._contents(self._runs.target, pair.target), run.place(weight.whole)
        if (weight.place.offset, weight.place.shape, weight.place.strides) == (whole.offset, whole.shape, whole.strides):
            return theirs
        return viewed(run, theirs, weight.whole, weight.place)

    def _filled(self, ours: int, theirs: int) -> tuple[int, int] | None:
        """Of a constant that is longer in one run, in one dimension: what both have, where it is the same."""
        shapes = [run.file.shape(value) for run, value in zip(self._runs, (ours, theirs), strict=True)]
        differing = [dim for dim, sizes in enumerate(zip(*shapes, strict=False)) if sizes[0] != sizes[1]]
        if len(shapes[0]) != len(shapes[1]) or len(differing) != 1:
            return None
        dim, dtypes = differing[0], [run.file.dtype_name(value) for run, value in zip(self._runs, (ours, theirs), strict=True)]
        count = min(shape[dim] for shape in shapes)
        try:
            r, t = (leading(self._contents(run, value), dim, count) for run, value in zip(self._runs, (ours, theirs), strict=True))
        except CannotReplay:
            return None
        return (dim, count) if np.array_equal(r, t, equal_nan=True) or within_rounding(r, t, *dtypes) else None

    def _with_filling(self, pair: ConstantPair, dim: int, count: int) -> Array:
        """The reference's constant with the target's numbers at the places that both have."""
        found = np.array(self._contents(self._runs.reference, pair.reference))
        leading(found, dim, count)[...] = leading(self._contents(self._runs.target, pair.target), dim, count)
        return found

    def _rearranged(self, ours: int, theirs: int) -> bool:
        """Of constants of two shapes; False where their bytes were not kept."""
        files = self._runs.map(lambda run: run.file)
        if np.prod(files.reference.shape(ours)) != np.prod(files.target.shape(theirs)):
            return False
        try:
            r, t = self._contents(self._runs.reference, ours), self._contents(self._runs.target, theirs)
        except CannotReplay:
            return False
        return rearranged(r, t, files.reference.dtype_name(ours), files.target.dtype_name(theirs))

    def _as_coarse(self, pair: ConstantPair) -> Array:
        """The reference's constant, rounded as the target's was that has its elements in other places."""
        format = format_named(self._runs.target.file.dtype_name(pair.target))
        found = self._contents(self._runs.reference, pair.reference)
        return found if format is None else round_to(found, format)

    @cached_property
    def _fused(self) -> Both[FusedRows]:
        """For the constants of each run, the rows of those of the other."""
        lacking = Both(self._of_another_form("reference"), self._of_another_form("target"))
        reference, target = self._runs
        return Both(
            FusedRows(reference, target, self._contents, lacking.target), FusedRows(target, reference, self._contents, lacking.reference)
        )

    def _of_another_form(self, side: str) -> list[int]:
        """The constants of a run that the other lacks, or has in another shape or order."""
        renamed = self._rename if side == "target" else str
        pairs = {value: self.pair(renamed(name)) for name, value in getattr(self._named, side).items()}
        return [value for value, pair in pairs.items() if pair is None or pair.rearranged or np.isinf(pair.difference)]


def read_weight(run: Recorded, value: int, contents: Callable[[Recorded, int], Array]) -> Array:
    """What a value holds: of a cast of a weight the weight's own numbers, since casts are left out of programs. Raises CannotReplay."""
    weight = run.weight(value)
    trained = run.trained(value) if weight is None else None
    whole, place = (weight.whole, weight.place) if weight is not None else trained or (value, run.place(value))
    if place == run.place(value) or not run.file.has_bytes(whole):
        return contents(run, value)
    return viewed(run, contents(run, whole), whole, place)


def viewed(run: Recorded, contents: Array, whole: int, place: Place) -> Array:
    """The part of `contents`, which stand for a whole constant of a run, that lies at a place in it."""
    base = run.place(whole)
    dense = base.offset == 0 and base.strides == row_major(base.shape) and contents.shape == base.shape
    if dense and contents.flags.c_contiguous and place.extent <= contents.size:
        return as_strided(contents.reshape(-1), place.shape, place.strides, place.offset)
    extent = max(base.extent, place.extent)
    flat = np.zeros(extent, contents.dtype)
    as_strided(flat, base.shape, base.strides, base.offset)[...] = contents
    return np.array(as_strided(flat, place.shape, place.strides, place.offset))


def as_strided(flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """A view of flat memory at a place in it."""
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [stride * flat.itemsize for stride in strides])


def whole_constants(run: Recorded) -> dict[str, int]:
    """The parameters and buffers of a run, by name: as they were first, with bytes where it was ever seen with such."""
    columns = run.file.values
    found: dict[str, int] = {}
    for row in np.flatnonzero(columns.kind != ValueKind.ACTIVATION).tolist():
        name = run.file.weight_name(row)
        if name is not None and (name not in found or run.file.has_bytes(row) > run.file.has_bytes(found[name])):
            found[name] = row
    return found


def within_rounding(reference: Array, target: Array, reference_dtype: str, target_dtype: str) -> bool:
    """Whether two arrays (float64) are one constant in two dtypes: at most half an ulp of each apart.

    Mask values that mean "not at all" in their dtype (-inf, the lowest finite number) are one.
    """
    formats = format_named(reference_dtype), format_named(target_dtype)
    if formats[0] is None or formats[1] is None or reference.dtype.kind != "f" or target.dtype.kind != "f":
        return False
    masked = is_masked(reference) & is_masked(target)
    with np.errstate(all="ignore"):
        allowed = np.zeros(reference.shape)
        if formats[0].unit != formats[1].unit:
            allowed = (formats[0].unit + formats[1].unit) * np.maximum(np.abs(reference), np.abs(target))
            allowed = allowed + 0.5 * max(formats[0].smallest_subnormal, formats[1].smallest_subnormal)
        near = np.abs(reference - target) <= allowed
    return bool(np.all(near | masked | (reference == target) | (np.isnan(reference) & np.isnan(target))))


def is_masked(x: Array) -> NDArray[np.bool_]:
    """Elements that mean "not at all" in an additive mask: -inf, and the lowest finite number of float16, bfloat16 or float32."""
    masked: NDArray[np.bool_] = (x <= -3.3e38) | (x == -65504.0)
    return masked


def unmasked(x: Array) -> Array:
    """The lowest number of any dtype as -inf: in an additive mask they mean one thing."""
    return np.where(is_masked(x), -np.inf, x) if x.dtype.kind == "f" else x


def as_mask(mask: Array, like: Array) -> Array:
    """A mask in the representation of another: True and 0 let through; False and the lowest number do not.

    `like` says how: its dtype kind, and which number it has for "not at all". Where it has that exactly at what is True, True hides.
    """
    if mask.dtype.kind == "b" and like.dtype.kind == "f":
        if mask.shape == like.shape and mask.size and np.array_equal(mask, is_masked(like)):
            mask = ~mask
        lowest = float(like.min()) if like.size and bool(is_masked(like).any()) else -np.inf
        return np.where(mask, 0.0, lowest)
    if mask.dtype.kind == "f" and like.dtype.kind == "b":
        hidden = is_masked(mask)
        return hidden if hidden.shape == like.shape and hidden.size and np.array_equal(hidden, like) else ~hidden
    return mask


def _difference(reference: Array, target: Array) -> float:
    """max |t - r| over rms of the reference, of what is finite; max |t - r| where that is 0."""
    r, t = (x if x.dtype.kind in "fc" else x.astype(np.float64) for x in (reference, target))
    finite = np.isfinite(r)
    both = finite & np.isfinite(t)
    most = float(np.max(np.abs(t[both] - r[both]), initial=0.0))
    scale = float(np.sqrt(np.mean(np.square(np.abs(r[finite]))))) if finite.any() else 0.0
    return most / scale if scale > 0 else most


def rounded_once(reference: Array, target: Array, dtypes: Sequence[str]) -> str | None:
    """The first of `dtypes` for which the target is the reference rounded once to it, in a wider dtype; None where there is none."""
    for name in dtypes:
        format = format_named(name)
        if format is not None and reference.dtype.kind == "f" and np.array_equal(round_to(reference, format), target, equal_nan=True):
            return name
    return None
