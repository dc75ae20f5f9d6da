"""`Local`: one thing that exact arithmetic says of one place, before a profile says whether it is a defect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from layerdiff.judge.tables import Verdict


@dataclass(frozen=True)
class Local:
    """A local error, or a decision that hung by a rounding."""

    calls: tuple[int, int]
    """The reference's and the target's call that it is said of; -1 where one side has none."""
    value: str
    """Position of the value: `out`, `out[1]`, `in[0]`, `source.in[1]`."""
    verdict: Verdict
    statement: str
    measured: float
    allowed: float
    rule: str
    cause: str | None = None
    kind: str = ""
    """Of a precision: what a profile may forbid (`accumulator`, `tf32`, `quantised`, `constant`, `declared`). Of a notice: its kind."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    notice: bool = False
    """Said, and no origin."""
