"""`layerdiff diff`."""

from __future__ import annotations

from pathlib import Path

from layerdiff.cli.parameters import AGAIN, BASELINE, JSON, KEEP, PROFILE, REFERENCE, SITES, TARGET, TRUST, sites_bound

PARAMETERS = (REFERENCE, TARGET, KEEP, PROFILE, AGAIN, BASELINE, JSON, SITES, TRUST)


def run(
    reference: str,
    target: str,
    output: Path | None,
    profile: str,
    again: str | None,
    baseline: str | None,
    json: str | None,
    sites: str,
    trust_ops: tuple[str, ...],
) -> int:
    """Say where two runs part, and whether it is a defect."""
    bound = sites_bound(sites)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import compared

    comparison = compared(reference, target, profile, trust=trust_ops)
    if again is not None or baseline is not None:
        from layerdiff.compare import with_further_runs

        comparison = with_further_runs(comparison, profile=profile, again=again, baseline=baseline)
    return answer(comparison, keep=output, json=json, sites=bound)
