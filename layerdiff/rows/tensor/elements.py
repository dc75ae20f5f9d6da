"""Single elements in words: decimal, hexadecimal, bits by sign, exponent and mantissa, and how many ulps lie between.

Decimals are the shortest that name the number in its own width, so that what is read can be typed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from layerdiff.measure.along_axis import Element, Number
from layerdiff.measure.ulps import distances, places
from layerdiff.rows.cells import fit
from layerdiff.rows.figures import UNKNOWN, count, figure
from layerdiff.rows.tensor.pair import Tensor
from layerdiff.rows.tones import Line, Segment, Tone, line
from layerdiff.sides import Both
from layerdiff.trace.dtypes import Dtype

_EXPONENT_BITS: Final = {"float64": 11, "float32": 8, "float16": 5}


def decimal(number: Number, dtype: Dtype) -> str:
    """The shortest decimal that is this number in its dtype (of the 8 and 16 bit floats: in float32)."""
    if isinstance(number, (bool, int)):
        return str(number)
    if isinstance(number, complex):
        return f"{_real(number.real, dtype)}{'' if math.copysign(1, number.imag) < 0 else '+'}{_real(number.imag, dtype)}i"
    return _real(number, dtype)


def _real(number: float, dtype: Dtype) -> str:
    if not math.isfinite(number):
        return str(number)
    wide = dtype.name in ("float64", "complex128")
    text = np.format_float_scientific(number, trim="-") if wide else np.format_float_scientific(np.float32(number), trim="-")
    mantissa, exponent = text.split("e")
    if not -5 <= int(exponent) < 7:
        return f"{mantissa}e{int(exponent)}"
    return np.format_float_positional(number if wide else np.float32(number), trim="-")


def hexadecimal(bits: int, dtype: Dtype) -> str:
    """`3f800000`: the bits, all digits of the width."""
    return f"{bits:0{2 * dtype.itemsize}x}"


def fields(bits: int, dtype: Dtype) -> list[str]:
    """The bits as sign, exponent and mantissa; of what is no float, as one."""
    text = f"{bits:0{8 * dtype.itemsize}b}"
    exponent = _EXPONENT_BITS.get(dtype.name, dtype.exponent_bits)
    if dtype.kind != "float" or not 0 < exponent < len(text):
        return [text]
    sign = 0 if dtype.top == "scale" else 1
    return [part for part in (text[:sign], text[sign : sign + exponent], text[sign + exponent :]) if part]


def coarser(dtypes: Both[Dtype]) -> Dtype | None:
    """The dtype in whose ulps the two are held against each other; None unless both are real floats."""
    known = [d for d in (dtypes.reference, dtypes.target) if d.kind == "float" and d.unit_roundoff is not None]
    return max(known, key=lambda d: d.unit_roundoff or 0.0) if len(known) == 2 else None


def ulps(element: Element, dtypes: Both[Dtype]) -> int | None:
    """How many numbers of the coarser dtype lie from one to the other; None where there is no such count."""
    dtype = coarser(dtypes)
    reference, target = element.reference, element.target
    if dtype is None or isinstance(reference, complex) or isinstance(target, complex):
        return None
    if not (math.isfinite(reference) and math.isfinite(target)):
        return None
    kind = np.float64 if "float64" in (dtypes.reference.name, dtypes.target.name) else np.float32
    one, other = (places(np.array([x], kind), dtype) for x in (reference, target))
    return int(distances(one, other)[0])


def ulps_text(element: Element, dtypes: Both[Dtype]) -> str:
    """The distance in ulps, short."""
    found = ulps(element, dtypes)
    return UNKNOWN if found is None else count(found) if found < 10_000_000 else f"{found:.2e}".replace("e+0", "e").replace("e+", "e")


class WorstColumns(NamedTuple):
    """Widths in cells; 0 leaves a column out."""

    number: int
    site: int
    decimal: tuple[int, int]
    difference: int
    ulps: int
    hexadecimal: tuple[int, int]


def worst_columns(tensor: Tensor, elements: Sequence[Element], width: int) -> WorstColumns:
    """Columns as wide as what stands in them; bits only where there is room."""
    dtypes = tensor.sides.map(lambda side: side.dtype)
    number = len(str(len(elements)))
    index = max([5, *(len(tensor.name(e.index)) for e in elements)])
    ours = max([9, *(len(decimal(e.reference, dtypes.reference)) for e in elements)])
    theirs = max([9, *(len(decimal(e.target, dtypes.target)) for e in elements)])
    apart = max([4, *(len(ulps_text(e, dtypes)) for e in elements)])
    bits = max(9, 2 * dtypes.reference.itemsize), max(9, 2 * dtypes.target.itemsize)
    used = number + index + ours + theirs + 8 + apart + 2 * 6
    return WorstColumns(number, index, (ours, theirs), 8, apart, bits if used + sum(bits) + 4 <= width else (0, 0))


def worst_heading(widths: WorstColumns) -> Line:
    """The line above the list."""
    cells = [fit("#", widths.number, align="right"), fit("index", widths.site), fit("reference", widths.decimal[0], align="right")]
    cells += [fit("target", widths.decimal[1], align="right"), fit("|Δ|", widths.difference, align="right")]
    cells.append(fit("ulps", widths.ulps, align="right"))
    if widths.hexadecimal[0]:
        cells += [fit("bits ref", widths.hexadecimal[0]), fit("bits tgt", widths.hexadecimal[1])]
    return line(("  ".join(cells), Tone.DIM))


def worst_line(tensor: Tensor, element: Element, number: int, widths: WorstColumns) -> Line:
    """One element of the list."""
    r, t = tensor.sides.reference.dtype, tensor.sides.target.dtype
    odd = math.isinf(element.difference)
    segments = [
        Segment(fit(str(number), widths.number, align="right") + "  ", Tone.FAINT),
        Segment(fit(tensor.name(element.index), widths.site) + "  ", Tone.STRONG),
        Segment(fit(decimal(element.reference, r), widths.decimal[0], align="right") + "  ", Tone.REFERENCE),
        Segment(fit(decimal(element.target, t), widths.decimal[1], align="right") + "  ", Tone.BROKEN if odd else Tone.TARGET),
        Segment(fit("nan" if odd else figure(element.difference), widths.difference, align="right") + "  ", Tone.PLAIN),
        Segment(fit(ulps_text(element, Both(r, t)), widths.ulps, align="right"), Tone.PLAIN),
    ]
    if widths.hexadecimal[0]:
        segments.append(Segment("  " + fit(hexadecimal(element.reference_bits, r), widths.hexadecimal[0]), Tone.DIM))
        segments.append(Segment("  " + fit(hexadecimal(element.target_bits, t), widths.hexadecimal[1]), Tone.DIM))
    return Line(tuple(segments))


def element_lines(tensor: Tensor, element: Element, width: int) -> list[Line]:
    """Two lines on one element: numbers, then bits with those that differ in bold."""
    dtypes = tensor.sides.map(lambda side: side.dtype)
    r, t = dtypes.reference, dtypes.target
    apart = ulps(element, dtypes)
    dtype = coarser(dtypes)
    known = apart is not None and dtype is not None
    said = f"  {ulps_text(element, dtypes)} {'ulp' if apart == 1 else 'ulps'} of {dtype.name}" if known and dtype else ""
    difference = "another class" if math.isinf(element.difference) else figure(element.difference)
    first = line(
        (f"{tensor.name(element.index)}  ", Tone.TITLE), ("reference ", Tone.DIM), (decimal(element.reference, r), Tone.REFERENCE),
        ("  target ", Tone.DIM), (decimal(element.target, t), Tone.TARGET), ("  |Δ| ", Tone.DIM), (difference, Tone.STRONG), said,
    )  # fmt: skip
    ours, theirs = fields(element.reference_bits, r), fields(element.target_bits, t)
    same_type = r.name == t.name
    words = cells = 0
    for words in (2, 1, 0):
        cells = sum(len(part) + 1 for part in (*ours, *theirs)) + (20 if words == 2 else 6) + 2 * (r.itemsize + t.itemsize) + 4
        if cells <= width:
            break
    named = ("reference", "target") if words == 2 else ("r", "t")
    segments: list[Segment] = []
    for name, mine, other, bits, side, tone in (
        (named[0], ours, theirs, element.reference_bits, r, Tone.REFERENCE), (named[1], theirs, ours, element.target_bits, t, Tone.TARGET),
    ):  # fmt: skip
        segments.append(Segment(f"{name} ", Tone.DIM))
        segments.append(Segment(f"{hexadecimal(bits, side)} ", tone))
        if cells <= width:
            for part, against in zip(mine, other if same_type else mine, strict=True):
                segments += _compared(part, against)
                segments.append(Segment(" "))
        segments.append(Segment(" "))
    return [first.clipped(width), Line(tuple(segments)).clipped(width)]


def _compared(part: str, against: str) -> list[Segment]:
    """Runs of bits that are equal and that are not."""
    made: list[Segment] = []
    for one, other in zip(part, against, strict=True):
        tone = Tone.DIM if one == other else Tone.STRONG
        if made and made[-1].tone is tone:
            made[-1] = Segment(made[-1].text + one, tone)
        else:
            made.append(Segment(one, tone))
    return made
