"""`Found`: what a cause answers when it explains an origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Found:
    """A cause with its evidence: the fit, and what remains after applying it."""

    cause: str
    statement: str
    evidence: Mapping[str, Any]
