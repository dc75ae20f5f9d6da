"""The full set of numbers of a pair of values as lines, and the histogram of its distances in ulps."""

from __future__ import annotations

import math
from typing import Final

from layerdiff.judge.tables import Source
from layerdiff.measure.full import Full
from layerdiff.rows.cells import wrap
from layerdiff.rows.figures import amount, count, exact, figure, known
from layerdiff.rows.tensor.examined import Examined
from layerdiff.rows.tensor.pair import Tensor
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.rows.values import index_text, shape_of
from layerdiff.saved.comparison import Comparison

_LABEL: Final = 17
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def number_lines(examined: Examined, width: int) -> list[Line]:
    """Every number of the full set, one a line."""
    tensor, numbers = examined.tensor, examined.numbers
    if numbers is None:
        return [line(("measuring", Tone.DIM))]
    differ = numbers.count - (numbers.ulp_histogram[0] if numbers.ulp_histogram else 0)
    lines = [
        _row("relative L2", exact(known(numbers.rel_l2))),
        _row("cosine distance", exact(known(numbers.cosine_distance))),
        _row("largest |Δ|", exact(known(numbers.max_abs)), _at(tensor, numbers)),
        _row("mean |Δ|, rms Δ", f"{figure(known(numbers.mean_abs))}, {figure(known(numbers.rms))}"),
        _row("largest |Δ|/|ref|", exact(known(numbers.max_rel))),
    ]
    if numbers.ulp_dtype is not None:
        lines.append(_row("farthest", amount(numbers.max_ulps, "ulp"), f"of {numbers.ulp_dtype}"))
        lines.append(_row("apart by ≥ 1 ulp", f"{count(differ)} of {count(numbers.count)}", _share(differ, numbers.count)))
    else:
        lines.append(_row("not equal", f"{count(numbers.mismatched)} of {count(numbers.count)}", _share(numbers.mismatched, numbers.count)))
    if numbers.left_out:
        lines.insert(0, _row("left out", count(numbers.left_out), "not finite, or masked on both", tone=Tone.BROKEN))
    if tensor.sampling:
        lines += [line((text, Tone.NOTICE)) for text in wrap(f"from a sample: {tensor.sampling}", width, lines=3)]
    return [made.clipped(width) for made in lines]


def stored_lines(comparison: Comparison, pair: int, width: int) -> list[Line]:
    """What the comparison itself knows of a pair: for when its values cannot be read."""
    pairs, source = comparison.pairs, int(comparison.pairs["source"][pair])
    shape = shape_of(comparison.texts[int(pairs["reference_shape"][pair])])

    def number(column: str) -> float | None:
        return known(float(pairs[column][pair]))

    if source == Source.PENDING:
        return [line(("not compared yet", Tone.DIM))]
    if source == Source.NOTHING:
        return [line(("nothing of it was compared", Tone.DIM))]
    if source == Source.STATISTICS and pairs["equal"][pair] == 1:
        return [_row("same bits", "yes", "by fingerprint").clipped(width)]
    if source == Source.STATISTICS:
        return [_row("statistics differ", exact(number("statistic")), "by at most, relative; a side kept no bytes").clipped(width)]
    lines = [
        _row("same bits", "yes" if pairs["equal"][pair] == 1 else "no"),
        _row("relative L2", exact(number("rel_l2"))),
        _row("largest |Δ|", exact(number("max_abs")), f"at {index_text(int(pairs['worst'][pair]), shape)}"),
        _row("rms Δ", exact(number("rms_difference"))),
        _row("rms reference", exact(number("rms_reference"))),
        _row("largest |ref|", exact(number("max_reference"))),
    ]
    odd = int(pairs["nonfinite_differ"][pair])
    if odd > 0:
        lines.append(_row("class differs", count(odd), "elements: finite, nan, inf", tone=Tone.BROKEN))
    return [made.clipped(width) for made in lines]


def histogram_lines(numbers: Full, width: int, height: int) -> list[Line]:
    """How many elements are how many ulps apart, at most `height` lines; neighbouring buckets are joined where they do not fit."""
    counts = list(numbers.ulp_histogram)
    if numbers.ulp_dtype is None or not counts or height < 3:
        return []
    room = height - 1
    together = max(1, -(-(len(counts) - 1) // max(1, room - 1)))
    rows = [("0", counts[0])]
    for first in range(1, len(counts), together):
        last = min(first + together, len(counts)) - 1
        low, high = 1 << (first - 1), (1 << last) - 1
        rows.append((_ulps(low) if low == high else f"{_ulps(low)}..{_ulps(high)}", sum(counts[first : last + 1])))
    total, most = max(1, sum(counts)), max(number for _, number in rows)
    label = max(len(name) for name, _ in rows)
    space = max(1, width - label - 2 - 18)
    lines = [line((f"elements by distance in ulps of {numbers.ulp_dtype}", Tone.DIM))]
    for i, (name, number) in enumerate(rows):
        eighths = max(1, round(space * 8 * number / most)) if number else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        tone = Tone.SAME if i == 0 else Tone.ACCENT
        lines.append(
            line(
                (f"{name:>{label}}  ", Tone.DIM),
                (f"{bar:<{space}}", tone),
                (f" {count(number):>10}", Tone.PLAIN),
                (f" {_share(number, total)}", Tone.DIM),
            )
        )
    return [made.clipped(width) for made in lines]


def _ulps(number: int) -> str:
    return str(number) if number < 10_000 else f"2^{number.bit_length() - 1 if number & (number - 1) == 0 else number.bit_length()}"


def _row(label: str, value: str, note: str = "", *, tone: Tone = Tone.STRONG) -> Line:
    return line((f"{label:<{_LABEL}}  ", Tone.DIM), (value, tone), (f"  {note}" if note else "", Tone.DIM))


def _at(tensor: Tensor, numbers: Full) -> str:
    return f"at {tensor.name(tensor.flat(numbers.worst))}" if numbers.worst >= 0 else ""


def _share(part: int, whole: int) -> str:
    if not part or not whole:
        return "0%"
    share = part / whole
    return "<0.1%" if share < 0.001 else f"{math.floor(share * 1000) / 10:.1f}%" if part < whole else "100%"
