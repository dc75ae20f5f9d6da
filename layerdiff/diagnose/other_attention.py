"""Attention that makes something else than the reference's form, where the bits of the dtype hide it from thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from layerdiff.diagnose.attention_given import ATTENTIONS, told_of_attention
from layerdiff.diagnose.causes.attention_form import SAMPLE, handed_on, named_by_form
from layerdiff.diagnose.evidence import Evidence, Numbers
from layerdiff.judge.attention_forms import Told
from layerdiff.judge.classes import ATTENTION, module_class
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import BY_THRESHOLDS, Columns, Verdict
from layerdiff.trace.schema import CallKind

_COARSE: Final = 2.0**-12
"""Unit roundoffs from which on it is asked: fp16 and bf16."""
_MISSES: Final = 3
"""How many more modules of a class, with results of a shape, have had no known form than have had one, before no more is asked."""


def other_attention(evidence: Evidence, profile: Profile, numbers: Numbers) -> Iterator[Found]:
    """Attention that makes something else than the reference's form, though thresholds may not see it; not where users set a limit.

    Of runs in 16 bits: they round the products that they are added up of in fp32, and what is between the lines is not their sums.
    """
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    missed: Counter[tuple[int, int]] = Counter()
    for row in np.flatnonzero((sites["exact"] == BY_THRESHOLDS) & (sites["kind"] == CallKind.MODULE)).tolist():
        if module_class(texts[int(sites["type"][row])], has_children=True) is not ATTENTION or min(_calls(sites, row)) < 0:
            continue
        made = handed_on(evidence, row)
        if made is None or pairs["equal"][made] or max(evidence.roundoffs(made) or [0.0]) < _COARSE:
            continue
        if profile.limits(texts[int(sites["site"][row])] or ""):
            continue
        kind = int(sites["type"][row]), int(pairs["reference_shape"][made])
        if missed[kind] > _MISSES:
            continue
        told = told_of_attention(evidence, row, made, numbers, SAMPLE)
        missed[kind] += -1 if any(told) else 1
        wrong = max((one for one in told if one is not None and one.wrong), key=lambda one: one.error, default=None)
        if wrong is not None:
            yield Found(row, _local(evidence, row, made, wrong))


def _local(evidence: Evidence, row: int, made: int, told: Told) -> Local:
    texts, child = evidence.texts, int(evidence.pairs["site"][made])
    position = texts[int(evidence.pairs["position"][made])] or ""
    handed = {"site": texts[int(evidence.sites["site"][child])] or "", "value": position}
    evidence_of_it: dict[str, Any] = {"handed_to": handed, "rows": told.beyond, "rows_looked_at": told.rows}
    changed = evidence.changed_attributes(row)
    if changed:
        evidence_of_it["attributes"] = {name: {"reference": r, "target": t} for name, (r, t) in changed.items()}
    cause, said = named_by_form(told)
    statement = (
        f"{said}: what it hands to {handed['site']} ({position}) is off by {told.error:.2g}, and roundings make {told.allowed:.2g} at most"
    )
    verdict = Verdict.UNEXPLAINED if cause is None else Verdict.DEFECT
    return Local(
        _calls(evidence.sites, row), "out", verdict, statement, told.error, told.allowed, ATTENTIONS, cause, evidence=evidence_of_it
    )


def _calls(sites: Columns, row: int) -> tuple[int, int]:
    return int(sites["reference_call"][row]), int(sites["target_call"][row])
