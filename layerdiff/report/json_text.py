"""The comparison as one line of JSON. ASCII only, so that no terminal and no log can be steered by a name in it."""

from __future__ import annotations

import json

from layerdiff.saved.comparison import Comparison


def as_json_text(comparison: Comparison, *, sites: int | None = 10_000) -> str:
    """`layerdiff.comparison/1` as text, one line with its end; `sites` as in `Comparison.to_json`."""
    return json.dumps(comparison.to_json(sites=sites), allow_nan=False, ensure_ascii=True) + "\n"
