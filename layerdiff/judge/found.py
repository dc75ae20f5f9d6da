"""`Found`: a local finding in the table of sites, and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layerdiff.judge.local import Local
from layerdiff.judge.tables import Verdict


@dataclass(frozen=True)
class Found:
    """A local finding at a row of the table of sites."""

    row: int
    local: Local


def to_json(found: Found) -> dict[str, Any]:
    """A finding as JSON values."""
    local = found.local
    return {"row": found.row, **{name: getattr(local, name) for name in local.__dataclass_fields__}, "verdict": local.verdict.label}


def from_json(data: Mapping[str, Any]) -> Found:
    """A finding from what `to_json` made. Raises KeyError, TypeError or ValueError where it is none."""
    verdict = Verdict[str(data["verdict"]).upper().replace("-", "_")]
    calls = data["calls"]
    if not (isinstance(calls, list) and len(calls) == 2 and isinstance(data["evidence"], dict)):
        raise ValueError("a finding is not as it must be")
    local = Local(
        (int(calls[0]), int(calls[1])),
        str(data["value"]),
        verdict,
        str(data["statement"]),
        float(data["measured"]),
        float(data["allowed"]),
        str(data["rule"]),
        cause=None if data["cause"] is None else str(data["cause"]),
        kind=str(data["kind"]),
        evidence=data["evidence"],
        notice=data["notice"] is True,
    )
    return Found(int(data["row"]), local)
