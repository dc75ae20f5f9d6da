"""The flow, on one screen: open, align, pair, measure, judge, diagnose.

`compare_traces` returns when all is done; `compare_in_steps` hands out what is known so far, so that a
screen can be painted from the indexes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.checkpoint.weights import weights_of
from layerdiff.diagnose.by_form import found_by_form
from layerdiff.diagnose.caches import notices_of_caches
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.filling import (
    chosen_filling,
    notices_of_chunks,
    notices_of_filling,
    notices_of_order,
    notices_of_packing,
    notices_of_turned,
    notices_of_unused,
)
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.generation import Parting, parting
from layerdiff.diagnose.going_on import notices_of_going_on
from layerdiff.diagnose.judging_ranks import judge_ranks, of_other_modules
from layerdiff.diagnose.notices import notices_of_steps, notices_of_traces
from layerdiff.diagnose.rank_notices import notices_of_ranks
from layerdiff.diagnose.rank_padding import leave_out_padding
from layerdiff.diagnose.rank_requests import notices_of_requests
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.diagnose.run_again import acquit
from layerdiff.diagnose.second_run import notice_of_noise, origins_of_second
from layerdiff.errors import ComparisonError
from layerdiff.judge.alone import found_at_rows, ranks_together
from layerdiff.judge.baseline import worst_output
from layerdiff.judge.exact import can_judge_exactly, judge_exactly
from layerdiff.judge.found import Found
from layerdiff.judge.pairs.aligned import align_traces, file_pairs, is_ranked
from layerdiff.judge.pairs.as_one import as_compared
from layerdiff.judge.pairs.filling import filled_weights, fillings_of
from layerdiff.judge.pairs.measuring import fill, total_bytes
from layerdiff.judge.pairs.measuring_ranks import fill_ranks, placed_columns, total_bytes_of_ranks
from layerdiff.judge.pairs.packing import FormsOfSteps, forms_of_steps
from layerdiff.judge.pairs.placed import Part, Placed
from layerdiff.judge.pairs.ranked import RankedTables
from layerdiff.judge.pairs.reordering import in_the_targets_order
from layerdiff.judge.pairs.unused_rows import without_unused
from layerdiff.judge.profiles import Profile, load_profile
from layerdiff.judge.second_run import WITHIN, self_noise
from layerdiff.judge.tables import Again, Columns, Texts, Verdict
from layerdiff.judge.unfinished import Unfinished
from layerdiff.saved.alignment_summary import alignment_summary
from layerdiff.saved.comparison import AlignmentSummary, Comparison, SecondRun
from layerdiff.saved.side import side_of
from layerdiff.sides import Both
from layerdiff.trace.reader import Trace, open_trace
from layerdiff.verdicts import said_again, with_verdicts

SNAPSHOT_SECONDS: Final = 0.5
"""How often a comparison in the making is judged again for the screen."""


@dataclass(frozen=True)
class Progress:
    """What is known so far: bytes read and bytes to read. Judging by operators counts as reading once more."""

    done: int
    total: int
    _judge: Callable[[], Comparison]

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison as it stood when this was handed out. Judged when asked for.

        Sites not reached are pending, and so is what a later stage may withdraw; notices that need all of it are not there yet.
        """
        return self._judge()


def compare_traces(
    reference: str | Path,
    target: str | Path,
    *,
    profile: str | Path | Profile = "strict",
    again: str | Path | None = None,
    baseline: str | Path | None = None,
    trust: Collection[str] = (),
    checkpoints: Sequence[str | Path] = (),
) -> Comparison:
    """Compare two traces; `again` and `baseline` are further ones, as in `with_further_runs`.

    `trust`: namespaces beside ATen (`npu`) whose operators a trace may have run again on this machine. `checkpoints`: safetensors files, or
    folders of them, that have the bytes of weights that were recorded by their fingerprints only.

    Raises:
        TraceError: one cannot be read.
        CheckpointError: a checkpoint cannot be read.
        ProfileError: the profile is wrong.
        ComparisonError: nothing of the two pairs.
    """
    *_, last = compare_in_steps(reference, target, profile=profile, trust=trust, checkpoints=checkpoints)
    return with_further_runs(last.comparison, profile=profile, again=again, baseline=baseline)


def compare_in_steps(
    reference: str | Path,
    target: str | Path,
    *,
    profile: str | Path | Profile = "strict",
    trust: Collection[str] = (),
    checkpoints: Sequence[str | Path] = (),
    snapshot_seconds: float = SNAPSHOT_SECONDS,
) -> Iterator[Progress]:
    """Compare two traces, handing out the state at once, then every half second, then the result.

    A `Progress` has to be asked for its comparison before the next one is. Raises as `compare_traces`.
    """
    chosen = load_profile(profile)
    weights = weights_of(checkpoints)
    traces, joined = as_compared(Both(open_trace(reference, weights=weights), open_trace(target, weights=weights)))
    tables, alignments = align_traces(traces, chosen.renames)
    sites, pairs = tables.columns()
    files = traces.map(lambda trace: trace.files)
    first = traces.map(lambda trace: trace.files[0])
    told = (*notices_of_traces(traces), *notices_of_chunks(joined), *notices_of_going_on(joined, first), *notices_of_caches(first))
    if not is_ranked(traces):  # one file of a run of many, perhaps: the ranks that are there say who is not
        told = (*told, *notices_of_ranks(files.reference), *notices_of_ranks(files.target))
    summary = alignment_summary(alignments, [file.rank or 0 for file in files.target] if is_ranked(traces) else None)

    found: list[Found] = []
    placed: dict[int, Placed] = {}
    parted = Parting()
    ranked = isinstance(tables, RankedTables)

    waits = np.full(len(sites["site"]), ranked)
    for numbers, _ in [] if ranked else file_pairs(traces):
        if can_judge_exactly(Both(files.reference[numbers.reference], files.target[numbers.target])) is None:
            waits[_rows_of(sites, numbers)] = True

    judging = bool(waits.any())

    def judge(unfinished: Unfinished | None = None) -> Comparison:
        described = _describe(traces, chosen, tables.texts, sites, pairs, summary)
        parts = placed_columns(placed, tables.texts, [file.rank for file in files.target])
        described = replace(described, found=tuple(found), placed=parts, checkpoints=tuple(map(str, checkpoints)))
        said = (*notices_of_steps(alignments, parted), *told)
        return with_verdicts(described, chosen, None if ranked else files, said, parted, unfinished)

    def so_far(measured: bool) -> Callable[[], Comparison]:
        return lambda: judge(Unfinished(measured, waits))

    parts_of: Both[list[tuple[Part, ...]]] | None
    if isinstance(tables, RankedTables):
        parts_of = Both(tables.ours, tables.ranks)
        total = total_bytes_of_ranks(pairs, sites, files, parts_of)
        files, unused = without_unused(pairs, sites, tables.texts, files, parts_of)
        filled = filled_weights(pairs, sites, tables.texts, files, parts_of)
        forms = FormsOfSteps(files, {}, fillings_of(filled))
        measured = fill_ranks(pairs, sites, tables.texts, files, parts_of, placed, tables.stages, fillings_of(filled))
    else:
        total = total_bytes(pairs, sites, files)
        files, reordered = in_the_targets_order(pairs, sites, tables.texts, files)
        told = (*told, *notices_of_order(reordered))
        files, unused = without_unused(pairs, sites, tables.texts, files)
        parts_of, filled = None, filled_weights(pairs, sites, tables.texts, files)
        forms = forms_of_steps(sites, pairs, files, fillings_of(filled))
        measured = fill(pairs, sites, tables.texts, files, forms)
    told = (*told, *notices_of_filling(filled), *notices_of_unused(unused), *notices_of_packing(forms, sites, tables.texts))
    entire = 2 * total if judging else total
    yield Progress(0, entire, so_far(False))
    last, done = time.monotonic(), 0
    for done in measured:
        if time.monotonic() - last > snapshot_seconds:
            yield Progress(done, entire, so_far(False))
            last = time.monotonic()
    if isinstance(tables, RankedTables):
        values = RankValues(sites, pairs, tables.texts, files, Both(tables.ours, tables.ranks), placed)
        leave_out_padding(pairs, values)
        parted = parting(sites, pairs, tables.texts, values.numbers)
        told = (*told, *notices_of_turned(placed.values()))

        def blamed() -> list[int]:
            rows = [origin.row for origin in judge().origins]
            acquitted = acquit(Evidence(sites, pairs, tables.texts, files), rows, chosen, values.beside)
            rows = [row for row in rows if acquitted["exact"][row] == sites["exact"][row]]
            sites.update(acquitted)
            return rows

        for part, whole, here in judge_ranks(tables, sites, values, blamed, trust):
            found[:] = here
            if time.monotonic() - last > snapshot_seconds:
                yield Progress(done + total * part // max(whole, 1), entire, so_far(True))
                last = time.monotonic()
        found += of_other_modules(found_at_rows(ranks_together(files.target), tables.row_of), found, sites)
        told = (*told, *notices_of_requests(values, tables.row_of), *notices_of_ranks(files.target))
    else:
        parted = parting(sites, pairs, tables.texts, Evidence(sites, pairs, tables.texts, files).numbers)
    each = [] if ranked else file_pairs(traces)
    for number, (numbers, _) in enumerate(each):
        both = Both(files.reference[numbers.reference], files.target[numbers.target])
        reason = can_judge_exactly(both)
        if reason is not None:
            told = (*told, Notice("judged-by-thresholds", reason)) if reason else told
            continue
        before = list(found)
        rows = _rows_of(sites, numbers)
        forms_at = partial(forms.at, numbers.target)
        for part, whole, here in judge_exactly(sites, pairs, tables.texts, both, rows, trust, forms_at):
            found[:] = [*before, *here]
            if time.monotonic() - last > snapshot_seconds:
                replayed = int(total * (number + part / max(whole, 1)) / len(each))
                yield Progress(done + replayed, entire, so_far(True))
                last = time.monotonic()
        waits[rows] = False
    evidence = Evidence(sites, pairs, tables.texts, files)
    for one in found_by_form(evidence, chosen, values.beside if ranked else evidence.of_one_process):
        sites["exact"][one.row] = int(Verdict.INHERITED)  # thresholds say less of it
        found.append(one)
    found += of_other_modules(chosen_filling(sites, pairs, tables.texts, files, filled, parts_of), found, sites)
    yield Progress(entire, entire, judge)


def _rows_of(sites: Columns, numbers: Both[int]) -> NDArray[np.intp]:
    return np.flatnonzero((sites["reference_file"] == numbers.reference) & (sites["target_file"] == numbers.target))


def with_further_runs(
    comparison: Comparison, *, profile: str | Path | Profile = "strict", again: str | Path | None = None, baseline: str | Path | None = None
) -> Comparison:
    """A comparison with what further runs say; the traces have to be where it says.

    `again`: a second run of the target. Calls that differ from themselves are `nondeterministic` where each run's local error is within
    what arithmetic allows; a local error that the second run alone has is an origin. `baseline`: a run that is known to be right;
    it gives ratios, and decides no verdict. Raises as `compare_traces`.
    """
    if again is None and baseline is None:
        return comparison
    if comparison.reference is None:
        raise ComparisonError("A further run is held against the reference, and this comparison has none.")
    reference, chosen = comparison.reference.path, load_profile(profile)
    if baseline is not None:
        weights = weights_of(comparison.checkpoints)
        traces, _ = as_compared(Both(open_trace(reference, weights=weights), open_trace(baseline, weights=weights)))
        tables, _ = align_traces(traces, chosen.renames)
        sites, pairs = tables.columns()
        for _ in fill(pairs, sites, tables.texts, traces.map(lambda trace: trace.files)):
            pass
        known = dict(zip(_calls(sites, "reference"), worst_output(sites, pairs).tolist(), strict=True))
        differs = np.array([known.get(call, np.nan) for call in _calls(comparison.sites, "reference")], np.float64)
        comparison = replace(comparison, sites={**comparison.sites, "baseline_rel_l2": differs}, baseline=side_of(traces.target))
    return comparison if again is None else _with_second_run(comparison, reference, chosen, again)


def _with_second_run(comparison: Comparison, reference: str, profile: Profile, again: str | Path) -> Comparison:
    second = compare_traces(reference, again, profile=profile, checkpoints=comparison.checkpoints)
    weights = weights_of(comparison.checkpoints)
    each = [
        as_compared(Both(*(open_trace(path, weights=weights) for path in (reference, run))))[0] for run in (comparison.target.path, again)
    ]
    traces = Both(*(both.target for both in each))
    tables, _ = align_traces(traces, ())  # renames are from the target's names to the reference's
    sites, pairs = tables.columns()
    noise = self_noise(sites, pairs, tables.texts, traces.map(lambda trace: trace.files))
    verdict_of = dict(
        zip(_calls(second.sites, "target"), zip(range(len(second.sites["site"])), second.sites["verdict"], strict=True), strict=True)
    )
    row_of = {call: row for row, call in enumerate(_calls(comparison.sites, "target")) if call[1] >= 0}
    codes, rel_l2 = comparison.sites["again"].copy(), comparison.sites["again_rel_l2"].copy()
    of_second: dict[int, int] = {}
    for i, (first_call, second_call) in enumerate(zip(_calls(sites, "reference"), _calls(sites, "target"), strict=True)):
        row = row_of.get(first_call)
        if row is None or second_call[1] < 0:
            continue
        codes[row], rel_l2[row] = noise.codes[i], noise.rel_l2[i]
        if second_call in verdict_of:
            of_second[verdict_of[second_call][0]] = row
            if codes[row] == Again.ENTERS and verdict_of[second_call][1] in WITHIN:
                codes[row] = Again.NOISE
    columns = {**comparison.sites, "again": codes, "again_rel_l2": rel_l2}
    origins = origins_of_second(comparison.origins, second.origins, of_second)
    notice = notice_of_noise(noise, sites, tables.texts, columns, origins, str(again))
    notices = comparison.notices if notice is None else (*comparison.notices, notice)
    return said_again(replace(comparison, sites=columns, notices=notices, again=SecondRun(second.target, origins)))


def _calls(sites: Columns, side: str) -> list[tuple[int, int]]:
    return list(zip(sites[f"{side}_file"].tolist(), sites[f"{side}_call"].tolist(), strict=True))


def _describe(traces: Both[Trace], profile: Profile, texts: Texts, sites: Any, pairs: Any, summary: AlignmentSummary) -> Comparison:
    sides = traces.map(side_of)
    return Comparison(sides.reference, sides.target, profile.to_json(), texts, dict(sites), pairs, alignment=summary)
