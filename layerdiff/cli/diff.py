"""`layerdiff diff`."""

from __future__ import annotations

from pathlib import Path

from layerdiff.cli.parameters import JSON, KEEP, PROFILE, REFERENCE, SITES, TARGET, sites_bound

PARAMETERS = (REFERENCE, TARGET, KEEP, PROFILE, JSON, SITES)


def run(reference: str, target: str, output: Path | None, profile: str, json: str | None, sites: str) -> int:
    """Say where two runs part, and whether it is a defect."""
    bound = sites_bound(sites)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import compared

    return answer(compared(reference, target, profile), keep=output, json=json, sites=bound)
