"""Evidence of a finding as short facts. It is JSON of any shape; nested parts are named by their path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from layerdiff.rows.cells import shorten, visible
from layerdiff.rows.figures import exact

_WORDS: Final = {
    "meaning": "the programs are apart by",
    "cut": "seen at",
    "reference_site": "in the reference",
    "worst": "worst element",
    "largest": "largest difference",
    "rows": "rows that differ",
    "rows_looked_at": "rows looked at",
    "informative": "not the exact result rounded",
    "chain": "additions in sequence that make this error",
    "zrms": "error in sigmas, rms",
    "zmax": "error in sigmas, largest",
    "made": "results made bit for bit",
    "tried": "of",
}
"""What the keys of JSON that say little by themselves are called."""
_LONGEST: Final = 160
_MOST: Final = 40


def facts(evidence: Mapping[str, Any]) -> list[str]:
    """`gain 158.7`, `variance_epsilon 1e-6 ⇄ 1e-5`: one fact each, visible, at most 40; what is empty says nothing."""
    said = {_WORDS.get(name, name): part for name, part in evidence.items() if part != ""}
    return list(_facts("", said))[:_MOST]


def _facts(path: str, part: Any) -> list[str]:
    if path == "handed_to" and isinstance(part, Mapping) and set(part) == {"site", "value"}:
        return [f"handed to {_plain(part['site']) or 'the root'}, as its {_plain(part['value'])}"]
    if not isinstance(part, Mapping):
        return [f"{path} {_plain(part)}"]
    if set(part) == {"reference", "target"} and not any(isinstance(value, Mapping) for value in part.values()):
        return [f"{path} {_plain(part['reference'])} ⇄ {_plain(part['target'])}"]
    return [fact for name, inner in part.items() for fact in _facts(f"{path} {visible(str(name))}".lstrip(), inner)]


def _plain(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return shorten(visible("none" if value is None else str(value)), _LONGEST)
    return exact(value)
