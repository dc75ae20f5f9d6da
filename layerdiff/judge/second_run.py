"""Self-noise: where the target differs from itself between two runs, and where such a difference enters.

A difference enters at a call that is given the same bits in both runs and hands on others, with no call inside it that already
does. Downstream of it everything differs, and nothing there is nondeterministic: those calls do what they did, on other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.pairs.measuring import measure_values
from layerdiff.judge.pairs.pairing import rows_of
from layerdiff.judge.tables import Again, Columns, Texts, Verdict
from layerdiff.replay.allowed import is_random
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Known, Role

WITHIN: Final = (Verdict.IDENTICAL, Verdict.INHERITED, Verdict.ORDER_EXACT, Verdict.ORDER_CONSISTENT)
"""Verdicts that say of a run that its local error is within what arithmetic allows."""
RULE: Final = "self-noise: two runs on the same bits"


@dataclass(frozen=True)
class SelfNoise:
    """Per row of a table of sites of two runs of the target (the first as its reference)."""

    codes: NDArray[np.uint8]
    rel_l2: NDArray[np.float64]
    """Of the worst result, the first run's as the unit; nan where nothing enters."""
    drawn: list[int] = field(default_factory=list)
    """Rows of calls that drew other random numbers."""
    given: list[str] = field(default_factory=list)
    """Positions at which a root was given something else."""


def self_noise(sites: Columns, pairs: Columns, texts: Texts, files: Both[tuple[TraceFile, ...]]) -> SelfNoise:
    """Compare bits of every pair of values: fingerprints where both runs have one, else the bytes. What has neither says nothing."""
    count = len(sites["site"])
    equal = _equal(sites, pairs, files)
    is_output = pairs["role"] == Role.OUTPUT
    differs, known, incoming = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, bool)
    known[pairs["site"][is_output & (equal >= 0)]] = True
    differs[pairs["site"][is_output & (equal == 0)]] = True
    incoming[pairs["site"][~is_output & (equal == 0)]] = True
    inside = np.zeros(count, bool)
    parents = sites["parent"]
    for row in range(count - 1, -1, -1):
        if (differs[row] or inside[row]) and parents[row] >= 0:
            inside[parents[row]] = True
    codes = np.where(differs, np.uint8(Again.DIFFERS), np.where(known, np.uint8(Again.SAME), np.uint8(Again.UNKNOWN)))
    found = SelfNoise(codes, np.full(count, np.nan))
    order, start = rows_of(pairs, count)
    for row in np.flatnonzero(differs & ~inside).tolist():
        its = order[start[row] : start[row + 1]]
        its = its[equal[its] == 0]
        here = Both(files.reference[int(sites["reference_file"][row])], files.target[int(sites["target_file"][row])])
        if _draws(here.reference, sites, row, {texts[int(position)] or "" for position in pairs["position"][its[~is_output[its]]]}):
            found.drawn.append(row)
        elif not incoming[row]:
            codes[row] = Again.ENTERS
            found.rel_l2[row] = _worst(pairs, its[is_output[its]], here)
    roots = np.flatnonzero((sites["parent"] < 0) & (sites["kind"] == CallKind.MODULE) & incoming)
    for pair in np.flatnonzero(np.isin(pairs["site"], roots) & ~is_output & (equal == 0)).tolist():
        found.given.append(texts[int(pairs["position"][pair])] or "?")
    return found


def _equal(sites: Columns, pairs: Columns, files: Both[tuple[TraceFile, ...]]) -> NDArray[np.int8]:
    """Per pair: 1 the same bits, 0 others, -1 nobody knows."""
    equal = np.full(len(pairs["site"]), -1, np.int8)
    numbers = Both(sites["reference_file"][pairs["site"]], sites["target_file"][pairs["site"]])
    for first, second in sorted(set(zip(numbers.reference.tolist(), numbers.target.tolist(), strict=True))):
        rows = np.flatnonzero((numbers.reference == first) & (numbers.target == second))
        here = Both(files.reference[first], files.target[second])
        values = Both(pairs["reference_value"][rows], pairs["target_value"][rows])
        alike = (pairs["reference_dtype"][rows] == pairs["target_dtype"][rows]) & (
            pairs["reference_shape"][rows] == pairs["target_shape"][rows]
        )
        prints = [
            (file.values.known[side] & Known.FINGERPRINT > 0, file.values.fingerprint_high[side], file.values.fingerprint_low[side])
            for file, side in zip(here, values, strict=True)
        ]
        same = (prints[0][1] == prints[1][1]) & (prints[0][2] == prints[1][2])
        printed = prints[0][0] & prints[1][0]
        equal[rows[printed]] = (same & alike)[printed]
        equal[rows[~alike]] = 0
        for i in np.flatnonzero(~printed & alike).tolist():
            if all(file.has_bytes(int(side[i])) for file, side in zip(here, values, strict=True)):
                one, other = (file.raw(int(side[i])) for file, side in zip(here, values, strict=True))
                equal[rows[i]] = one.tobytes() == other.tobytes()
    return equal


def _draws(file: TraceFile, sites: Columns, row: int, came: set[str]) -> bool:
    """Whether a call draws random numbers; what it only writes over, of the positions in `came`, is nothing that came in."""
    name = file.text(int(file.calls.operator[int(sites["reference_call"][row])])) or ""
    if sites["kind"][row] != CallKind.OPERATOR or not (is_random(name) or not came):
        return False
    operation = Recorded(file).operation(int(sites["reference_call"][row]))
    return operation.random and came <= set(operation.writes)


def _worst(pairs: Columns, rows: NDArray[Any], files: Both[TraceFile]) -> float:
    found = [
        float(
            measure_values(files, Both(int(pairs["reference_value"][row]), int(pairs["target_value"][row]))).columns.get("rel_l2", np.nan)
        )
        for row in rows.tolist()
    ]
    known = [figure for figure in found if not np.isnan(figure)]
    return max(known) if known else float("nan")


def apply_noise(sites: Columns, texts: Texts) -> dict[str, NDArray[Any]]:
    """Columns of verdicts in which noise is said: where it enters, and both runs' local errors are within what arithmetic allows."""
    noisy = (sites["again"] == Again.NOISE) & np.isin(sites["verdict"], [int(verdict) for verdict in WITHIN])
    judged = dict(sites)
    if not noisy.any():
        return judged
    for name, column in (
        ("verdict", int(Verdict.NONDETERMINISTIC)),
        ("measured", sites["again_rel_l2"]),
        ("allowed", np.nan),
        ("rule", texts.intern(RULE)),
        ("statement", texts.intern("two runs of the target differ here on the same bits; both are within what arithmetic allows")),
    ):
        judged[name] = np.where(noisy, column, sites[name]).astype(sites[name].dtype)
    return judged
