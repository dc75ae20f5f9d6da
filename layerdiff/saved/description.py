"""The description of a comparison, which is everything that is no table and no text, as JSON values and back.

Unlike `as_json`, which is for other people's scripts, this keeps every field, so that what was saved
is what is read. Unknown keys are ignored: a later minor version may add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.found import Found, from_json, to_json
from layerdiff.judge.tables import Verdict
from layerdiff.saved.as_json import number, strict
from layerdiff.saved.comparison import AlignmentSummary, Comparison, Json, SecondRun, Side, Unpaired
from layerdiff.sides import Both


class Description(NamedTuple):
    """Everything of a Comparison but its texts and tables."""

    reference: Side | None
    target: Side
    profile: Mapping[str, Json]
    notices: tuple[Notice, ...]
    origins: tuple[Origin, ...]
    alignment: AlignmentSummary
    found: tuple[Found, ...]
    again: SecondRun | None
    baseline: Side | None
    checkpoints: tuple[str, ...]


def described(comparison: Comparison) -> dict[str, Json]:
    """The description of a comparison as JSON values."""
    alignment = comparison.alignment
    return {
        "reference": None if comparison.reference is None else _flat(comparison.reference),
        "target": _flat(comparison.target),
        "profile": comparison.profile,
        "notices": [_flat(notice) for notice in comparison.notices],
        "origins": _origins(comparison.origins),
        "alignment": {
            "paired": alignment.paired,
            "reference_only": [[call.site, call.reason] for call in alignment.reference_only],
            "target_only": [[call.site, call.reason] for call in alignment.target_only],
            "steps": alignment.steps,
            "steps_all": asdict(alignment.steps_all),
            "remarks": alignment.remarks,
        },
        "found": [strict(to_json(found)) for found in comparison.found],
        "again": None
        if comparison.again is None
        else {"side": _flat(comparison.again.side), "origins": _origins(comparison.again.origins)},
        "baseline": None if comparison.baseline is None else _flat(comparison.baseline),
        "checkpoints": list(comparison.checkpoints),
    }


def _origins(origins: tuple[Origin, ...]) -> list[dict[str, Json]]:
    return [
        _flat(origin) | {"verdict": int(origin.verdict), "measured": number(origin.measured), "allowed": number(origin.allowed)}
        for origin in origins
    ]


def description_of(value: Json) -> Description:
    """The description from its JSON values. Raises ValueError, KeyError, TypeError or AttributeError where they are not as they must be."""
    alignment = value["alignment"]
    return Description(
        reference=None if value["reference"] is None else _side(value["reference"]),
        target=_side(value["target"]),
        profile=_mapping(value["profile"]),
        notices=tuple(_notice(notice) for notice in value["notices"]),
        origins=tuple(_origin(origin) for origin in value["origins"]),
        alignment=AlignmentSummary(
            paired=_whole(alignment["paired"]),
            reference_only=tuple(Unpaired(_text(site), _text(reason)) for site, reason in alignment["reference_only"]),
            target_only=tuple(Unpaired(_text(site), _text(reason)) for site, reason in alignment["target_only"]),
            steps=tuple((_whole(r), _whole(t)) for r, t in alignment["steps"]),
            steps_all=Both(_texts(alignment["steps_all"]["reference"]), _texts(alignment["steps_all"]["target"])),
            remarks=_texts(alignment["remarks"]),
        ),
        found=tuple(from_json(found) for found in value["found"]),
        again=_second(value["again"]),
        baseline=None if value["baseline"] is None else _side(value["baseline"]),
        checkpoints=_texts(value.get("checkpoints", [])),  # since 2.3
    )


def _flat(record: Any) -> dict[str, Json]:
    return {field.name: strict(getattr(record, field.name)) for field in fields(record)}


def _side(value: Json) -> Side:
    return Side(
        _text(value["path"]), _mapping(value["environment"]), _texts(value["files"]), _flag(value["complete"]), _text(value["label"])
    )


def _second(value: Json) -> SecondRun | None:
    return None if value is None else SecondRun(_side(value["side"]), tuple(_origin(origin) for origin in value["origins"]))


def _notice(value: Json) -> Notice:
    return Notice(_text(value["kind"]), _text(value["statement"]), _maybe_text(value["site"]), _flag(value["defect"]))


def _origin(value: Json) -> Origin:
    return Origin(
        row=_whole(value["row"]),
        site=_text(value["site"]),
        verdict=Verdict(_whole(value["verdict"])),
        value=_text(value["value"]),
        statement=_text(value["statement"]),
        measured=_number(value["measured"]),
        allowed=_number(value["allowed"]),
        rule=_text(value["rule"]),
        defect=_flag(value["defect"]),
        operator=_maybe_text(value["operator"]),
        step=_whole(value["step"]),
        occurrence=_whole(value["occurrence"]),
        rank=None if value["rank"] is None else _whole(value["rank"]),
        cause=_maybe_text(value["cause"]),
        evidence=_mapping(value["evidence"]),
    )


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    return value


def _maybe_text(value: Json) -> str | None:
    return None if value is None else _text(value)


def _texts(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return tuple(_text(item) for item in value)


def _whole(value: Json) -> int:
    if type(value) is not int:
        raise TypeError(f"a whole number was expected, not {type(value).__name__}")
    return value


def _flag(value: Json) -> bool:
    if type(value) is not bool:
        raise TypeError(f"true or false was expected, not {type(value).__name__}")
    return value


def _number(value: Json) -> float | None:
    if value is None:
        return None
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) not in (int, float):
        raise TypeError(f"a number was expected, not {type(value).__name__}")
    return float(value)


def _mapping(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {type(value).__name__}")
    return value
