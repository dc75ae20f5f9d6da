"""`layerdiff diff`."""

from __future__ import annotations

from pathlib import Path

from layerdiff.cli.parameters import (
    AGAIN,
    ALONE,
    BASELINE,
    CHECKPOINT,
    JSON,
    KEEP,
    PROFILE,
    REFERENCE,
    SITES,
    TARGET_UNLESS_ALONE,
    TRUST,
    UsageError,
    sites_bound,
)

PARAMETERS = (REFERENCE, TARGET_UNLESS_ALONE, ALONE, KEEP, PROFILE, AGAIN, BASELINE, CHECKPOINT, JSON, SITES, TRUST)


def run(
    reference: str,
    target: str | None,
    alone: bool,
    output: Path | None,
    profile: str,
    again: str | None,
    baseline: str | None,
    checkpoints: tuple[Path, ...],
    json: str | None,
    sites: str,
    trust_ops: tuple[str, ...],
) -> int:
    """Say where two runs part, and whether it is a defect.

    With --self it takes one trace, of many ranks, and holds them against each other.
    """
    bound = sites_bound(sites)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.outputs import check_output

    check_output(output)
    check_output(json, "--json")

    if alone:
        _refuse_with_self(target, again, baseline, trust_ops)
        from layerdiff.checking import check_ranks

        return answer(check_ranks(reference, profile=profile, checkpoints=checkpoints), keep=output, json=json, sites=bound)
    if target is None:
        raise UsageError("diff compares two traces: name the target too. --self checks the ranks of one by themselves.")
    from layerdiff.cli.comparing import compared

    comparison = compared(reference, target, profile, trust=trust_ops, checkpoints=checkpoints)
    if again is not None or baseline is not None:
        from layerdiff.compare import with_further_runs

        comparison = with_further_runs(comparison, profile=profile, again=again, baseline=baseline)
    return answer(comparison, keep=output, json=json, sites=bound)


def _refuse_with_self(target: str | None, again: str | None, baseline: str | None, trust: tuple[str, ...]) -> None:
    if target is not None:
        raise UsageError("--self takes one trace, and two are named: leave one of them or --self away.")
    for given, name in ((again, "--again"), (baseline, "--baseline"), (trust, "--trust-ops")):
        if given:
            raise UsageError(f"{name} needs a reference, and --self has none.")
