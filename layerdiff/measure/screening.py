"""Screening: the numbers of one pair that verdicts are made of, read in blocks, in a few megabytes.

Equal bits are asked first and end it. Everything else is summed over differences, never over norms
of the two sides: two values of the same norm may have nothing in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from layerdiff.measure.blocks import Blocks, side_by_side
from layerdiff.measure.equality import same_bits
from layerdiff.measure.integers import EXACT_KINDS, INTEGER_BLOCK, distances, exact, unequal
from layerdiff.measure.masks import compare_masks
from layerdiff.measure.parts import numbers_per_element, parts, quiet
from layerdiff.measure.sums import SquareSum


@dataclass(frozen=True)
class Screening:
    """The numbers of one pair. nan, and -1 of whole numbers, say that a number was not computed.

    Equal bits are not looked into: `rms_reference` and `max_reference` are nan, and elements that are
    not finite are not counted.
    """

    equal: int
    """1: the same dtype and the same bits (or no elements), else 0."""
    count: int
    """Elements of either side."""
    rel_l2: float
    """sqrt(sum (t-r)^2 / sum r^2) over elements finite on both sides; 0 for no difference, inf where the reference is zero."""
    max_abs: float
    """max |t-r| over the same; of complex elements, over their real numbers."""
    rms_reference: float
    """Over the same."""
    max_reference: float
    """max |r| over the same."""
    rms_difference: float
    """Over the same."""
    mismatched: int
    """Integers, booleans, masks of two representations, types without numbers: how many elements differ; else -1."""
    nonfinite_reference: int
    nonfinite_target: int
    nonfinite_differ: int
    """Elements whose class (finite, nan, +inf, -inf) differs; forbidden positions of a mask agree, however written."""
    worst: int
    """Flat row-major index of max |t-r|; where no finite element differs, of the first one counted in `nonfinite_differ`; else -1."""


@quiet
def screen(reference: Blocks, target: Blocks, *, same: bool = False) -> Screening:
    """Measure one pair of values of equal shape. `same`: they are known to have the same bits.

    Floats narrower than float64 are subtracted in float32 (which holds all of them exactly), with
    float64 sums across blocks; integers exactly; a float against an integer of more than 16 bits in
    float64; complex numbers as pairs of reals. Extra memory stays below 8 MB.

    Raises ValueError where the two do not hold equally many elements.
    """
    kinds = reference.dtype.kind, target.dtype.kind
    if same or same_bits(reference, target) or (reference.count == 0 == target.count):
        exactly = kinds[0] in EXACT_KINDS or kinds[0] == "bits"
        return Screening(1, reference.count, 0.0, 0.0, math.nan, math.nan, 0.0, 0 if exactly else -1, 0, 0, 0, -1)
    if "bits" in kinds:
        return _bits(reference, target)
    if kinds[0] in EXACT_KINDS and kinds[1] in EXACT_KINDS:
        return _integers(reference, target)
    if kinds in (("boolean", "float"), ("float", "boolean")):
        found = _mask(reference, target)
        if found is not None:
            return found
    return _floats(reference, target)


def _floats(reference: Blocks, target: Blocks) -> Screening:
    width = numbers_per_element(reference, target)
    difference, size = SquareSum(), SquareSum()
    largest, largest_reference, worst, first_differing = 0.0, 0.0, -1, -1
    compared = nonfinite_reference = nonfinite_target = nonfinite_differ = 0
    for part in parts(reference, target):
        difference.add(part.difference, part.largest_difference)
        size.add(part.reference, part.largest_reference)
        largest_reference = max(largest_reference, part.largest_reference)
        if part.largest_difference > largest:
            largest = part.largest_difference
            worst = part.start + int(np.argmax(part.distance))
        compared += part.compared
        if part.left_out is not None:
            nonfinite_reference += part.nonfinite_reference
            nonfinite_target += part.nonfinite_target
            if part.differ is not None:
                nonfinite_differ += int(np.count_nonzero(part.differ))
                first_differing = part.start + int(np.argmax(part.differ)) if first_differing < 0 else first_differing
    return Screening(
        equal=0,
        count=reference.count,
        rel_l2=difference.relative_to(size),
        max_abs=largest,
        rms_reference=size.root(compared),
        max_reference=largest_reference,
        rms_difference=difference.root(compared),
        mismatched=-1,
        nonfinite_reference=nonfinite_reference,
        nonfinite_target=nonfinite_target,
        nonfinite_differ=nonfinite_differ,
        worst=(worst if worst >= 0 else first_differing) // width,
    )


def _integers(reference: Blocks, target: Blocks) -> Screening:
    difference, size = SquareSum(), SquareSum()
    largest, largest_reference, worst, mismatched = 0.0, 0.0, -1, 0
    for start, ours, theirs in side_by_side(reference, target, INTEGER_BLOCK):
        r, t = exact(ours, reference.dtype), exact(theirs, target.dtype)
        mismatched += int(np.count_nonzero(unequal(r, t)))
        apart, magnitude = distances(r, t), np.abs(r.astype(np.float64))
        here, most = float(apart.max()), float(magnitude.max())
        difference.add(apart, here)
        size.add(magnitude, most)
        largest_reference = max(largest_reference, most)
        if here > largest:
            largest, worst = here, start + int(np.argmax(apart))
    count = reference.count
    rms, error = size.root(count), difference.root(count)
    return Screening(0, count, difference.relative_to(size), largest, rms, largest_reference, error, mismatched, 0, 0, 0, worst)


def _mask(reference: Blocks, target: Blocks) -> Screening | None:
    """A boolean against an additive mask, both read as 1 for attend and 0 for not; None where the float is no mask."""
    swapped = reference.dtype.kind == "float"
    found = compare_masks(target, reference) if swapped else compare_masks(reference, target)
    if found is None:
        return None
    differ, first, attend = found
    count = reference.count
    if swapped:
        attend = _attending(reference)
    size = math.inf if differ and not attend else math.sqrt(differ / max(attend, 1))
    largest, rms, error = float(differ > 0), math.sqrt(attend / count), math.sqrt(differ / count)
    return Screening(0, count, size, largest, rms, float(attend > 0), error, differ, 0, 0, 0, first)


def _attending(additive: Blocks) -> int:
    return sum(int(np.count_nonzero(additive.dtype.decode(bits) == 0)) for bits in additive.blocks(INTEGER_BLOCK))


def _bits(reference: Blocks, target: Blocks) -> Screening:
    """Elements without a decoding: how many differ, and the first. Of two dtypes nothing can be said."""
    mismatched, first = -1, -1
    if reference.dtype.name == target.dtype.name:
        mismatched = 0
        for start, ours, theirs in side_by_side(reference, target, INTEGER_BLOCK):
            differ = ours != theirs
            here = int(np.count_nonzero(differ))
            if here and first < 0:
                first = start + int(np.argmax(differ))
            mismatched += here
    unknown = math.nan
    return Screening(0, reference.count, unknown, unknown, unknown, unknown, unknown, mismatched, 0, 0, 0, first)
