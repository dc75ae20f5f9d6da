"""Norms that thresholds convict, held against what the reference's norm makes of what they were given (`judge/norms.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.causes.norm_epsilon import epsilon_of
from layerdiff.diagnose.evidence import Evidence
from layerdiff.judge.classes import NORM, module_class
from layerdiff.judge.norms import local_error
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import Role

RULE: Final = "norms: relative L2 to what the reference's norm makes of the target's input"
_MOST: Final = 1 << 24
"""Elements of a value that is looked at."""


def acquit_norms(
    evidence: Evidence, rows: Iterable[int], profile: Profile, numbers: Callable[[int], Sequence[Both[NDArray[Any]]]]
) -> dict[str, NDArray[Any]]:
    """The columns of exact verdicts, with those of these rows that are norms and only hand on what came in; not where users set a limit.

    `numbers`: both sides' of a pair of values, of each rank; none where they are not at hand.
    """
    sites, texts = evidence.sites, evidence.texts
    columns = {name: sites[name].copy() for name in ("exact", "exact_measured", "exact_allowed", "exact_rule")}
    for row in rows:
        if module_class(texts[int(sites["type"][row])], has_children=False) is not NORM or np.any(sites["parent"] == row):
            continue
        if any(threshold.matches(texts[int(sites["site"][row])] or "") for threshold in profile.thresholds):
            continue
        found = _local_error(evidence, row, numbers)
        if found is not None:
            for name, value in zip(columns, (int(Verdict.INHERITED), *found, texts.intern(RULE)), strict=True):
                columns[name][row] = value
    return columns


def _local_error(evidence: Evidence, row: int, numbers: Callable[[int], Sequence[Both[NDArray[Any]]]]) -> tuple[float, float] | None:
    """The largest of all ranks."""
    pairs, texts = evidence.pairs, evidence.texts
    here = [pair for pair in evidence.pairs_of(row) if pairs["role"][pair] in (Role.INPUT, Role.OUTPUT) and pairs["count"][pair] <= _MOST]
    if sorted(int(pairs["role"][pair]) for pair in here) != [Role.INPUT, Role.OUTPUT]:
        return None
    inputs, outputs = (numbers(pair) for pair in sorted(here, key=lambda pair: int(pairs["role"][pair])))
    dtypes = [dtype_named(texts[int(pairs[f"{side}_dtype"][here[-1]])] or "") for side in ("reference", "target")]
    if not inputs or len(inputs) != len(outputs) or any(dtype is None or not dtype.unit_roundoff for dtype in dtypes):
        return None
    epsilon = epsilon_of(evidence.attributes(row).reference) or 0.0
    roundoffs = [dtype.unit_roundoff or 0.0 for dtype in dtypes if dtype is not None]
    worst = 0.0, 0.0
    for given, made in zip(inputs, outputs, strict=True):
        found = local_error(tuple(given), tuple(made), epsilon, roundoffs)
        if found is None:
            return None
        worst = max(worst, found)
    return worst
