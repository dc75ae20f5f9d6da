"""`layerdiff judge`."""

from __future__ import annotations

from pathlib import Path

from layerdiff.cli.parameters import JSON, KEEP, PROFILE, SAVED, SITES, sites_bound

PARAMETERS = (SAVED, PROFILE, KEEP, JSON, SITES)


def run(path: str, profile: str, output: Path | None, json: str | None, sites: str) -> int:
    """Judge a saved comparison by another profile.

    Needs no traces: the numbers are in the file.
    """
    bound = sites_bound(sites)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import saved
    from layerdiff.cli.outputs import check_output

    check_output(output)
    check_output(json, "--json")
    return answer(saved(path, profile), keep=output, json=json, sites=bound)
