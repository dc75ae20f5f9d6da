"""A Comparison as `layerdiff.comparison/1`, for scripts and CI. comparison.schema.json beside this file is the contract.

Strict JSON: a non-finite number is the string "nan", "inf" or "-inf", since many parsers refuse the
bare words, and what is not known is null. The two are never mixed: an unknown number is never "nan".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.baseline import ratios
from layerdiff.judge.tables import Again, Columns, Source, Verdict, is_sampled
from layerdiff.saved.comparison import AlignmentSummary, Comparison, Json, Side
from layerdiff.saved.placements import PlacedValue, Placements
from layerdiff.trace.schema import CallKind

SCHEMA: Final = "layerdiff.comparison/1"


def to_json(comparison: Comparison, *, sites: int | None = 10_000) -> dict[str, Json]:
    """The comparison as JSON values.

    `sites` bounds the list of sites, which holds the origins and all that is not identical; where it
    does not hold them all, origins and then the worst verdicts stay. None lists all of them.
    """
    chosen = _chosen_sites(comparison, sites)
    further: dict[str, Json] = {}
    if comparison.again is not None:
        codes = comparison.sites["again"]
        counts = {"calls": int(np.sum(codes > Again.UNKNOWN)), "differ": int(np.sum(codes >= Again.DIFFERS))}
        further["again"] = {**_side(comparison.again.side), **counts}
    if comparison.baseline is not None:
        further["baseline"] = _side(comparison.baseline)
    return {
        "schema": SCHEMA,
        "verdict": comparison.verdict.label,
        "defect": comparison.defect,
        "reference": None if comparison.reference is None else _side(comparison.reference),
        "target": _side(comparison.target),
        "profile": strict(comparison.profile),
        "notices": [_notice(notice) for notice in comparison.notices],
        "origins": [_origin(origin) for origin in comparison.origins],
        "alignment": _alignment(comparison.alignment),
        "sites_total": _rows(comparison.sites),
        "sites": _sites(comparison, chosen),
        **further,
    }


def strict(value: Any) -> Json:
    """Any value as strict JSON: numpy and enums as plain values, non-finite numbers as strings, the rest by `str`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, Enum):
        return value.name.lower().replace("_", "-")
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [strict(item) for item in value]
    if isinstance(value, np.ndarray):
        return strict(value.tolist())
    return str(value)


def number(value: float | None) -> Json:
    """A number that is known: None is null, non-finite ones are strings."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _known(value: Any) -> Json:
    """A number of a table, where nan stands for unknown."""
    plain = float(value)
    return None if math.isnan(plain) else number(plain)


def _rows(columns: Columns) -> int:
    return len(columns["verdict"])


def _chosen_sites(comparison: Comparison, limit: int | None) -> NDArray[np.int64]:
    """Rows to list, in the order of the table."""
    verdicts = np.asarray(comparison.sites["verdict"])
    is_origin = np.zeros(verdicts.size, bool)
    rows = np.array([origin.row for origin in comparison.origins if 0 <= origin.row < verdicts.size], np.int64)
    is_origin[rows] = True
    listed = np.flatnonzero((verdicts != Verdict.IDENTICAL) | is_origin)
    if limit is None or listed.size <= limit:
        return listed
    severity = np.where(verdicts >= Verdict.NOT_COMPARABLE, -1, verdicts.astype(np.int64)) + 1000 * is_origin
    worst = np.argsort(-severity[listed], kind="stable")[: max(0, limit)]
    return np.sort(listed[worst])


def _side(side: Side) -> dict[str, Json]:
    return {"path": side.path, "environment": strict(side.environment)}


def _notice(notice: Notice) -> dict[str, Json]:
    return {"kind": notice.kind, "statement": notice.statement, "site": notice.site, "defect": notice.defect}


def _origin(origin: Origin) -> dict[str, Json]:
    return {
        "site": origin.site,
        "operator": origin.operator,
        "step": origin.step,
        "occurrence": origin.occurrence,
        "rank": origin.rank,
        "value": origin.value,
        "verdict": origin.verdict.label,
        "cause": origin.cause,
        "statement": origin.statement,
        "measured": number(origin.measured),
        "allowed": number(origin.allowed),
        "rule": origin.rule,
        "evidence": strict(origin.evidence),
    }


def _alignment(alignment: AlignmentSummary) -> dict[str, Json]:
    return {
        "paired": alignment.paired,
        "reference_only": [{"site": call.site, "reason": call.reason} for call in alignment.reference_only],
        "target_only": [{"site": call.site, "reason": call.reason} for call in alignment.target_only],
    }


def _sites(comparison: Comparison, rows: NDArray[np.int64]) -> list[dict[str, Json]]:
    texts, sites, pairs = comparison.texts, comparison.sites, comparison.pairs
    listed = [_site(texts, sites, pairs, int(row)) for row in rows]
    if comparison.baseline is not None:
        found = ratios(sites, pairs)
        for row, site in zip(rows.tolist(), listed, strict=True):
            site["baseline_ratio"] = _known(found[row])
    if len(comparison.placed["pair"]):
        placements = Placements(comparison)
        for row, site in zip(rows.tolist(), listed, strict=True):
            values = placements.of_site(row)
            if values:
                site["placements"] = [_placement(value) for value in values]
    return listed


def _placement(value: PlacedValue) -> dict[str, Json]:
    listed: dict[str, Json] = {
        "value": value.position,
        "placement": value.name,
        "ranks": [{"rank": part.rank, "error": _known(part.error)} for part in value.parts],
        "agree": value.agree,
    }
    return listed if value.also is None else {**listed, "also": value.also.split("; ")}


def _site(texts: Any, sites: Columns, pairs: Columns, row: int) -> dict[str, Json]:
    pair = int(sites["pair"][row])
    value = texts[int(pairs["position"][pair])] if pair >= 0 else None
    compared = pair >= 0 and int(pairs["source"][pair]) == Source.BYTES
    rank = int(sites["rank"][row])
    rule = texts[int(sites["rule"][row])]
    return {
        "site": texts[int(sites["site"][row])] or "",
        "step": int(sites["step"][row]),
        "occurrence": int(sites["occurrence"][row]),
        "rank": None if rank < 0 else rank,
        "value": value,
        "operator": texts[int(sites["operator"][row])],
        "kind": "source" if value is not None and value.startswith("source.") else CallKind(int(sites["kind"][row])).name.lower(),
        "rel_l2": _known(pairs["rel_l2"][pair]) if compared else None,
        "max_abs": _known(pairs["max_abs"][pair]) if compared else None,
        "local_sigma": _known(sites["local_sigma"][row]),
        "verdict": Verdict(int(sites["verdict"][row])).label,
        "measured": _known(sites["measured"][row]),
        "allowed": _known(sites["allowed"][row]),
        "rule": rule,
        "sampled": is_sampled(rule),
    }
