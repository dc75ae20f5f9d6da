"""`layerdiff diff`."""

from __future__ import annotations

from layerdiff.cli.parameters import DEFAULT_SITES, Json, Keep, Profile, Reference, Sites, Target, sites_bound


def run(
    reference: Reference, target: Target, output: Keep = None, profile: Profile = "strict", json: Json = None, sites: Sites = DEFAULT_SITES
) -> int:
    """Say where two runs part, and whether it is a defect."""
    bound = sites_bound(sites)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import compared

    return answer(compared(reference, target, profile), keep=output, json=json, sites=bound)
