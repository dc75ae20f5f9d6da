"""Origins: the sites at which a fault enters, one a site, each with its statement and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from layerdiff.diagnose.causes import CAUSES
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both

ORIGIN_VERDICTS: Final = (Verdict.BROKEN, Verdict.DEFECT, Verdict.UNEXPLAINED, Verdict.PRECISION, Verdict.RECONVERGES)
_LEADS: Final = 3
"""Attributes that a statement names; the evidence has them all."""
_DEFECTS: Final = (Verdict.BROKEN, Verdict.DEFECT, Verdict.UNEXPLAINED)


def find_origins(evidence: Evidence) -> tuple[Origin, ...]:
    """Every origin, in the order of the target's run; further calls of the same site are counted, not listed."""
    verdicts = evidence.sites["verdict"]
    rows = np.flatnonzero(np.isin(verdicts, [int(v) for v in ORIGIN_VERDICTS]))
    first: dict[tuple[int, int, int], int] = {}
    calls: dict[tuple[int, int, int], list[int]] = {}
    for row in rows.tolist():
        key = (int(evidence.sites["site"][row]), int(evidence.sites["rank"][row]), int(verdicts[row]))
        first.setdefault(key, row)
        calls.setdefault(key, []).append(row)
    return tuple(_origin(evidence, row, calls[key]) for key, row in first.items())


def _origin(evidence: Evidence, row: int, rows: list[int]) -> Origin:
    sites, texts = evidence.sites, evidence.texts
    verdict = Verdict(int(sites["verdict"][row]))
    shown: dict[str, Any] = {}
    changed = evidence.changed_attributes(row)
    if changed:
        shown["attributes"] = {name: {"reference": r, "target": t} for name, (r, t) in changed.items()}
    classes = evidence.classes(row)
    if classes.reference and classes.target and classes.reference != classes.target:
        shown["class"] = {"reference": classes.reference, "target": classes.target}
    handed = evidence.handed_to(row)
    if handed is not None:
        shown["handed_to"] = {"site": handed[0], "value": handed[1]}
    if len(rows) > 1:
        shown["calls"] = len(rows)
        shown["steps"] = sorted({int(sites["step"][r]) for r in rows})[:100]
    rank = int(sites["rank"][row])
    origin = Origin(
        row=row,
        site=texts[int(sites["site"][row])] or "",
        verdict=verdict,
        value="out" if handed is not None else evidence.position(row) or "out",
        statement=_held_differently(changed, classes) + evidence.statement(row, verdict),
        measured=_number(sites["measured"][row]),
        allowed=_number(sites["allowed"][row]),
        rule=texts[int(sites["rule"][row])] or "",
        defect=verdict in _DEFECTS,
        operator=texts[int(sites["operator"][row])],
        step=int(sites["step"][row]),
        occurrence=int(sites["occurrence"][row]),
        rank=None if rank < 0 else rank,
        evidence=shown,
    )
    for cause in CAUSES:
        found = cause(evidence, row)
        if found is not None:
            return replace(
                origin,
                verdict=Verdict.DEFECT,
                defect=True,
                cause=found.cause,
                statement=found.statement,
                evidence={**shown, **found.evidence},
            )
    return origin


def _held_differently(changed: Mapping[str, tuple[Any, Any]], classes: Both[str]) -> str:
    """In words, before what was measured: attributes that differ are a lead, and no proof; so is another class."""
    leads = [f"{name} is {_plain(t)}, reference {_plain(r)}" for name, (r, t) in list(changed.items())[:_LEADS]]
    leads += [f"and {len(changed) - _LEADS} more"] if len(changed) > _LEADS else []
    said = f"attribute differs: {'; '.join(leads)} (likely cause, not proven); " if leads else ""
    other = classes.reference and classes.target and classes.reference != classes.target
    return (f"another class: {classes.target}, reference {classes.reference}; " if other else "") + said


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float | None:
    number = float(value)
    return None if np.isnan(number) else number
