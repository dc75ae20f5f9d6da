"""What is said of a comparison: origins, and the notices that come before any layer is blamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from layerdiff.judge.tables import Verdict


@dataclass(frozen=True)
class Notice:
    """Something said before any layer is blamed. `defect` is true where it alone makes the comparison one."""

    kind: str
    statement: str
    site: str | None = None
    defect: bool = False


@dataclass(frozen=True)
class Origin:
    """A pair whose local error is not explained: where a fault enters."""

    row: int
    """Row in the table of sites."""
    site: str
    verdict: Verdict
    value: str
    """`out`, `out[1]`, `in[0]`, `source.<name>`."""
    statement: str
    measured: float | None
    allowed: float | None
    rule: str
    defect: bool
    """broken, defect and unexplained always; precision where the profile forbids it."""
    operator: str | None = None
    step: int = 0
    occurrence: int = 0
    rank: int | None = None
    cause: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
