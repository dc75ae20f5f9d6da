"""The profile along one axis as bars of a screen: |difference| over |reference|, on a log scale, pooled by the largest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerdiff.rows.figures import amount, count, figure
from layerdiff.rows.tensor.examined import AxisProfile
from layerdiff.rows.tones import Line, Tone, line


@dataclass(frozen=True)
class Bars:
    """One axis in columns of a screen."""

    profile: AxisProfile
    relative: NDArray[np.float64]
    """Shape (n,): L2 of the difference over that of the reference, the largest of a column; inf where the reference is 0."""
    width: int
    """Measured indices a bar."""
    low: int
    high: int
    """The scale, as powers of ten."""

    def heights(self, full: int) -> NDArray[np.int64]:
        """Steps of a scale of `full`: 0 for no difference, at least 1 for any."""
        value = np.where(np.isinf(self.relative), 10.0**self.high, self.relative)
        known = value > 0
        share = (np.log10(np.where(known, value, 1.0)) - self.low) / (self.high - self.low)
        out: NDArray[np.int64] = np.where(known, np.clip(np.rint(share * full), 1, full), 0).astype(np.int64)
        return out

    def indices(self, bar: int) -> str:
        """Which indices of the axis a bar stands for."""
        step = self.profile.step
        first = bar * self.width * step
        last = min(first + (self.width - 1) * step, self.profile.size - 1)
        return count(first) if first == last else f"{count(first)}..{count(last)}"


def relative(profile: AxisProfile) -> NDArray[np.float64]:
    """Shape (buckets,): the difference over the reference at each; inf where only the reference is 0."""
    d, r = profile.norms.difference, profile.norms.reference
    with np.errstate(divide="ignore", invalid="ignore"):
        out: NDArray[np.float64] = np.where(d == 0, 0.0, d / r)
    return out


def bars_of(profile: AxisProfile, columns: int) -> Bars:
    """An axis in at most `columns` bars."""
    value = relative(profile)
    width = max(1, -(-len(value) // max(1, columns)))
    pooled = np.maximum.reduceat(value, np.arange(0, len(value), width)) if len(value) else value
    drawn = pooled[np.isfinite(pooled) & (pooled > 0)]
    high = math.ceil(math.log10(drawn.max()) + 1e-9) if drawn.size else 0
    low = math.floor(math.log10(drawn.min()) - 0.05) if drawn.size else -1
    low = max(low, high - 8)
    return Bars(profile, pooled, width * profile.norms.width, min(low, high - 1), high)


def spread(profile: AxisProfile) -> str:
    """Where along the axis the difference sits, in words."""
    energy = profile.norms.difference**2
    total = float(energy.sum())
    if not total:
        return "no difference"
    if not math.isfinite(total) or profile.norms.width > 1:
        return ""
    at = int(energy.argmax())
    share, alone = float(energy[at]) / total, int(np.count_nonzero(energy))
    where = count(at * profile.step)
    if alone == 1:
        return f"all of it at {where}"
    if share > max(0.5, 4 / len(energy)):
        return f"{share:.0%} of its square at {where}"
    fewest = int(np.searchsorted(np.cumsum(np.sort(energy)[::-1]), 0.9 * total)) + 1
    if fewest <= len(energy) // 4:
        return f"90% of its square at {amount(fewest, 'index', 'indices')} of {count(len(energy))}, most at {where}"
    return f"at {count(alone)} of {count(len(energy))} indices" if alone < len(energy) else "spread over all indices"


def axis_title(bars: Bars, cursor: int | None, width: int) -> Line:
    """The line above the bars of an axis."""
    profile = bars.profile
    size = f" ({count(profile.size)}{f', every {count(profile.step)}th' if profile.step > 1 else ''})"
    made = line((profile.name, Tone.TITLE), (size, Tone.DIM), (f"  {spread(profile)}", Tone.PLAIN))
    if cursor is not None and cursor < len(bars.relative):
        value = float(bars.relative[cursor])
        first = cursor * (bars.width // profile.norms.width)
        last = first + bars.width // profile.norms.width
        norm = float(profile.norms.difference[first:last].max())
        odd = int(profile.norms.differ[first:last].max())
        said = f"  at {bars.indices(cursor)}: relative {figure(value)}, |Δ| {figure(norm)}"
        made = line(*made.segments, (said, Tone.ACCENT), (f", {amount(odd, 'element')} of another class" if odd else "", Tone.BROKEN))
    return made.clipped(width)
