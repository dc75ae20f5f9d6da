"""Two values of floats (or complex numbers, or a float and an integer), block by block, as numbers that can be compared.

Elements that cannot be subtracted, because a side is not finite, and those that a mask forbids on both
sides are *set to zero on both sides* instead of being taken out: positions stay what they are, and no
sum, maximum or unit in the last place sees them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.measure.blocks import Blocks, side_by_side
from layerdiff.measure.masks import HIGHEST_FORBIDDEN, both_forbidden
from layerdiff.trace.dtypes import Dtype

Numbers = NDArray[Any]
"""float32 or float64 of shape (n,)."""
BLOCK: Final = 1 << 16
_READ: Final = 1 << 18
"""Elements read at once: reading is quickest in large blocks, computing in small ones."""
quiet: Final = np.errstate(divide="ignore", invalid="ignore", over="ignore")
"""Decorates what measures parts: numpy's warnings of what is then looked for."""


@dataclass(slots=True)
class Part:
    """One block: reference, target and target - reference, float32 or float64; overwritten by the next.

    Complex elements are two numbers each, so all but `start` counts real numbers.
    """

    start: int
    """Index of the first number."""
    reference: Numbers
    target: Numbers
    difference: Numbers
    distance: Numbers
    """|difference|."""
    size: Numbers
    """|reference|."""
    largest_difference: float
    largest_reference: float
    left_out: NDArray[np.bool_] | None = None
    """Numbers that were set to zero; None for none."""
    differ: NDArray[np.bool_] | None = None
    """Numbers whose class (finite, nan, inf, -inf) differs; None for none."""
    nonfinite_reference: int = 0
    nonfinite_target: int = 0

    @property
    def compared(self) -> int:
        """How many numbers were not left out."""
        return self.reference.size - (0 if self.left_out is None else int(np.count_nonzero(self.left_out)))


def numbers_per_element(reference: Blocks, target: Blocks) -> int:
    """2 where either side is complex."""
    return 2 if "complex" in (reference.dtype.kind, target.dtype.kind) else 1


def working_type(reference: Dtype, target: Dtype) -> np.dtype[Any]:
    """float64 where a side has 64 bits a real number, or is an integer of more than 16; else float32."""
    return np.dtype(np.float64 if any(_is_wide(dtype) for dtype in (reference, target)) else np.float32)


def _is_wide(dtype: Dtype) -> bool:
    if dtype.kind == "integer":
        return dtype.itemsize > 2
    return dtype.name in ("float64", "complex128")


def parts(reference: Blocks, target: Blocks, block: int = BLOCK) -> Iterator[Part]:
    """Both values, at most `block` elements of 32 bits at a time, and fewer of wider ones.

    Elements that are not finite make numpy warn: callers silence it (`quiet`) around their loops.

    Raises ValueError where they do not hold equally many elements.
    """
    dtypes = reference.dtype, target.dtype
    width, kind = numbers_per_element(reference, target), working_type(*dtypes)
    block //= kind.itemsize // 4 * width
    buffers = np.empty((3, min(block, max(reference.count, 1)) * width), kind)
    for start, ours, theirs in side_by_side(reference, target, max(_READ // max(d.itemsize for d in dtypes) // block, 1) * block):
        for low in range(0, ours.size, block):
            r = numbers_of(ours[low : low + block], dtypes[0], kind, width)
            t = numbers_of(theirs[low : low + block], dtypes[1], kind, width)
            yield _part((start + low) * width, r, t, buffers[:, : r.size], dtypes)


def numbers_of(bits: NDArray[Any], dtype: Dtype, kind: np.dtype[Any], width: int) -> Numbers:
    """Elements as real numbers of type `kind`, `width` a complex element (a real one gets the imaginary part 0)."""
    x = dtype.decode(bits)
    if width == 2:
        x = x.astype(np.complex128 if kind == np.float64 else np.complex64, copy=False)
        return x.view(kind)
    if dtype.kind == "boolean":
        x = x != 0
    return x.astype(kind, copy=False)


def _part(start: int, r: Numbers, t: Numbers, buffers: Numbers, dtypes: tuple[Dtype, Dtype]) -> Part:
    d = np.subtract(t, r, out=buffers[0])
    distance, size = np.abs(d, out=buffers[1]), np.abs(r, out=buffers[2])
    part = Part(start, r, t, d, distance, size, float(np.maximum.reduce(distance)), float(np.maximum.reduce(size)))
    # A nan survives max, and a side that is not finite makes the difference so.
    plain = math.isfinite(part.largest_difference) and part.largest_reference < -HIGHEST_FORBIDDEN
    return part if plain else _careful(part, dtypes)


def _careful(part: Part, dtypes: tuple[Dtype, Dtype]) -> Part:
    """The same for a block with elements that are not finite, that a mask may forbid, or whose difference overflows."""
    r, t = part.reference, part.target
    finite_r, finite_t = np.isfinite(r), np.isfinite(t)
    part.nonfinite_reference = int(r.size - np.count_nonzero(finite_r))
    part.nonfinite_target = int(t.size - np.count_nonzero(finite_t))
    hidden = both_forbidden(r, t, dtypes)
    out = ~(finite_r & finite_t) | hidden
    if out.any():
        differ = out & ~hidden & (finite_r | finite_t | (np.isnan(r) != np.isnan(t)) | (np.signbit(r) != np.signbit(t)) & ~np.isnan(r))
        part.left_out = out
        part.differ = differ if differ.any() else None
        r, t = np.where(out, r.dtype.type(0), r), np.where(out, t.dtype.type(0), t)
    d = t - r
    if r.dtype == np.float32 and not np.isfinite(d).all():
        r, t = r.astype(np.float64), t.astype(np.float64)
        d = t - r
    part.reference, part.target, part.difference, part.distance, part.size = r, t, d, np.abs(d), np.abs(r)
    part.largest_difference, part.largest_reference = float(part.distance.max()), float(part.size.max())
    return part
