"""The flow, on one screen: open, align, pair, measure, judge, diagnose.

`compare_traces` returns when all is done; `compare_in_steps` hands out what is known so far, so that a
screen can be painted from the indexes at once; `judge_again` re-judges stored numbers.
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
from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.diagnose.generation import Parting, parting
from layerdiff.diagnose.going_on import notices_of_going_on
from layerdiff.diagnose.judging_ranks import judge_ranks, of_other_modules
from layerdiff.diagnose.notices import NOTICES_OF_VALUES, notices_of_steps, notices_of_traces, notices_of_values
from layerdiff.diagnose.origins import find_origins
from layerdiff.diagnose.programs import explained_weights, notices_of_programs, origins_of_programs
from layerdiff.diagnose.rank_notices import notices_of_ranks
from layerdiff.diagnose.rank_requests import notices_of_requests
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.diagnose.ranks import with_ranks
from layerdiff.diagnose.reconverging import mark_reconverging
from layerdiff.diagnose.second_run import notice_of_noise, origins_of_second
from layerdiff.errors import ComparisonError
from layerdiff.judge.alone import found_at_rows, ranks_together
from layerdiff.judge.baseline import worst_output
from layerdiff.judge.exact import apply_exact, can_judge_exactly, judge_exactly
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
from layerdiff.judge.second_run import WITHIN, apply_noise, self_noise
from layerdiff.judge.tables import BY_THRESHOLDS, Again, Columns, Texts, Verdict
from layerdiff.judge.thresholds import judge_by_thresholds
from layerdiff.judge.unfinished import Unfinished, stopped
from layerdiff.saved.alignment_summary import alignment_summary
from layerdiff.saved.comparison import AlignmentSummary, Comparison, SecondRun, Side
from layerdiff.sides import Both
from layerdiff.trace.reader import Trace, open_trace

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
        return _judged(described, chosen, None if ranked else files, said, parted, unfinished)

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
        parted = parting(sites, pairs, tables.texts, values.numbers)
        told = (*told, *notices_of_turned(placed.values()))
        for part, whole, here in judge_ranks(tables, sites, values, lambda: [origin.row for origin in judge().origins], trust):
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
                judged = int(total * (number + part / max(whole, 1)) / len(each))
                yield Progress(done + judged, entire, so_far(True))
                last = time.monotonic()
        waits[rows] = False
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
    judged = dict(
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
        if second_call in judged:
            of_second[judged[second_call][0]] = row
            if codes[row] == Again.ENTERS and judged[second_call][1] in WITHIN:
                codes[row] = Again.NOISE
    columns = {**comparison.sites, "again": codes, "again_rel_l2": rel_l2}
    origins = origins_of_second(comparison.origins, second.origins, of_second)
    notice = notice_of_noise(noise, sites, tables.texts, columns, origins, str(again))
    notices = comparison.notices if notice is None else (*comparison.notices, notice)
    return _said_again(replace(comparison, sites=columns, notices=notices, again=SecondRun(second.target, origins)))


def _said_again(comparison: Comparison) -> Comparison:
    """What a second run says, in the verdicts and among the origins; nothing where there was none."""
    if comparison.again is None:
        return comparison
    sites = apply_noise(comparison.sites, comparison.texts)
    known = {(origin.site, origin.rank) for origin in comparison.origins}
    more = [origin for origin in comparison.again.origins if (origin.site, origin.rank) not in known]
    origins = tuple(sorted([*comparison.origins, *more], key=lambda origin: origin.row))
    sites["verdict"], sites["statement"] = _with_findings(sites, comparison.texts, origins)
    return replace(comparison, sites=sites, origins=origins)


def _calls(sites: Columns, side: str) -> list[tuple[int, int]]:
    return list(zip(sites[f"{side}_file"].tolist(), sites[f"{side}_call"].tolist(), strict=True))


def judge_again(comparison: Comparison, *, profile: str | Path | Profile) -> Comparison:
    """The same numbers under another profile; needs no traces. Causes that were found stay with their origins."""
    chosen = load_profile(profile)
    judged = _judged(comparison, chosen, None, (), Parting(), stopped(comparison.sites))
    kept = [notice for notice in comparison.notices if notice.kind not in _BY_PROFILE]
    again = [notice for notice in judged.notices if notice.kind in _BY_PROFILE]
    judged = replace(judged, notices=tuple(sorted([*kept, *again], key=lambda notice: _ORDER.get(notice.kind, -1))))
    found = {(origin.site, origin.rank): origin for origin in comparison.origins}
    return replace(judged, origins=tuple(_with_cause(origin, found.get((origin.site, origin.rank))) for origin in judged.origins))


_BY_PROFILE: Final = ("dtype-mismatch", "weight-coded", "flip", "results-not-compared")
"""Notices that another profile may change; the others need the traces, and stay as they are."""
_ORDER: Final = {kind: i for i, kind in enumerate(NOTICES_OF_VALUES)}


def _judged(
    comparison: Comparison, profile: Profile, files: Any, told: tuple[Notice, ...], parted: Parting, unfinished: Unfinished | None = None
) -> Comparison:
    sites, pairs, texts = dict(comparison.sites), comparison.pairs, comparison.texts
    judged = judge_by_thresholds(sites, pairs, texts, profile)
    sites |= {"verdict": judged.verdict, "pair": judged.pair, "measured": judged.measured, "allowed": judged.allowed, "rule": judged.rule}
    sites["verdict"] = mark_reconverging(sites, pairs, texts)
    by_thresholds = sites["exact"] == BY_THRESHOLDS
    evidence = Evidence(sites, pairs, texts, files)
    origins = tuple(origin for origin in find_origins(evidence) if by_thresholds[origin.row])
    sites = apply_exact(sites, texts, comparison.found)
    told_by_programs = origins_of_programs(comparison.found, sites, texts, profile)
    if unfinished is not None:
        waits = unfinished.open_rows(sites)
        sites["verdict"] = np.where(waits, np.uint8(Verdict.PENDING), sites["verdict"])
        origins = tuple(origin for origin in origins if not waits[origin.row])
    origins = with_ranks(sorted([*origins, *told_by_programs], key=lambda origin: origin.row), sites, comparison.placed)
    sites["verdict"], sites["statement"] = _with_findings(sites, texts, origins)
    evidence = Evidence(sites, pairs, texts, files)
    said: list[Notice] = []
    if comparison.reference is not None:
        packed = {notice.site or "" for notice in told if notice.kind in ("layout-packed", "layout-turned")}
        said += notices_of_values(evidence, profile, explained_weights(comparison.found), packed, parted, unfinished)
    said += notices_of_programs(comparison.found, sites, texts)
    return _said_again(replace(comparison, profile=profile.to_json(), sites=sites, notices=(*told, *said), origins=origins))


def _with_findings(sites: dict[str, NDArray[Any]], texts: Texts, origins: tuple[Origin, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Verdict and statement of each site, with what was found at the origins; further calls of an origin's site say the same."""
    verdict, statement = sites["verdict"].copy(), sites["statement"].copy()
    for origin in origins:
        same = (
            (sites["site"] == sites["site"][origin.row]) & (sites["rank"] == sites["rank"][origin.row]) & (verdict == verdict[origin.row])
        )
        statement[same] = texts.intern(origin.statement)
        verdict[same] = int(origin.verdict)
    return verdict, statement


def _with_cause(origin: Origin, before: Origin | None) -> Origin:
    if before is None or before.cause is None or origin.cause is not None:
        return origin
    return replace(
        origin, cause=before.cause, statement=before.statement, verdict=before.verdict, defect=before.defect, evidence=before.evidence
    )


def _describe(traces: Both[Trace], profile: Profile, texts: Texts, sites: Any, pairs: Any, summary: AlignmentSummary) -> Comparison:
    sides = traces.map(side_of)
    return Comparison(sides.reference, sides.target, profile.to_json(), texts, dict(sites), pairs, alignment=summary)


def side_of(trace: Trace) -> Side:
    """A run as its trace describes it."""
    environment = trace.files[0].meta.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    files = tuple(file.path.name for file in trace.files)
    return Side(str(trace.path), environment, files, trace.complete, _label(environment, len(files)))


def _label(environment: dict[str, Any], files: int) -> str:
    """A few words for a header: class and dtype of the model, device, number of processes."""

    def first(key: str) -> dict[str, Any]:
        listed = environment.get(key)
        found = listed[0] if isinstance(listed, list) and listed else {}
        return found if isinstance(found, dict) else {}

    model, device = first("models"), first("devices")
    words = [model.get("class"), model.get("dtype"), device.get("type"), f"x{files}" if files > 1 else None]
    return " ".join(word for word in words if isinstance(word, str))
