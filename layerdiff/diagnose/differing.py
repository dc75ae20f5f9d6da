"""Whether two values that a run was given differ by more than rounding, and by how much."""

from __future__ import annotations

from layerdiff.arithmetic.formats import format_named
from layerdiff.diagnose.evidence import Evidence
from layerdiff.judge.classes import STATISTICS_ROUNDOFF
from layerdiff.judge.tables import Source


def _coarser(evidence: Evidence, pair: int) -> tuple[float, float]:
    """Of the coarser dtype where the two differ: its unit roundoff, and half of its smallest number. 0: equal dtypes need not differ."""
    names = [evidence.texts[int(evidence.pairs[f"{side}_dtype"][pair])] or "" for side in ("reference", "target")]
    formats = [format for format in map(format_named, names) if format is not None]
    if names[0] == names[1] or not formats:
        return 0.0, 0.0
    return max(format.unit for format in formats), max(format.smallest_subnormal for format in formats) / 2


def differs_beyond_rounding(evidence: Evidence, pair: int) -> bool:
    """Whether a pair of values differs: at all in one dtype, by more than the coarser one's roundoff in two."""
    pairs = evidence.pairs
    source = int(pairs["source"][pair])
    if source not in (Source.BYTES, Source.STATISTICS) or pairs["equal"][pair]:
        return False
    if pairs["nonfinite_differ"][pair] > 0 or (source == Source.BYTES and pairs["mismatched"][pair] > 0):
        return True
    roundoff, least = _coarser(evidence, pair)
    if source == Source.STATISTICS:
        verified = int(pairs["mismatched"][pair])
        return verified > 0 if verified >= 0 else not float(pairs["statistic"][pair]) <= roundoff + STATISTICS_ROUNDOFF
    sizes = (("max_abs", "max_reference"), ("rms_difference", "rms_reference"))
    return any(float(pairs[off][pair]) > roundoff * float(pairs[size][pair]) + least for off, size in sizes)


def how_much(evidence: Evidence, pair: int) -> str:
    """By how much, in words."""
    pairs = evidence.pairs
    if pairs["source"][pair] == Source.STATISTICS:
        known = "their checksums differ; " if pairs["mismatched"][pair] > 0 else ""
        return f"{known}mean, size or range differ by at least {float(pairs['statistic'][pair]):.2g}; the elements were not kept"
    if pairs["mismatched"][pair] > 0:
        return f"{int(pairs['mismatched'][pair])} of {int(pairs['count'][pair])} elements"
    if pairs["nonfinite_differ"][pair] > 0:
        return f"{int(pairs['nonfinite_differ'][pair])} elements are finite on one side only"
    return f"relative difference {float(pairs['rel_l2'][pair]):.2g}"
