"""`check_ranks`: the ranks of one run held against each other, without a reference. The result is a Comparison whose reference is None."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from layerdiff.checkpoint.weights import weights_of
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.programs import notices_of_programs
from layerdiff.diagnose.rank_notices import notices_of_ranks
from layerdiff.errors import ComparisonError
from layerdiff.judge.alone import ranks_alone
from layerdiff.judge.profiles import Profile, load_profile
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.side import side_of
from layerdiff.trace.reader import Trace, open_trace
from layerdiff.trace.schema import CallKind
from layerdiff.verdicts import judge_again


def check_ranks(target: str | Path, *, profile: str | Path | Profile = "strict", checkpoints: Sequence[str | Path] = ()) -> Comparison:
    """Check the trace of a run of many ranks by itself: its collectives, and what ranks must hold alike (docs/parallel.md).

    Raises:
        TraceError: it cannot be read.
        CheckpointError: a checkpoint cannot be read.
        ProfileError: the profile is wrong.
        ComparisonError: it holds fewer than two ranks.
    """
    chosen = load_profile(profile)
    trace = open_trace(target, weights=weights_of(checkpoints))
    _require_ranks(trace)
    sites, pairs, texts, found = ranks_alone(trace.files)
    notices = [*_incomplete(trace), *notices_of_ranks(trace.files), *notices_of_programs(found, sites, texts)]
    if not (sites["kind"] == CallKind.COLLECTIVE).any():
        notices.append(Notice("no-collectives", "no collective was recorded: only modules that ranks were given alike are checked"))
    comparison = Comparison(None, side_of(trace), chosen.to_json(), texts, sites, pairs, tuple(notices), found=tuple(found))
    comparison = replace(comparison, checkpoints=tuple(map(str, checkpoints)))
    return judge_again(comparison, profile=chosen)


def _incomplete(trace: Trace) -> Iterator[Notice]:
    for file in trace.files:
        if not file.complete:
            reason = file.meta.get("incomplete") or "its writer did not say why"
            yield Notice("recording-incomplete", f"the trace {file.path.name} is incomplete: {reason}")


def _require_ranks(trace: Trace) -> None:
    ranks = {file.rank for file in trace.files if file.rank is not None}
    if len(ranks) >= 2:
        return
    world = trace.files[0].meta.get("world_size")
    if type(world) is int and world > 1:
        raise ComparisonError(
            f"{trace.path} holds one of {world} ranks, and --self holds ranks against each other. "
            "Give the folder with the files of all of them."
        )
    raise ComparisonError(
        f"{trace.path} is the trace of one process, and --self holds the ranks of a run against each other. "
        "`torchrun --nproc-per-node N -m layerdiff record -o target/ -- SCRIPT` records a run of many; "
        "`layerdiff diff REFERENCE TARGET` compares two runs."
    )
