"""Causes: one a file, none imports another. Each looks at one origin and names itself only with its evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from layerdiff.diagnose.causes import attention_form, norm_epsilon
from layerdiff.diagnose.causes.found import Found
from layerdiff.diagnose.evidence import Evidence

CAUSES: Final[tuple[Callable[[Evidence, int], Found | None], ...]] = (norm_epsilon.explain, attention_form.explain)
"""Tried in this order on each origin; the first that explains it names it."""
